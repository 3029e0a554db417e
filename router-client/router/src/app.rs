//! Starts the process's tasks and ports, and stops them in order.

use crate::config::Config;
use crate::grpc::{RouterService, serve};
use crate::metrics::RequestMetrics;
use crate::output::OutputMetrics;
use crate::recorder::OpenRequests;
use crate::routing::{Routing, RoutingError};
use kvasir_process::http;
use kvasir_process::port::PortMetrics;
use kvasir_process::program::{ListenError, Program, listen};
use kvasir_process::telemetry::{Metrics, new_registry};
use kvasir_tasks::group::TaskGroup;
use kvasir_tasks::tasks::EndError;
use std::sync::Arc;
use tokio::net::TcpListener;

/// Why the process ends, other than by a signal.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The index's address or the record file is unusable.
    #[error(transparent)]
    Routing(#[from] RoutingError),
    /// A port cannot be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A task failed, or the shutdown exceeded its deadline.
    #[error(transparent)]
    End(#[from] EndError),
}

/// Runs a router until `signal` is ready, then stops in order: first the gRPC port after its calls are answered, and
/// the tasks that list, report and sync; then the side port.
///
/// # Errors
/// If a port cannot be opened, a task fails, or stopping takes too long.
pub async fn run(config: Config, signal: impl Future<Output = ()>) -> Result<(), RunError> {
    let process = &config.process;
    let (listener, grpc) = listen("listen", process.listen).await?;
    let (http_listener, http) = listen("http-listen", process.http.listen).await?;
    tracing::info!(%grpc, %http, "listening");
    let program = start(&config, listener, http_listener)?;
    Ok(program.run(signal, process.drain_timeout).await?)
}

/// Creates all parts and starts their tasks. The router is not ready before an index has listed its workers.
fn start(
    config: &Config,
    listener: TcpListener,
    http_listener: TcpListener,
) -> Result<Program, RunError> {
    let mut routing = Routing::new(&config.routing)?;
    let mut registry = new_registry();
    let requests = RequestMetrics::registered(&mut registry);
    let outputs = OutputMetrics::registered(&mut registry, "router");
    let port_metrics = PortMetrics::default();
    port_metrics.register(&mut registry);
    routing.register(&mut registry);
    let readiness = routing.readiness();
    let unlisted = readiness.hold("waiting for an index that lists its workers");

    let mut main = TaskGroup::default();
    let mut side = TaskGroup::default();
    let service = RouterService::new(
        Arc::clone(&routing.fleet),
        Arc::clone(&routing.reports),
        requests,
        OpenRequests::new(routing.recorder.clone(), outputs, config.routing.router.active.lease),
        config.routing.queue_timeout,
        main.token(),
    );
    let serving =
        serve(listener, config.process.guard.clone(), service, port_metrics, main.token());
    main.spawn("grpc", async { Ok(serving.await?) });
    let pages = vec![routing.busy_page()];
    let metrics = Metrics::new(registry);
    let guard = config.process.http.guard.clone();
    let ready = readiness.clone();
    let http = http::serve(http_listener, guard, metrics, ready, pages, side.token());
    side.spawn("http", async { Ok(http.await?) });
    routing.start_recorder(&mut side);
    routing.start(&mut main, unlisted);
    Ok(Program { main, side, readiness })
}
