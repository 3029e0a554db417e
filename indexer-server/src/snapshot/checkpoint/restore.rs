//! Restores workers from the store into the index.

use super::SharedStore;
use crate::partitions::{Partition, ResumedSource, ResumedWorker, Shard, Writer, WriterGone};
use crate::snapshot::{Restored, SnapshotStore, StoreError, StoredWorker, StreamPosition};
use kvasir_index::{DamagedImage, IndexError, Restore, Saved};
use kvasir_proto::convert::WorkerAddress;
use kvasir_proto::types::{CopyMode, WorkerId};
use std::collections::BTreeMap;

/// Restores workers into the index.
#[derive(Debug, Clone)]
pub struct Restorer {
    shared_store: SharedStore,
    writer: Writer,
}

/// Why a worker was not restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The stored images contradict each other.
    #[error(transparent)]
    Damaged(#[from] DamagedImage),
    /// The index refuses the worker.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The server is stopping.
    #[error(transparent)]
    Stopping(#[from] WriterGone),
}

/// A worker, read and prepared for the index.
struct Read {
    restore: Restore,
    copy_modes: BTreeMap<String, CopyMode>,
}

impl Restorer {
    /// Creates a restorer for the indexes that `writer` changes.
    #[must_use]
    pub const fn new(shared_store: SharedStore, writer: Writer) -> Self {
        Self { shared_store, writer }
    }

    /// Returns the workers on disk, without their blocks. Leaves out unreadable workers.
    ///
    /// # Errors
    /// If the store cannot be opened.
    pub async fn workers(&self) -> Result<Vec<StoredWorker>, StoreError> {
        let read = self.shared_store.call(|store| {
            let addresses: Vec<_> = store.workers().cloned().collect();
            let mut list = Vec::with_capacity(addresses.len());
            for address in addresses {
                match store.read(&address) {
                    Ok(Some(stored)) => list.push(stored.worker),
                    Ok(None) => {}
                    Err(error) => {
                        tracing::error!(worker = %address, %error, "worker not restored");
                    }
                }
            }
            list
        });
        read.await
    }

    /// Position of the broker's stream in the store: consumption resumes after it. `None` if no stream was consumed, or
    /// the store with the position was set aside.
    ///
    /// # Errors
    /// If the store cannot be opened.
    pub async fn stream_position(&self) -> Result<Option<StreamPosition>, StoreError> {
        self.shared_store.call(|store| store.stream_position()).await
    }

    /// Starts RocksDB's compaction. Call it once all workers are restored.
    ///
    /// # Errors
    /// If the store cannot be opened, or RocksDB refuses.
    pub async fn finish(&self) -> Result<(), StoreError> {
        self.shared_store.begin_compacting().await
    }

    /// Restores a worker that the index lacks. Returns an empty worker if the store lacks it or its sources.
    ///
    /// # Errors
    /// If the worker cannot be read or the index refuses it. The index then has no data of the worker.
    pub async fn restore(
        &self,
        partition: &Partition,
        address: &WorkerAddress,
    ) -> Result<ResumedWorker, RestoreError> {
        let requested = address.clone();
        let read = self.shared_store.call(move |store| read_worker(store, &requested)).await??;
        let Some(Read { restore, copy_modes }) = read else {
            return Ok(ResumedWorker::default());
        };
        let shard = partition.shard_of(&address.worker);
        let restored = self.writer.restore(shard, restore).await?;
        let restored = match restored {
            Ok(restored) => restored,
            Err(error) => {
                for (_, source, _) in Shard::sources(shard, &address.worker) {
                    self.writer.remove_source(source).await?;
                }
                return Err(error.into());
            }
        };
        if restored.unplaced + restored.dropped > 0 {
            tracing::warn!(worker = %address, ?restored, "not all of the worker could be restored");
        }
        let sources = Shard::sources(shard, &address.worker).into_iter();
        let sources = sources.map(|(name, source, status)| {
            let copy_mode = copy_modes.get(&name).copied().unwrap_or(CopyMode::Set);
            let names = source.meanings();
            ResumedSource { name, copy_mode, source, status, names }
        });
        let blocks = restored.placed + restored.parked + restored.unplaced;
        Ok(ResumedWorker { sources: sources.collect(), blocks })
    }
}

/// Reads a worker and sorts its data for the index. Returns `None` if the store lacks the worker or its sources.
fn read_worker(
    store: &SnapshotStore,
    address: &WorkerAddress,
) -> Result<Option<Read>, RestoreError> {
    let Some(Restored { worker, pieces }) = store.read(address)? else { return Ok(None) };
    if worker.sources.is_empty() {
        return Ok(None);
    }
    let id: WorkerId = address.worker.clone();
    let mut saved = Saved::new(id);
    let mut copy_modes = BTreeMap::new();
    for source in worker.sources {
        copy_modes.insert(source.name.to_string(), source.copy_mode);
        saved.source(source)?;
    }
    for rank in worker.ranks {
        saved.rank(rank.rank, rank.primary, rank.shed_blocks, rank.short);
    }
    for piece in pieces {
        let piece = piece?;
        piece.pages.into_iter().try_for_each(|page| saved.page(piece.rank, page))?;
        piece.names.into_iter().try_for_each(|name| saved.name(piece.rank, name))?;
        piece.holes.into_iter().for_each(|hole| saved.hole(piece.rank, hole));
        piece.meanings.into_iter().for_each(|at| saved.meaning(piece.rank, at));
    }
    Ok(Some(Read { restore: Restore::new(saved)?, copy_modes }))
}
