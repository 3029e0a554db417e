use super::{Known, LoadError, Loads, Totals};
use kvasir_proto::types::{DpRank, WorkerMetrics};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::select;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// Loads of a worker's ranks, shared by tasks.
#[derive(Debug)]
pub struct LoadBoard {
    loads: Mutex<Loads>,
    /// Number of changes so far.
    version: watch::Sender<u64>,
    /// Notified of every report, even without a change.
    reported: watch::Sender<()>,
}

impl LoadBoard {
    /// Creates an empty board. A load that is not reported again within `stale_after` is dropped.
    #[must_use]
    pub fn new(totals: Totals, stale_after: Duration) -> Self {
        let loads = Mutex::new(Loads::new(totals, stale_after));
        Self { loads, version: watch::Sender::new(0), reported: watch::Sender::new(()) }
    }

    /// Stores the load of a rank, measured `age` ago.
    ///
    /// # Errors
    /// If the rank or a value is out of range. Then the board is unchanged.
    pub fn publish(
        &self,
        rank: DpRank,
        metrics: WorkerMetrics,
        age: Duration,
    ) -> Result<(), LoadError> {
        let mut loads = self.loads.lock();
        loads.publish(rank, metrics, age, Instant::now())?;
        let version = loads.version();
        drop(loads);
        self.announce_version(version);
        self.reported.send_replace(());
        Ok(())
    }

    /// Ranks that changed after the first `version` changes, and the number of changes so far.
    #[must_use]
    pub fn since(&self, version: u64) -> (u64, Vec<Known>) {
        let loads = self.loads.lock();
        (loads.version(), loads.since(version, Instant::now()))
    }

    /// Receiver that is notified of every change. The value is the number of changes.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Expires loads that were not reported for too long, until `stop` is cancelled.
    pub async fn run(&self, stop: CancellationToken) {
        let mut reported = self.reported.subscribe();
        loop {
            let expiry = self.loads.lock().next_expiry();
            let forget = async {
                match expiry {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            select! {
                () = stop.cancelled() => return,
                // Cannot fail: `self` owns the sender.
                _reported = reported.changed() => {}
                () = forget => {
                    let mut loads = self.loads.lock();
                    loads.expire(Instant::now());
                    let version = loads.version();
                    drop(loads);
                    self.announce_version(version);
                }
            }
        }
    }

    /// Concurrent callers may arrive in another order.
    fn announce_version(&self, version: u64) {
        self.version.send_if_modified(|known| {
            let changed = version > *known;
            *known = version.max(*known);
            changed
        });
    }
}

/// Reports loads of ranks, for engines that embed the agent. Calls never wait, and are allowed from any thread.
#[derive(Debug, Clone)]
pub struct WorkerMetricsPublisher {
    board: Arc<LoadBoard>,
}

impl WorkerMetricsPublisher {
    /// Creates a publisher to a board.
    #[must_use]
    pub const fn new(board: Arc<LoadBoard>) -> Self {
        Self { board }
    }

    /// Reports the load of a rank, in place of the earlier report. Report it again within
    /// [`LoadConfig::stale_after`](super::LoadConfig::stale_after).
    ///
    /// # Errors
    /// If the rank or a value is out of range. Then the board is unchanged.
    pub fn publish(&self, rank: DpRank, metrics: WorkerMetrics) -> Result<(), LoadError> {
        self.board.publish(rank, metrics, Duration::ZERO)
    }
}
