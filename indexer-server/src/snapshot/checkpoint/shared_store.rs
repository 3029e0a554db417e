//! The store on threads that may block, reopened while it could not be.

use crate::snapshot::{SnapshotConfig, SnapshotStore, StoreError};
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};
use tokio::task::spawn_blocking;

/// Shares the store of a folder. Clones share it; one call at a time.
#[derive(Debug, Clone)]
pub struct SharedStore {
    config: SnapshotConfig,
    /// Whether tables are merged: also if the store is opened again.
    compacts: Arc<AtomicBool>,
    store: Arc<Mutex<Option<SnapshotStore>>>,
}

impl SharedStore {
    /// Opens the store of a folder. A disk that is full or fails does not keep the server from working
    /// without it: every call tries again.
    ///
    /// # Errors
    /// If the folder is not one that this process can or should use.
    pub async fn open(config: SnapshotConfig) -> Result<Self, StoreError> {
        let compacts = Arc::new(AtomicBool::new(config.compacts));
        let shared_store = Self { config, compacts, store: Arc::default() };
        match shared_store.call(|_store| ()).await {
            Err(error) if error.is_misconfigured() => Err(error),
            Err(error) => {
                tracing::error!(%error, "no checkpoints for now");
                Ok(shared_store)
            }
            Ok(()) => Ok(shared_store),
        }
    }

    /// Does something with the store.
    ///
    /// # Errors
    /// If it is not open and cannot be opened.
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
                    store.insert(open(&SnapshotConfig { compacts, ..shared_store.config })?)
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

    /// Lets RocksDB merge tables from now on.
    ///
    /// # Errors
    /// If the store is not open and cannot be opened, or RocksDB refuses.
    pub async fn begin_compacting(&self) -> Result<(), StoreError> {
        self.compacts.store(true, Ordering::Release);
        self.call(SnapshotStore::begin_compacting).await?
    }
}

fn open(config: &SnapshotConfig) -> Result<SnapshotStore, StoreError> {
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
