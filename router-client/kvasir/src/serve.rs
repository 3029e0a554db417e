//! `kvasir serve`: index, router and gateway in one process.

use crate::config::Config;
use crate::parts::Parts;
use crate::watch::{Followed, Status, check_engines};
use indexer_server::app::{App, BuildError};
use kvasir_gateway::app::{self, Started};
use kvasir_process::program::listen;
use kvasir_process::telemetry::{Readiness, new_registry};
use kvasir_tasks::group::TaskGroup;
use kvasir_tasks::tasks::end;
use std::sync::Arc;
use tokio::select;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// The index's address is another option here.
fn of_index(error: BuildError) -> anyhow::Error {
    match error {
        BuildError::Bind { address, error, .. } => {
            anyhow::anyhow!(
                "listen-index: cannot listen on {address}: {error}; choose another address"
            )
        }
        other @ (BuildError::Config(_)
        | BuildError::Broker(_)
        | BuildError::Sibling { .. }
        | BuildError::Signal(_)
        | BuildError::Writer(_)) => other.into(),
    }
}

/// Maximum number of engines that wait for their check.
const UNCHECKED_MAX: usize = 64;

/// Runs until `stopping` is ready, then stops in order: the gateway first, then the index.
///
/// # Errors
/// If a port, file or folder cannot be used, a task fails, or stopping takes too long.
pub async fn run(config: Config, stopping: impl Future<Output = ()>) -> anyhow::Result<()> {
    let process = &config.gateway.process;
    let (listener, api) = listen("listen", process.listen).await?;
    let (http_listener, http) = listen("http-listen", process.http.listen).await?;
    let drain_timeout = process.drain_timeout;
    let mut registry = new_registry();
    let index = Box::pin(App::build_within(config.index.clone(), &mut registry)).await;
    let index = index.map_err(of_index)?;
    let at = index.grpc_address().map(tracing::field::display);
    tracing::info!(%api, %http, index = at, "listening");
    let parts = Parts::new(&config, index.local())?;
    let started = index.started();
    let status = Arc::new(Status::default());
    let shown = Arc::clone(&status);
    let readiness = Readiness::with_problems(move || shown.problems());
    let unproven = readiness.hold("waiting for the first engine");
    let whole = readiness.clone().with_part(index.readiness());
    let mut gateway = config.gateway;
    gateway.routing.dialer = parts.dialer.clone();
    let started_gateway = app::start(gateway, listener, http_listener, registry, whole)?;
    let Started { program, listed } = started_gateway;

    let mut tasks = TaskGroup::default();
    let (stop_index, index_stops) = oneshot::channel::<()>();
    tasks.spawn("index", async move {
        let stopped = async { drop(index_stops.await) };
        Ok(Box::pin(index.run(stopped)).await?)
    });
    let (due, unchecked) = mpsc::channel(UNCHECKED_MAX);
    let hangup = signal(SignalKind::hangup())?;
    let followed = Followed {
        status: Arc::clone(&status),
        readiness: readiness.clone(),
        unchecked: due,
        empty: None,
    };
    tasks.spawn_until_stop("engines", async move {
        started.cancelled().await;
        Box::pin(parts.engines.follow(hangup, followed)).await;
    });
    let checking = check_engines(parts.checker, unchecked, status, unproven, listed);
    tasks.spawn_until_stop("checks", checking);
    let mut early = None;
    let signal = async {
        select! {
            () = stopping => {}
            ended = tasks.next_ended() => early = ended,
        }
    };
    let outcome = program.run(signal, drain_timeout).await;
    let _stops = stop_index.send(());
    let is_clean = tasks.stop_by(Instant::now() + drain_timeout).await;
    outcome?;
    Ok(end(early, is_clean, drain_timeout)?)
}
