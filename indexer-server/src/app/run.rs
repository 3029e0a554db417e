use super::App;
use super::build::SidePort;
use super::checkpoints::CheckpointParts;
use super::map::register_configured;
use super::restore::{self, Configured, Plan, Ways};
use crate::config::Config;
use crate::grpc::{self, Parts};
use crate::ingest::{Ingest, IngestError};
use crate::partitions::{Origin, Speculation, WriterThreads};
use kvasir_process::access::Guard;
use kvasir_process::http;
use kvasir_process::telemetry::Readiness;
use kvasir_tasks::group::TaskGroup;
use kvasir_tasks::tasks::Ended;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::select;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

/// Name of the task that ends once all workers are restored and copied.
const RESTORE: &str = "restore";

/// Interval of the search for publishers without a stream.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);

/// Interval of dropping expired placements. Queries ignore expired placements even before.
const PLACEMENT_EXPIRY_INTERVAL: Duration = Duration::from_secs(1);

/// Fraction of the drain timeout for clients. The rest is for their remaining work.
const CLIENTS_SHARE: f64 = 0.75;
/// Fraction of the drain timeout for clients of the side port, at the end.
const HTTP_SHARE: f64 = 0.1;

/// Why the process ended, other than by a signal.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A configured worker cannot be registered.
    #[error("worker {worker}: {error}")]
    Worker {
        /// The worker.
        worker: String,
        /// The reason.
        error: IngestError,
    },
    /// Purging the stored state failed.
    #[error("reset-states: {0:#}")]
    Reset(#[source] anyhow::Error),
    /// A task ended unexpectedly.
    #[error("{name} ended: {reason}")]
    Task {
        /// The task.
        name: &'static str,
        /// The reason.
        reason: String,
    },
    /// Stopping exceeded the drain timeout. Some events were not applied.
    #[error("drain-timeout: stopping took longer than {0:?}")]
    DrainTimeout(Duration),
}

/// Runs a server until `signal` is ready.
///
/// # Errors
/// If the server cannot be built, a task ends early, or stopping takes too long.
pub async fn serve(config: Config, signal: impl Future<Output = ()>) -> anyhow::Result<()> {
    let app = App::build(config).await?;
    if let (Some(grpc), Some(http)) = (app.grpc_address(), app.http_address()) {
        tracing::info!(%grpc, %http, "listening");
    }
    Box::pin(app.run(signal)).await?;
    Ok(())
}

/// Running components, stopped in order.
struct Running {
    /// Everything that serves and reads, which stops first.
    main: TaskGroup,
    checkpoints: TaskGroup,
    side: TaskGroup,
    ingest: Arc<Ingest>,
    readiness: Readiness,
    writer_threads: WriterThreads,
}

impl App {
    /// Serves until `signal` is ready, then stops in order. New requests are refused, streams end, sources are
    /// detached, the writers finish, and the side port closes last.
    ///
    /// # Errors
    /// If a configured worker is refused, a task ends early, or stopping takes too long.
    pub async fn run(self, signal: impl Future<Output = ()>) -> Result<(), RunError> {
        let drain_timeout = self.config.drain_timeout;
        let mut signal = pin!(signal);
        let mut running = select! {
            () = &mut signal => {
                // No component has started that would need a clean stop.
                tracing::info!("stopped while starting");
                return Ok(());
            }
            running = self.start() => running?,
        };
        let early = select! {
            () = signal => None,
            ended = running.fault() => Some(ended),
        };
        if let Some(Ended { name, .. }) = &early {
            tracing::error!(task = name, "a task ended early: the server stops");
        } else {
            tracing::info!("stopping");
        }
        let drained = timeout(drain_timeout, running.drain(drain_timeout)).await;
        match (early, drained) {
            (Some(ended), _) => Err(task_error(ended)),
            (None, Err(_late)) => Err(RunError::DrainTimeout(drain_timeout)),
            (None, Ok(drained)) => drained,
        }
    }

