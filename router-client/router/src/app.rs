//! The process: its tasks and ports, run and stopped in order.

use crate::config::Config;
use crate::grpc::{RouterService, serve};
use crate::metrics::RequestMetrics;
use crate::recorder::OpenRequests;
use crate::routing::{Routing, RoutingError};
use kvasir_process::http;
use kvasir_process::port::PortMetrics;
use kvasir_process::tasks::{self, EndError, Ended, Tasks};
use kvasir_process::telemetry::{Metrics, Readiness, new_registry};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::select;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Why the process ends, other than by a signal.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The index cannot be asked, or requests cannot be written down.
    #[error(transparent)]
    Routing(#[from] RoutingError),
    /// A port cannot be opened.
    #[error(
        "{option}: cannot listen on {address}: {error}; choose another address with --{option}"
    )]
    Listen {
        /// The option.
        option: &'static str,
        /// The address.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// A task failed, or stopping took longer than it may.
    #[error(transparent)]
    End(#[from] EndError),
}

/// What runs in the background.
struct Running {
    tasks: Tasks,
    /// The side port, which stops last.
    side: Tasks,
    stop: CancellationToken,
    stop_http: CancellationToken,
    readiness: Readiness,
}

/// Runs a router until `signal` is ready, then stops in order: first the gRPC port, once its calls are answered, and all
/// that lists, reports and syncs; then the side port.
///
/// # Errors
/// If a port cannot be had, a task fails, or stopping takes too long.
pub async fn run(config: Config, signal: impl Future<Output = ()>) -> Result<(), RunError> {
    let (listener, http_listener) = listen(&config).await?;
    let drain_timeout = config.process.drain_timeout;
    let mut running = start(&config, listener, http_listener)?;
    let fault = select! {
        () = pin!(signal) => None,
        fault = running.tasks.next_ended() => fault,
        fault = running.side.next_ended() => fault,
    };
    if let Some(Ended { name, outcome }) = &fault {
        tracing::error!(task = name, ?outcome, "a task ended early: the router stops");
    }
    let stopping = running.readiness.hold("stopping");
    tracing::info!("stopping");
    let deadline = Instant::now() + drain_timeout;
    running.stop.cancel();
    let is_stopped = running.tasks.end(deadline).await;
    // Until now it showed that the router stops.
    running.stop_http.cancel();
    let is_clean = running.side.end(deadline).await && is_stopped;
    drop(stopping);
    tasks::end(fault, is_clean, drain_timeout)?;
    tracing::info!("stopped");
    Ok(())
}

async fn listen(config: &Config) -> Result<(TcpListener, TcpListener), RunError> {
    let bind = async |option, address| {
        let bound = TcpListener::bind(address).await;
        bound.map_err(|error| RunError::Listen { option, address, error })
    };
    let grpc = bind("listen", config.process.listen).await?;
    let http = bind("http-listen", config.process.http.listen).await?;
    tracing::info!(
        grpc = grpc.local_addr().ok().map(tracing::field::display),
        http = http.local_addr().ok().map(tracing::field::display),
        "listening"
    );
    Ok((grpc, http))
}

fn start(
    config: &Config,
    listener: TcpListener,
    http_listener: TcpListener,
) -> Result<Running, RunError> {
    let mut routing = Routing::new(&config.routing)?;
    let mut registry = new_registry();
    let requests = RequestMetrics::registered(&mut registry);
    let port_metrics = PortMetrics::default();
    port_metrics.register(&mut registry);
    routing.register(&mut registry);
    let readiness = routing.readiness();
    let unlisted = readiness.hold("waiting for an index that lists its workers");

    let (stop, stop_http) = (CancellationToken::new(), CancellationToken::new());
    let mut tasks = Tasks::default();
    let service = RouterService::new(
        Arc::clone(&routing.fleet),
        Arc::clone(&routing.reports),
        requests,
        OpenRequests::new(routing.recorder.clone(), config.routing.router.active.lease),
        config.routing.queue_timeout,
        stop.clone(),
    );
    let serving =
        serve((listener, config.process.guard.clone()), service, port_metrics, stop.clone());
    tasks.spawn("grpc", async { Ok(serving.await?) });
    let pages = vec![routing.busy_page()];
    let metrics = Metrics::new(registry);
    let guard = config.process.http.guard.clone();
    let ready = readiness.clone();
    let http = http::serve(http_listener, guard, metrics, ready, pages, stop_http.clone());
    let mut side = Tasks::default();
    side.spawn("http", async { Ok(http.await?) });
    routing.start_recorder(&mut side, &stop_http);
    routing.start(&mut tasks, &stop, unlisted);
    Ok(Running { tasks, side, stop, stop_http, readiness })
}
