//! gRPC service `kvasir.v1.WorkerLoads` of an agent.

use super::ServiceConfig;
use super::config::LOADS_QUEUED_MAX;
use super::outlet::{CutOff, Sent, failed, refused};
use crate::load::{Known, LoadBoard};
use kvasir_process::access::{check_served, check_worker};
use kvasir_process::port::principal;
use kvasir_proto::code::ErrorCode;
use kvasir_proto::convert::{LoadsQuery, WorkerAddress, WorkerLoad};
use kvasir_proto::pb;
use kvasir_proto::pb::worker_loads_server::WorkerLoads;
use std::sync::Arc;
use std::time::Duration;
use tokio::select;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};

/// gRPC service `WorkerLoads` for one worker's board.
#[derive(Debug)]
pub struct WorkerLoadsService {
    address: WorkerAddress,
    board: Arc<LoadBoard>,
    config: ServiceConfig,
    refresh_interval: Duration,
    watchers: Arc<Semaphore>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

type Part = Result<pb::WatchLoadsResponse, Status>;

/// One stream of loads.
struct Watcher {
    address: WorkerAddress,
    board: Arc<LoadBoard>,
    min_interval: Duration,
    refresh_interval: Duration,
    stall_timeout: Duration,
    parts: mpsc::Sender<Part>,
}

impl WorkerLoadsService {
    /// Creates the service. Its streams end once `stop` is cancelled. Readers receive all ranks every
    /// `refresh_interval`, which must not be 0.
    #[must_use]
    pub fn new(
        address: WorkerAddress,
        board: Arc<LoadBoard>,
        config: ServiceConfig,
        refresh_interval: Duration,
        stop: CancellationToken,
    ) -> Self {
        let watchers = Arc::new(Semaphore::new(config.watchers_max));
        let tasks = TaskTracker::new();
        Self { address, board, config, refresh_interval, watchers, tasks, stop }
    }

    /// Waits until all streams have ended, after the stop.
    pub(super) async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Watcher {
    /// Sends all loads, then changes, at most one message per `min_interval`; all loads again at each
    /// `refresh_interval`. Ends if the reader leaves, or reads nothing for `stall_timeout`.
    async fn run(&self) -> Sent {
        let mut changes = self.board.changes();
        let first = Instant::now() + self.refresh_interval;
        let mut refreshes = interval_at(first, self.refresh_interval);
        refreshes.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen = None;
        loop {
            // The queue slot comes first, so that the message has the newest loads.
            let place = timeout(self.stall_timeout, self.parts.reserve()).await;
            let place = place.map_err(|_late| CutOff)?.map_err(|_gone| CutOff)?;
            changes.borrow_and_update();
            let (version, known) = self.board.since(seen.unwrap_or(0));
            if seen.is_none() || !known.is_empty() {
                place.send(Ok(self.part(&known)));
            }
            seen = Some(version);
            select! {
                () = self.parts.closed() => return Err(CutOff),
                () = sleep(self.min_interval) => {}
            }
            select! {
                () = self.parts.closed() => return Err(CutOff),
                // Cannot fail: the board outlives its readers.
                _changed = changes.changed() => {}
                _ = refreshes.tick() => seen = Some(0),
            }
        }
    }

    fn part(&self, known: &[Known]) -> pb::WatchLoadsResponse {
        let loads = known.iter().map(|known| known.load(&self.address)).collect();
        pb::WatchLoadsResponse { loads }
    }
}

#[tonic::async_trait]
impl WorkerLoads for WorkerLoadsService {
    type WatchLoadsStream = ReceiverStream<Part>;

    /// Stores the load that a worker reports. Fails for another worker, or if a value is out of range.
    async fn report_load(
        &self,
        request: Request<pb::ReportLoadRequest>,
    ) -> Result<Response<pb::ReportLoadResponse>, Status> {
        let principal = principal(&request)?;
        let load = WorkerLoad::try_from(request.into_inner()).map_err(refused)?;
        check_worker(&principal, &load.address)?;
        check_served(&principal, &load.address, &self.address)?;
        let published = self.board.publish(load.rank, load.metrics, load.age);
        published.map_err(|error| failed(error.code(), format_args!("load.{error}")))?;
        Ok(Response::new(pb::ReportLoadResponse {}))
    }

    /// Starts a stream of the worker's loads. Fails if `watchers_max` readers watch already.
    async fn watch_loads(
        &self,
        request: Request<pb::WatchLoadsRequest>,
    ) -> Result<Response<Self::WatchLoadsStream>, Status> {
        let principal = principal(&request)?;
        let query = LoadsQuery::try_from(request.into_inner()).map_err(refused)?;
        check_served(&principal, &query.address, &self.address)?;
        let place = Arc::clone(&self.watchers).try_acquire_owned().map_err(|_full| {
            let limit = self.config.watchers_max;
            let text = format_args!("{limit} readers watch already: ask later");
            failed(ErrorCode::ResourceExhausted, text)
        })?;
        let (parts, stream) = mpsc::channel(LOADS_QUEUED_MAX);
        let watcher = Watcher {
            address: query.address,
            board: Arc::clone(&self.board),
            min_interval: query.min_interval,
            refresh_interval: self.refresh_interval,
            stall_timeout: self.config.stall_timeout,
            parts,
        };
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            let _place = place;
            select! {
                () = stop.cancelled() => {
                    let end = Err(Status::unavailable("the agent is stopping"));
                    // Fails if the reader is gone or reads too slowly. Such a reader misses the message.
                    let _sent = watcher.parts.try_send(end);
                }
                // A client that was cut off sees this from its stream.
                _cut_off = watcher.run() => {}
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

#[cfg(test)]
#[path = "loads_test.rs"]
mod tests;
