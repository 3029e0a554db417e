use super::{Known, LoadError, Loads, Totals};
use kvasir_proto::types::{DpRank, WorkerMetrics};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::select;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// What is known of a worker's ranks, as tasks share it.
#[derive(Debug)]
pub struct LoadBoard {
    loads: Mutex<Loads>,
    /// Changes so far.
    version: watch::Sender<u64>,
    /// Something was reported, changed or not.
    reported: watch::Sender<()>,
}

impl LoadBoard {
    /// Nothing is known yet. What is not reported again within `stale_after` is dropped.
    #[must_use]
    pub fn new(totals: Totals, stale_after: Duration) -> Self {
        let loads = Mutex::new(Loads::new(totals, stale_after));
        Self { loads, version: watch::Sender::new(0), reported: watch::Sender::new(()) }
    }

    /// A rank was so busy, so long ago.
    ///
    /// # Errors
    /// If the rank or a value is out of range: then nothing has changed.
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
        self.note(version);
        self.reported.send_replace(());
        Ok(())
    }

    /// What changed after the first `version` changes, and how many there are now.
    #[must_use]
    pub fn since(&self, version: u64) -> (u64, Vec<Known>) {
        let loads = self.loads.lock();
        (loads.version(), loads.since(version, Instant::now()))
    }

    /// Notifies of every change; the value is the number of changes.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Drops what was not reported for too long, until `stop` is cancelled.
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
                // The board outlives its keeper.
                _reported = reported.changed() => {}
                () = forget => {
                    let mut loads = self.loads.lock();
                    loads.expire(Instant::now());
                    let version = loads.version();
                    drop(loads);
                    self.note(version);
                }
            }
        }
    }

    /// Those who come here side by side may come in another order.
    fn note(&self, version: u64) {
        self.version.send_if_modified(|known| {
            let changed = version > *known;
            *known = version.max(*known);
            changed
        });
    }
}

/// Reports how busy ranks are: for engines that embed the agent. All calls return at once, from any thread.
#[derive(Debug, Clone)]
pub struct WorkerMetricsPublisher {
    board: Arc<LoadBoard>,
}

impl WorkerMetricsPublisher {
    /// Publishes to a board.
    #[must_use]
    pub const fn new(board: Arc<LoadBoard>) -> Self {
        Self { board }
    }

    /// Reports how busy a rank is, in place of the report before; report it again before
    /// [`LoadConfig::stale_after`](super::LoadConfig::stale_after) is over.
    ///
    /// # Errors
    /// If the rank or a value is out of range: then nothing has changed.
    pub fn publish(&self, rank: DpRank, metrics: WorkerMetrics) -> Result<(), LoadError> {
        self.board.publish(rank, metrics, Duration::ZERO)
    }
}
