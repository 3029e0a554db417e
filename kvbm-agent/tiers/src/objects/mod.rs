//! Shared object storage (G4): a volume of objects as a storage. Each block is stored once, under its own name; a
//! second writer finds the existing object. The storage provider determines the costs of listing and when blocks are
//! deleted.

mod format;
mod volume;

use crate::block::{NewBlock, Sealed};
use crate::cancel::Cancel;
use crate::checksum::Summing;
use crate::error::TransferError;
use crate::storage::{Place, Storage, StorageKind, check_loaded, check_size, sealed};
use bytes::Bytes;
use futures::StreamExt;
use kvasir_memory::{ReadSlot, WriteSlot};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use volume::{Found, failed};
pub use volume::{Put, VOLUMES_MAX, Volume, VolumeDescriptor, VolumeError, Volumes};

/// A volume as a storage. Its calls block the thread, and must not run on a thread of the runtime.
#[derive(Debug, Clone)]
pub struct ObjectStorage {
    volume: Arc<Volume>,
    runtime: Handle,
    timeout: Duration,
}

impl ObjectStorage {
    /// Creates a storage. Transfers run on the runtime, each for at most `timeout`.
    #[must_use]
    pub fn new(volume: Arc<Volume>, runtime: Handle, timeout: Duration) -> Self {
        Self { volume, runtime, timeout }
    }

    /// The volume.
    #[must_use]
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Runs `body` to its end. Fails, and drops `body`, if it is cancelled or exceeds the timeout.
    fn run<T>(
        &self,
        cancel: &Cancel,
        body: impl Future<Output = Result<T, TransferError>>,
    ) -> Result<T, TransferError> {
        cancel.check()?;
        self.runtime.block_on(async {
            tokio::select! {
                outcome = tokio::time::timeout(self.timeout, body) => {
                    outcome.unwrap_or(Err(TransferError::Late { seconds: self.timeout.as_secs() }))
                }
                () = cancel.cancelled() => Err(TransferError::Cancelled),
            }
        })
    }
}

fn named(place: Place) -> Result<(), TransferError> {
    match place {
        Place::Named => Ok(()),
        Place::Slot(_) => Err(TransferError::Place),
    }
}

/// Reads an object into a slot, and verifies its checksum. Fails if the object is shorter or longer than the block.
async fn receive(
    volume: &Volume,
    block: &Sealed,
    target: &mut WriteSlot,
) -> Result<(), TransferError> {
    let sequence_hash = block.identity.sequence_hash;
    let Found { first, mut rest, .. } = volume.open_object(sequence_hash).await?;
    let mut summing = Summing::new();
    let mut done = 0;
    let mut piece = first;
    loop {
        if done + piece.len() > block.bytes {
            let done = done + piece.len();
            let wanted = block.bytes;
            return Err(TransferError::Short { done, wanted });
        }
        summing.update(&piece);
        target.write(done, &piece)?;
        done += piece.len();
        let Some(next) = rest.next().await else { break };
        piece = next.map_err(|error| failed(&error))?;
    }
    if done < block.bytes {
        return Err(TransferError::Short { done, wanted: block.bytes });
    }
    check_loaded(block, summing.seal(sequence_hash))
}

impl Storage for ObjectStorage {
    fn kind(&self) -> StorageKind {
        StorageKind::Objects
    }

    fn block_bytes(&self) -> usize {
        self.volume.block_bytes()
    }

    fn slots(&self) -> Option<u32> {
        None
    }

    /// Stores a block in the volume. If the volume already has a block with this name, returns that block: its bytes
    /// may differ, but have the same meaning.
    fn store(
        &self,
        place: Place,
        block: &NewBlock,
        source: &ReadSlot,
        cancel: &Cancel,
    ) -> Result<Sealed, TransferError> {
        named(place)?;
        check_size(block.bytes, self.block_bytes().min(source.block_bytes()))?;
        let mut bytes = vec![0; block.bytes];
        source.read(0, &mut bytes)?;
        let mut summing = Summing::new();
        summing.update(&bytes);
        let block = sealed(block, summing.seal(block.identity.sequence_hash))?;
        match self.run(cancel, self.volume.put(&block, Bytes::from(bytes)))? {
            Put::Created => Ok(block),
            Put::Existing(existing) => Ok(existing),
        }
    }

    fn load(
        &self,
        place: Place,
        block: &Sealed,
        target: &mut WriteSlot,
        cancel: &Cancel,
    ) -> Result<(), TransferError> {
        named(place)?;
        check_size(block.bytes, self.block_bytes().min(target.block_bytes()))?;
        self.run(cancel, receive(&self.volume, block, target))
    }

    fn erase(
        &self,
        place: Place,
        sequence_hash: u64,
        cancel: &Cancel,
    ) -> Result<(), TransferError> {
        named(place)?;
        self.run(cancel, self.volume.delete(sequence_hash))
    }
}

#[cfg(test)]
#[path = "objects_test.rs"]
mod tests;
