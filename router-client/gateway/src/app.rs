//! Starts the process's tasks and ports, and stops them in order.

use crate::config::{Config, EngineConfig};
use crate::engines::{self, Directory};
use crate::gateway::{Gateway, Parts};
use crate::metrics::GatewayMetrics;
use crate::server::{ServerLimits, SidePages, serve};
use crate::tokens::{FileError, Renderer, Tokens};
use kvasir_engine_http::EngineClient;
use kvasir_process::http::{self, Pages};
use kvasir_process::net::ConnectionMetrics;
use kvasir_process::program::{ListenError, Program, listen};
use kvasir_process::telemetry::{Metrics, Readiness, encode_counter, encode_gauge, new_registry};
use kvasir_router::fleet::Listing;
use kvasir_router::metrics::RequestMetrics;
use kvasir_router::routing::{Routing, RoutingError};
use kvasir_tasks::group::TaskGroup;
use kvasir_tasks::tasks::EndError;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch::Receiver;

/// Why the process ends, other than by a signal.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The index's address or the record file is unusable.
    #[error(transparent)]
    Routing(#[from] RoutingError),
    /// A tokenizer cannot be loaded.
    #[error(transparent)]
    Tokenizer(#[from] FileError),
    /// A port cannot be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A task failed, or the shutdown exceeded its deadline.
    #[error(transparent)]
    End(#[from] EndError),
}

/// Runs a gateway until `signal` is ready, then stops in order: first the port after its requests are answered, and the
/// tasks that list and sync; then the side port.
///
/// # Errors
/// If a file or port cannot be opened, a task fails, or stopping takes too long.
pub async fn run(config: Config, signal: impl Future<Output = ()>) -> Result<(), RunError> {
    let (listener, api) = listen("listen", config.process.listen).await?;
    let (http_listener, http) = listen("http-listen", config.process.http.listen).await?;
    tracing::info!(%api, %http, "listening");
    let drain_timeout = config.process.drain_timeout;
    let started = start(config, listener, http_listener, new_registry(), Readiness::default())?;
    Ok(started.program.run(signal, drain_timeout).await?)
}

/// A started gateway.
#[derive(Debug)]
pub struct Started {
    /// Its tasks.
    pub program: Program,
    /// Receives changes of the workers that it knows.
    pub listed: Receiver<Arc<Listing>>,
}

/// Creates all parts and starts their tasks, with the API's port and the side port. The gateway is not ready before an
/// index has listed its workers, and while `part`, another part of the process, is not ready.
///
/// # Errors
/// If the index's address, the record file or a tokenizer is unusable.
pub fn start(
    config: Config,
    listener: TcpListener,
    http_listener: TcpListener,
    mut registry: Registry,
    part: Readiness,
) -> Result<Started, RunError> {
    let mut routing = Routing::new(&config.routing)?;
    let route_metrics = RequestMetrics::registered(&mut registry);
    let metrics = GatewayMetrics::registered(&mut registry);
    let connections = ConnectionMetrics::default();
    connections.register(&mut registry, "api");
    routing.register(&mut registry);

    let EngineConfig { dialer, connect_timeout, keys, .. } = &config.engines;
    let client = EngineClient::new(dialer.clone(), *connect_timeout, keys.clone());
    let directory = Directory::new(routing.listed(), &config.engines);
    let adapters = engines::watch(directory.clone(), client.clone());
    let render_url = config.tokens.render_url.clone();
    let renderer = Renderer::new(client.clone(), render_url, config.tokens.render_timeout);
    let parts = Parts {
        fleet: Arc::clone(&routing.fleet),
        directory,
        client,
        tokens: Arc::new(Tokens::new(&config.tokens, renderer)?),
        metrics,
        route_metrics,
        recorder: routing.recorder.clone(),
    };
    let limits = ServerLimits {
        connections: config.connections_max,
        in_flight: config.in_flight_max,
        body_bytes: config.body_bytes_max,
        body_timeout: config.body_timeout,
    };
    let mut main = TaskGroup::default();
    let mut side = TaskGroup::default();
    let guard = config.process.guard.clone();
    let side_guard = config.process.http.guard.clone();
    let gateway = Arc::new(Gateway::new(parts, config, main.token()));
    registry.register_collector(Box::new(TokenCounts(Arc::clone(&gateway))));
    let of_routing = routing.problems();
    let of_gateway = gateway.problems();
    let readiness = Readiness::with_problems(move || {
        let mut problems = of_routing();
        problems.extend(of_gateway());
        problems
    });
    let readiness = readiness.with_part(part);
    let unlisted = readiness.hold("waiting for an index that lists its workers");

    let pages = vec![routing.busy_page()];
    let metrics = Metrics::new(registry);
    let shown = Arc::new(Pages::new(metrics.clone(), readiness.clone(), pages.clone()));
    let shown = SidePages { pages: shown, readiness: readiness.clone() };
    let serving = serve((listener, guard), gateway, shown, (limits, connections), main.token());
    main.spawn("api", serving);
    main.spawn_until_stop("adapters", adapters);
    let http =
        http::serve(http_listener, side_guard, metrics, readiness.clone(), pages, side.token());
    side.spawn("http", async { Ok(http.await?) });
    routing.start_recorder(&mut side);
    let listed = routing.listed();
    routing.start(&mut main, unlisted);
    Ok(Started { program: Program { main, side, readiness }, listed })
}

/// Collector of hits and misses of the token cache, and of the endpoints that create tokens.
#[derive(Debug)]
struct TokenCounts(Arc<Gateway>);

impl Collector for TokenCounts {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let (hits, misses) = self.0.token_cache_counts();
        let rows = [("hit", hits), ("miss", misses)];
        let rows = rows.map(|(outcome, count)| (vec![("outcome", outcome.to_owned())], count));
        let help = "Lookups in the token cache, by outcome: hit (tokens known from an earlier prompt) or miss";
        encode_counter(&mut to, "gateway_token_cache", help, rows.into())?;
        let rows = self.0.token_endpoints().into_iter().map(|((endpoint, status), servers)| {
            let labels =
                vec![("endpoint", endpoint.to_owned()), ("render_status", status.to_string())];
            (labels, servers)
        });
        let help =
            "Servers that tokenize prompts, by the endpoint used and by the status of /render";
        encode_gauge(&mut to, "gateway_token_servers", help, rows.collect())
    }
}
