//! Finds blocks in the volume that the manager does not have: from an earlier process, or from other agents.

use futures::{Stream, StreamExt};
use kvasir_blocks::BlockTier;
use kvasir_proto::types::SequenceHash;
use kvasir_tiers::manager::KvBlockManager;
use kvasir_tiers::{Sealed, TransferError, Volume};
use parking_lot::Mutex;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Maximum number of blocks registered in one call.
const BATCH_BLOCKS: usize = 16_384;
/// Maximum number of concurrent lookups in the volume. Further calls skip the lookup.
const LOOKUPS_MAX: usize = 16;
/// Maximum number of blocks that a call looks up at a time, after the first block.
const LOOKUP_BLOCKS: usize = 64;
/// Maximum wait for one answer of the volume.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);
/// How long lookups pause after one that failed or was late. A volume that hangs must not delay every call.
const LOOKUP_PAUSE: Duration = Duration::from_secs(10);

/// Searches a volume for blocks that the manager does not have.
#[derive(Debug, Clone)]
pub(super) struct VolumeSearch {
    pub(super) volume: Arc<Volume>,
    /// Maximum wait for the next block.
    pub(super) timeout: Duration,
    /// Time between two searches; `None` for one search only.
    pub(super) interval: Option<Duration>,
}

impl VolumeSearch {
    /// Searches the volume immediately, then at each interval, until `stop` is cancelled. Without an interval, searches
    /// once.
    pub(super) async fn run(self, manager: Arc<KvBlockManager>, stop: CancellationToken) {
        let searching = async {
            loop {
                self.search(&manager).await;
                match self.interval {
                    Some(interval) => sleep(interval).await,
                    None => pending().await,
                }
            }
        };
        stop.run_until_cancelled(searching).await;
    }

    /// Searches the volume once, and logs the number of registered blocks or the error.
    async fn search(&self, manager: &Arc<KvBlockManager>) {
        let mut registered = 0;
        let ended = self.learn(manager, &mut registered).await;
        if let Err(error) = ended {
            tracing::warn!(%error, registered, "the search of the volume stopped early: some blocks are unknown");
        } else if registered > 0 {
            tracing::info!(registered, "found blocks of the volume");
        }
    }

    /// Lists the volume's blocks, reads the headers of unknown blocks, and registers these blocks until the volume tier
    /// is full. Adds their number to `registered`.
    async fn learn(
        &self,
        manager: &Arc<KvBlockManager>,
        registered: &mut usize,
    ) -> Result<(), TransferError> {
        let pool = || manager.state().pool(BlockTier::Volume);
        let mut names = pin!(self.volume.list());
        let mut is_over = false;
        while !is_over && pool().is_some_and(|pool| pool.stats().free > 0) {
            let mut unknown = Vec::new();
            while unknown.len() < BATCH_BLOCKS && !is_over {
                match self.next(&mut names).await? {
                    Some(name) if pool().is_some_and(|at| at.contains(SequenceHash(name))) => {}
                    Some(name) => unknown.push(name),
                    None => is_over = true,
                }
            }
            let mut headers = pin!(self.volume.blocks(unknown));
            let mut blocks = Vec::new();
            while let Some(block) = self.next(&mut headers).await? {
                blocks.push(block);
            }
            *registered += register(manager, blocks, false).await;
        }
        Ok(())
    }

    async fn next<T>(
        &self,
        stream: &mut (impl Stream<Item = Result<T, TransferError>> + Unpin),
    ) -> Result<Option<T>, TransferError> {
        let late = |_late| TransferError::Late { seconds: self.timeout.as_secs() };
        timeout(self.timeout, stream.next()).await.map_err(late)?.transpose()
    }
}

/// Looks up blocks in the volume by name: other agents may have stored them since the last search.
#[derive(Debug)]
pub(super) struct VolumeLookup {
    volume: Arc<Volume>,
    manager: Arc<KvBlockManager>,
    seats: Arc<Semaphore>,
    failed_at: Mutex<Option<Instant>>,
}

