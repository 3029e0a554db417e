//! Runs store calls on blocking threads. Reopens the store if it could not be opened before.

use crate::snapshot::{SnapshotConfig, SnapshotStore, StoreError};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::spawn_blocking;

/// Shared access to the store of a folder. Clones share the store and call it one at a time.
#[derive(Debug, Clone)]
pub struct SharedStore {
    config: SnapshotConfig,
    /// Whether RocksDB compacts tables. Also applies when the store is reopened.
    compacts: Arc<AtomicBool>,
    store: Arc<Mutex<Option<SnapshotStore>>>,
}

impl SharedStore {
    /// Opens the store of a folder. A full or failing disk is not an error: the server works without the store, and
    /// every call tries to open it again.
    ///
    /// # Errors
    /// If this process cannot or must not use the folder.
    pub async fn open(config: SnapshotConfig) -> Result<Self, StoreError> {
        let compacts = Arc::new(AtomicBool::new(config.compacts));
        let shared_store = Self { config, compacts, store: Arc::default() };
        match shared_store.call(|_store| ()).await {
            Err(error) if error.is_misconfigured() => Err(error),
            Err(error) => {
                tracing::error!(%error, "the checkpoint cannot be opened for now: retrying");
                Ok(shared_store)
            }
            Ok(()) => Ok(shared_store),
        }
    }

    /// Runs `work` on the store, on a blocking thread. Opens a closed store first.
    ///
    /// # Errors
    /// If the store is closed and cannot be opened.
    pub async fn call<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut SnapshotStore) -> R + Send + 'static,
    ) -> Result<R, StoreError> {
        let shared_store = self.clone();
        let done = spawn_blocking(move || {
            let mut store = shared_store.store.lock().unwrap_or_else(PoisonError::into_inner);
            let store = match &mut *store {
                Some(store) => store,
                None => {
                    let compacts = shared_store.compacts.load(Ordering::Acquire);
                    store.insert(open_store(&SnapshotConfig { compacts, ..shared_store.config })?)
                }
            };
            Ok(work(store))
        });
        done.await.unwrap_or_else(|error| {
            let folder = self.config.folder.clone();
            let reason = error.to_string();
            Err(StoreError::Disk { folder, reason })
        })
    }

    /// Starts RocksDB's compaction.
    ///
    /// # Errors
    /// If the store is closed and cannot be opened, or RocksDB refuses.
    pub async fn begin_compacting(&self) -> Result<(), StoreError> {
        self.compacts.store(true, Ordering::Release);
        self.call(SnapshotStore::begin_compacting).await?
    }
}

/// Opens the store. Logs damage, lost writes, and a store that is only readable.
fn open_store(config: &SnapshotConfig) -> Result<SnapshotStore, StoreError> {
    let opened = SnapshotStore::open(config)?;
    if let Some(aside) = opened.set_aside {
        tracing::error!(
            reason = %aside.reason, moved_to = %aside.folder.display(),
            "the checkpoint was damaged and set aside: the index is rebuilt from engines and agents"
        );
    }
    if opened.lost_writes > 0 {
        tracing::error!(
            writes = opened.lost_writes, folder = %config.folder.display(),
            "the checkpoint's log is damaged: its last writes are lost"
        );
    }
    if let Some(reason) = opened.read_only {
        tracing::error!(%reason, "the checkpoint is readable, but cannot be written for now");
    }
    Ok(opened.store)
}
