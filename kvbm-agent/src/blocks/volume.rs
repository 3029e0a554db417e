//! What a volume has already: from an earlier process, and from other agents.

use futures::StreamExt;
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
        let of_search = Arc::clone(manager);
        let is_known = move |hash| {
            let pool = of_search.state().pool(BlockTier::Volume);
            pool.is_some_and(|pool| pool.contains(SequenceHash(hash)))
        };
        let mut blocks = pin!(self.volume.blocks_but(is_known));
        let (mut batch, mut registered, mut failed) = (Vec::new(), 0, None);
        loop {
            match timeout(self.timeout, blocks.next()).await {
                Ok(Some(Ok(block))) => batch.push(block),
                Ok(Some(Err(error))) => failed = failed.or(Some(error)),
                Ok(None) => break,
                Err(_late) => {
                    failed = Some(TransferError::Late { seconds: self.timeout.as_secs() });
                    break;
                }
            }
            if batch.len() >= BATCH_BLOCKS {
                registered += register(manager, std::mem::take(&mut batch)).await;
            }
        }
        registered += register(manager, batch).await;
        if let Some(error) = failed {
            tracing::warn!(%error, registered, "the volume was not searched to its end: blocks in it may not be found");
        } else if registered > 0 {
            tracing::info!(registered, "blocks of the volume are known now");
        }
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