impl VolumeLookup {
    pub(super) fn new(volume: Arc<Volume>, manager: Arc<KvBlockManager>) -> Self {
        let seats = Arc::new(Semaphore::new(LOOKUPS_MAX));
        Self { volume, manager, seats, failed_at: Mutex::default() }
    }

    /// Looks up the blocks of `sequences` that no tier has, in order, until the volume lacks one. Registers the blocks
    /// found. Does nothing if every block is known, after a recent failure, or while [`LOOKUPS_MAX`] lookups run.
    /// Returns after `within`, or after [`LOOKUP_TIMEOUT`] without an answer. The lookup itself is one of `tasks` and
    /// ends when the volume answers or `stop` is cancelled, so a volume that hangs blocks at most [`LOOKUPS_MAX`]
    /// lookups.
    pub(super) async fn register(
        self: &Arc<Self>,
        sequences: &[SequenceHash],
        within: Duration,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) {
        let unknown = self.manager.state().unknown(sequences);
        if unknown.is_empty() || self.is_paused() {
            return;
        }
        let Ok(seat) = Arc::clone(&self.seats).try_acquire_owned() else { return };
        let (done, is_done) = oneshot::channel();
        let lookup = Arc::clone(self);
        let stop = stop.clone();
        tasks.spawn(async move {
            let _seat = seat;
            stop.run_until_cancelled(lookup.run(unknown, done)).await
        });
        // Late or finished: blocks registered by now can be onboarded.
        drop(timeout(within, is_done).await);
    }

    /// Looks up and registers `unknown` blocks, in growing parts. Drops `done` when the lookup ends, or when the volume
    /// does not answer within [`LOOKUP_TIMEOUT`].
    async fn run(&self, unknown: Vec<SequenceHash>, done: oneshot::Sender<()>) {
        let mut done = Some(done);
        let mut rest = &unknown[..];
        let mut size = 1;
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(size.min(rest.len()));
            let mut reading = pin!(self.headers(part));
            let (blocks, error) = match timeout(LOOKUP_TIMEOUT, &mut reading).await {
                Ok(read) => read,
                Err(_late) => {
                    self.pause(&TransferError::Late { seconds: LOOKUP_TIMEOUT.as_secs() });
                    drop(done.take());
                    reading.await
                }
            };
            let is_complete = blocks.len() == part.len();
            register(&self.manager, blocks, true).await;
            if let Some(error) = &error {
                self.pause(error);
            }
            if !is_complete || done.is_none() {
                break;
            }
            // Usually the volume lacks the first block already, which costs one request.
            (rest, size) = (behind, LOOKUP_BLOCKS);
        }
    }

    /// Reads the headers of the named blocks. Returns the readable headers and the first error.
    async fn headers(&self, names: &[SequenceHash]) -> (Vec<Sealed>, Option<TransferError>) {
        let names = names.iter().map(|name| name.0).collect();
        let mut blocks = Vec::new();
        let mut error = None;
        let mut headers = pin!(self.volume.blocks(names));
        while let Some(header) = headers.next().await {
            match header {
                Ok(block) => blocks.push(block),
                Err(failed) => error = error.or(Some(failed)),
            }
        }
        (blocks, error)
    }

    fn pause(&self, error: &TransferError) {
        tracing::warn!(%error, pause = ?LOOKUP_PAUSE, "the volume can't be read: blocks of other agents are not looked up");
        *self.failed_at.lock() = Some(Instant::now());
    }

    fn is_paused(&self) -> bool {
        self.failed_at.lock().is_some_and(|at| at.elapsed() < LOOKUP_PAUSE)
    }
}

/// Registers blocks as far as there is room. With `evicts`, unused blocks make room. Returns how many were new.
async fn register(manager: &Arc<KvBlockManager>, blocks: Vec<Sealed>, evicts: bool) -> usize {
    if blocks.is_empty() {
        return 0;
    }
    let manager = Arc::clone(manager);
    // A panic is in the log.
    spawn_blocking(move || manager.restore_volume(&blocks, evicts)).await.unwrap_or_default()
}
