//! Blocks in the volume that the manager does not know: from an earlier process, and from other agents.

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
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Most blocks that are registered at once.
const BATCH_BLOCKS: usize = 16_384;
/// Most calls that look blocks up in the volume at a time. A further call does not look there.
const LOOKUPS_MAX: usize = 16;
/// Most blocks that a call looks up at a time, after the first one.
const LOOKUP_BLOCKS: usize = 64;
/// After a lookup that failed, no call looks blocks up for this long: a volume that hangs must not delay every call.
const LOOKUP_PAUSE: Duration = Duration::from_secs(10);

/// Searches a volume for blocks that the manager does not know.
#[derive(Debug, Clone)]
pub(super) struct VolumeSearch {
    pub(super) volume: Arc<Volume>,
    /// Longest wait for the next block.
    pub(super) timeout: Duration,
    /// Time between two searches; none for one search only.
    pub(super) interval: Option<Duration>,
}

impl VolumeSearch {
    /// Searches at once, then at each interval, until `stop` is cancelled.
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

    async fn search(&self, manager: &Arc<KvBlockManager>) {
        let mut registered = 0;
        let ended = self.learn(manager, &mut registered).await;
        if let Err(error) = ended {
            tracing::warn!(%error, registered, "the volume was not searched to its end: blocks in it may not be found");
        } else if registered > 0 {
            tracing::info!(registered, "blocks of the volume are known now");
        }
    }

    /// Lists the volume, and reads the headers of unknown blocks while there is room for them.
    async fn learn(
        &self,
        manager: &Arc<KvBlockManager>,
        registered: &mut usize,
    ) -> Result<(), TransferError> {
        let pool = || manager.state().pool(BlockTier::Volume);
        let mut names = pin!(self.volume.list());
        let mut is_over = false;
        while !is_over && has_room(manager) {
            let mut unknown = Vec::new();
            while unknown.len() < BATCH_BLOCKS && !is_over {
                match self.next(&mut names).await? {
                    Some(name) if pool().is_some_and(|at| at.contains(SequenceHash(name))) => {}
                    Some(name) => unknown.push(name),
                    None => is_over = true,
                }
            }
            *registered += register(manager, self.headers(unknown).await?).await;
        }
        Ok(())
    }

    /// Reads the headers of blocks, in any order. Blocks that the volume does not have are left out.
    async fn headers(&self, names: Vec<u64>) -> Result<Vec<Sealed>, TransferError> {
        let (mut headers, mut blocks) = (pin!(self.volume.blocks(names)), Vec::new());
        while let Some(block) = self.next(&mut headers).await? {
            blocks.push(block);
        }
        Ok(blocks)
    }

    async fn next<T>(
        &self,
        stream: &mut (impl Stream<Item = Result<T, TransferError>> + Unpin),
    ) -> Result<Option<T>, TransferError> {
        let late = |_late| TransferError::Late { seconds: self.timeout.as_secs() };
        timeout(self.timeout, stream.next()).await.map_err(late)?.transpose()
    }
}

/// Looks blocks up by name that a call misses: other agents may have stored them since the last search.
#[derive(Debug)]
pub(super) struct VolumeLookup {
    search: VolumeSearch,
    seats: Semaphore,
    failed_at: Mutex<Option<Instant>>,
}

impl VolumeLookup {
    pub(super) fn new(search: VolumeSearch) -> Self {
        let (seats, failed_at) = (Semaphore::new(LOOKUPS_MAX), Mutex::default());
        Self { search, seats, failed_at }
    }

    /// Registers the leading blocks of `wanted` that the volume has, as far as there is room. Returns how many it has.
    pub(super) async fn find(
        &self,
        manager: &Arc<KvBlockManager>,
        wanted: &[SequenceHash],
    ) -> usize {
        let Ok(_seat) = self.seats.try_acquire() else { return 0 };
        let (mut found, mut rest, mut size) = (0, wanted, 1);
        while !rest.is_empty() && has_room(manager) && !self.is_paused() {
            let (part, behind) = rest.split_at(size.min(rest.len()));
            let names = part.iter().map(|name| name.0).collect();
            let blocks = match self.search.headers(names).await {
                Ok(blocks) => blocks,
                Err(error) => {
                    tracing::warn!(%error, pause = ?LOOKUP_PAUSE, "the volume can't be read: blocks of other agents may be missed");
                    *self.failed_at.lock() = Some(Instant::now());
                    return found;
                }
            };
            let count = blocks.len();
            register(manager, blocks).await;
            found += count;
            if count < part.len() {
                return found;
            }
            // Usually the volume lacks the first block already, which costs one request.
            (rest, size) = (behind, LOOKUP_BLOCKS);
        }
        found
    }

    fn is_paused(&self) -> bool {
        self.failed_at.lock().is_some_and(|at| at.elapsed() < LOOKUP_PAUSE)
    }
}

/// Whether the manager can register a further block of the volume.
fn has_room(manager: &KvBlockManager) -> bool {
    manager.state().pool(BlockTier::Volume).is_some_and(|pool| pool.stats().free > 0)
}

/// Registers blocks as far as there is room. How many there were.
async fn register(manager: &Arc<KvBlockManager>, blocks: Vec<Sealed>) -> usize {
    if blocks.is_empty() {
        return 0;
    }
    let manager = Arc::clone(manager);
    // A panic is in the log.
    spawn_blocking(move || manager.restore_volume(&blocks)).await.unwrap_or_default()
}
