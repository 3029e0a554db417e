//! Runs the process: the agent and its side port, started together and stopped in order.

#[cfg(feature = "blocks")]
mod blocks;
mod metrics;
mod view;

use crate::agent::{Agent, AgentError};
use crate::config::Config;
use kvasir_process::http;
use kvasir_process::program::{ListenError, listen};
use kvasir_process::telemetry::{Metrics, Readiness, new_registry};
use kvasir_tasks::tasks::{self, EndError, Ended, Tasks};
use metrics::AgentMetrics;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::select;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use view::View;

/// Maximum time for clients of the side port during the shutdown.
const HTTP_TIMEOUT: Duration = Duration::from_secs(1);

/// Why the process ends, other than by a signal.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The agent cannot start.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The side port cannot be opened.
    #[error(transparent)]
    Http(#[from] ListenError),
    /// A task failed, or the shutdown exceeded its deadline. Then an index may lack the last batches.
    #[error(transparent)]
    End(#[from] EndError),
}

/// Runs an agent until `signal` is ready, then stops in order: sources, uplinks once indexes have the journal's
/// batches, ports.
///
/// # Errors
/// If a port cannot be opened, the configuration is inconsistent, or the shutdown exceeds its deadline.
pub async fn run(config: Config, signal: impl Future<Output = ()>) -> Result<(), RunError> {
    let (listener, http_address) = listen("http-listen", config.http.listen).await?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let indexers = config.agent.indexers.clone();
    let has_disk = config.agent.journal_dir.is_some();
    let mut agent = Agent::start(config.agent).await?;
    let mut registry = new_registry();
    let view = Arc::new(View::of_agent(&agent, indexers, has_disk));
    agent.port_metrics().register(&mut registry);
    registry.register_collector(Box::new(AgentMetrics(Arc::clone(&view))));
    #[cfg(feature = "blocks")]
    if let Some(blocks) = agent.blocks() {
        if let Some(connections) = blocks.peer_connections() {
            connections.register(&mut registry, "agent_blocks_peer");
        }
        registry.register_collector(Box::new(blocks::BlocksMetrics(Arc::clone(blocks))));
    }
    let readiness = Readiness::with_problems(move || view.problems());
    let stop_http = CancellationToken::new();
    let mut side = Tasks::default();
    let serving = http::serve(
        listener,
        config.http.guard,
        Metrics::new(registry),
        readiness.clone(),
        Vec::new(),
        stop_http.clone(),
    );
    side.spawn("http", async { Ok(serving.await?) });
    let grpc = agent.local_address();
    tracing::info!(grpc = grpc.map(tracing::field::display), http = %http_address, "listening");
    let unsettled = readiness.hold("waiting for an engine that shows whether it survived");
    let feed = Arc::clone(agent.hub().feed());
    let settling = async {
        feed.until_settled().await;
        drop(unsettled);
        pending().await
    };
    let fault = select! {
        () = pin!(signal) => None,
        fault = side.next_ended() => fault,
        fault = agent.fault() => Some(fault),
        () = settling => None,
    };
    if let Some(Ended { name, outcome }) = &fault {
        tracing::error!(task = name, ?outcome, "a task ended early: the agent stops");
    }
    let stopping = readiness.hold("stopping");
    tracing::info!("stopping");
    let is_clean = agent.stop(config.drain_timeout).await;
    stop_http.cancel();
    // Remaining clients are cut off with the runtime.
    let _late = timeout(HTTP_TIMEOUT, side.next_ended()).await;
    drop(stopping);
    tasks::end(fault, is_clean, config.drain_timeout)?;
    tracing::info!("stopped");
    Ok(())
}