    /// Starts all tasks. The restore is planned before queries are answered, and runs beside them. The broker is read
    /// after the restore.
    async fn start(self) -> Result<Running, RunError> {
        let stop = self.parts.stop.clone();
        let mut main = TaskGroup::stopped_by(stop.clone());
        let mut side = TaskGroup::default();
        let mut checkpointing = TaskGroup::default();
        let readiness = self.readiness;
        if let Some(port) = self.side_port {
            spawn_side_port(&mut side, port, self.config.http.guard, readiness.clone());
        }
        let ingest = Arc::clone(&self.parts.ingest);
        // Agents reach the server only through the broker.
        ingest.set_input_paused(self.broker.is_some());
        let workers = self.config.workers;
        let restored = CancellationToken::new();
        let mut map_follower = self.map_follower;
        if let Some(follower) = &mut map_follower {
            follower.adopt_first_map(&ingest, &workers).await;
        }
        let not_ready = readiness.hold("restoring");
        let mut checkpoints = self.checkpoints;
        let siblings = self.siblings;
        let mut plan = Plan::default();
        let configured = Configured { workers: &workers, has_list: self.engines.is_some() };
        if let Some(parts) = &mut checkpoints {
            let stored = parts.stored(&not_ready).await.map_err(RunError::Reset)?;
            plan = restore::plan(&ingest, stored, configured).await;
        }
        siblings.add_to(&mut plan, &ingest, configured, &not_ready).await;
        let restorer = checkpoints.as_ref().map(|parts| parts.restorer.clone());
        let ways = Ways { restorer, copier: siblings.copier };
        let bringing = restore::run(plan, ways, Arc::clone(&ingest), not_ready, stop.clone());
        let done = restored.clone().drop_guard();
        main.spawn(RESTORE, async move {
            let _done = done;
            bringing.await
        });
        if let Some(parts) = checkpoints {
            let CheckpointParts { checkpointer, snapshots, .. } = parts;
            if let Some((snapshots, on_disk)) = snapshots {
                main.spawn("snapshots", snapshots.run(on_disk, stop.clone()));
            }
            checkpointing.spawn("checkpoints", checkpointer.run(checkpointing.token()));
        }
        register_configured(&ingest, &workers)
            .await
            .map_err(|(worker, error)| RunError::Worker { worker, error })?;
        if let Some(follower) = map_follower {
            main.spawn("shard map", follower.run(Arc::clone(&ingest), workers, stop.clone()));
        }
        if let Some(broker) = self.broker {
            let ingest = Arc::clone(&ingest);
            let stop = stop.clone();
            main.spawn("broker", async move {
                // Restore the checkpoint and copy from siblings first.
                restored.cancelled().await;
                Box::pin(broker.run(ingest, stop)).await;
            });
        }
        spawn_expiry(&mut main, &self.parts);
        if let Some(engines) = self.engines {
            let reached = (self.config.dialer, self.config.ingest.worker_timeout);
            main.spawn("engines", engines.run(self.parts.clone(), reached, stop.clone()));
        }
        let grpc = self.config.grpc;
        main.spawn("grpc", async move {
            Ok(grpc::serve(self.grpc_listener, &grpc, self.parts, self.grpc_metrics).await?)
        });
        drop(self.starting);
        self.started.cancel();
        let writer_threads = self.writer_threads;
        Ok(Running { main, checkpoints: checkpointing, side, ingest, readiness, writer_threads })
    }
}

impl Running {
    /// Waits for a task that ends before the server stops.
    async fn fault(&mut self) -> Ended {
        let groups = &mut [&mut self.main, &mut self.checkpoints, &mut self.side];
        TaskGroup::first_fault(groups, RESTORE).await
    }

    /// Stops the server within `limit`: first clients, then the input, then the last checkpoint, then the writer
    /// threads, and the side port last.
    async fn drain(mut self, limit: Duration) -> Result<(), RunError> {
        let stopping = self.readiness.hold("stopping");
        let mut failed = None;
        let clients = self.main.stop(&mut failed);
        if timeout(limit.mul_f64(CLIENTS_SHARE), clients).await.is_err() {
            tracing::warn!("closing the connections of remaining clients");
        }
        self.ingest.stop().await;
        self.checkpoints.stop(&mut failed).await;
        self.writer_threads.stop().await;
        let clients = self.side.stop(&mut failed);
        if timeout(limit.mul_f64(HTTP_SHARE), clients).await.is_err() {
            tracing::warn!("closing the connections of remaining clients of the side port");
        }
        drop(stopping);
        tracing::info!("stopped");
        // What failed meanwhile.
        let _late = timeout(Duration::ZERO, self.main.stop(&mut failed)).await;
        failed.map_or(Ok(()), |ended| Err(task_error(ended)))
    }
}

fn spawn_side_port(group: &mut TaskGroup, port: SidePort, guard: Guard, readiness: Readiness) {
    let SidePort { listener, metrics, .. } = port;
    let http = http::serve(listener, guard, metrics, readiness, Vec::new(), group.token());
    group.spawn("http", async { Ok(http.await?) });
}

fn task_error(Ended { name, outcome }: Ended) -> RunError {
    let reason = outcome.err().map_or_else(|| "early".to_owned(), |error| format!("{error:#}"));
    RunError::Task { name, reason }
}

/// Spawns the tasks that drop expired sources and placements.
fn spawn_expiry(group: &mut TaskGroup, parts: &Parts) {
    let stop = group.token();
    group.spawn("expiry", expire_publishers(Arc::clone(&parts.ingest), stop.clone()));
    let speculation = Arc::clone(&parts.speculation);
    group.spawn("placement expiry", expire_placements(speculation, parts.origin, stop));
}

/// Removes expired sources and workers at an interval, until `stop` is cancelled.
async fn expire_publishers(ingest: Arc<Ingest>, stop: CancellationToken) -> anyhow::Result<()> {
    let mut ticks = interval(EXPIRY_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        select! {
            () = stop.cancelled() => return Ok(()),
            _ = ticks.tick() => ingest.expire().await?,
        }
    }
}

/// Drops expired placements at an interval, until `stop` is cancelled.
async fn expire_placements(
    speculation: Arc<Speculation>,
    origin: Origin,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut ticks = interval(PLACEMENT_EXPIRY_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        select! {
            () = stop.cancelled() => return Ok(()),
            _ = ticks.tick() => {}
        }
        select! {
            () = stop.cancelled() => return Ok(()),
            () = speculation.expire(origin.elapsed()) => {}
        }
    }
}
