//! What a volume has already: from an earlier process, and from other agents.

use futures::{Stream, StreamExt};
use kvasir_blocks::BlockTier;
use kvasir_proto::types::SequenceHash;
use kvasir_tiers::manager::KvBlockManager;
use kvasir_tiers::{Sealed, TransferError, Volume};
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Most blocks that are registered at once.
const BATCH_BLOCKS: usize = 16_384;

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
        let has_room = || pool().is_some_and(|pool| pool.stats().free > 0);
        let mut names = pin!(self.volume.list());
        let mut is_over = false;
        while !is_over && has_room() {
            let mut unknown = Vec::new();
            while unknown.len() < BATCH_BLOCKS && !is_over {
                match self.next(&mut names).await? {
                    Some(name) if pool().is_some_and(|at| at.contains(SequenceHash(name))) => {}
                    Some(name) => unknown.push(name),
                    None => is_over = true,
                }
            }
            let (mut headers, mut blocks) = (pin!(self.volume.blocks(unknown)), Vec::new());
            while let Some(block) = self.next(&mut headers).await? {
                blocks.push(block);
            }
            *registered += register(manager, blocks).await;
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

/// Registers blocks as far as there is room. How many there were.
async fn register(manager: &Arc<KvBlockManager>, blocks: Vec<Sealed>) -> usize {
    if blocks.is_empty() {
        return 0;
    }
    let manager = Arc::clone(manager);
    // A panic is in the log.
    spawn_blocking(move || manager.restore_volume(&blocks)).await.unwrap_or_default()
}
