//! The trait of all storages, and helpers for implementing it.

use crate::block::{NewBlock, Sealed};
use crate::cancel::Cancel;
use crate::checksum::{Checksum, Summing};
use crate::error::TransferError;
use kvasir_memory::{ReadSlot, WriteSlot, copy};
use std::fmt::Debug;

/// The kind of a storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StorageKind {
    /// Host memory (G2).
    Host,
    /// A disk (G3).
    Disk,
    /// Shared object storage (G4).
    Objects,
    /// A third party's storage.
    Foreign,
}

/// Position of a block in a storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// The slot with this number.
    Slot(u32),
    /// The block's own name.
    Named,
}

impl Place {
    /// Returns the slot's number.
    ///
    /// # Errors
    /// If the place is a name.
    pub fn slot(self) -> Result<u32, TransferError> {
        match self {
            Self::Slot(slot) => Ok(slot),
            Self::Named => Err(TransferError::Place),
        }
    }
}

/// A storage of blocks. Calls block the thread and move one block. They return, in every case, only when they no longer
/// access source or target. An [`Executor`](crate::Executor) runs batches of them on its own threads.
///
/// A storage claims the slot during a call, and refuses concurrent calls with [`TransferError::Claim`]. It checks
/// `cancel` before it begins and between pieces.
pub trait Storage: Debug + Send + Sync {
    /// The kind of storage.
    fn kind(&self) -> StorageKind;

    /// Maximum bytes of a block.
    fn block_bytes(&self) -> usize;

    /// Number of slots; `None` if blocks are stored under their names.
    fn slots(&self) -> Option<u32>;

    /// Stores a block: first its bytes, last the record that makes it valid.
    ///
    /// # Errors
    /// [`TransferError::Corrupt`] if the source does not match the block's checksum. After any error, the place counts
    /// as empty. A completely written block may still be found there after a restart.
    fn store(
        &self,
        place: Place,
        block: &NewBlock,
        source: &ReadSlot,
        cancel: &Cancel,
    ) -> Result<Sealed, TransferError>;

    /// Loads and verifies a block. After an error, `target` contains undefined bytes.
    ///
    /// # Errors
    /// [`TransferError::Corrupt`] if the loaded bytes do not match the block's checksum.
    fn load(
        &self,
        place: Place,
        block: &Sealed,
        target: &mut WriteSlot,
        cancel: &Cancel,
    ) -> Result<(), TransferError>;

    /// Erases the block, so that it is not found after a restart.
    ///
    /// # Errors
    /// If the storage fails. The block may be found again after a restart then.
    fn erase(&self, place: Place, sequence_hash: u64, cancel: &Cancel)
    -> Result<(), TransferError>;
}

/// Refuses an empty block, and a block larger than `limit`.
///
/// # Errors
/// [`TransferError::Size`].
pub(crate) fn check_size(bytes: usize, limit: usize) -> Result<(), TransferError> {
    if bytes == 0 || bytes > limit {
        return Err(TransferError::Size { bytes, limit });
    }
    Ok(())
}

/// Copies the first `bytes` bytes of a slot, and computes their checksum in the same pass.
///
/// # Errors
/// If the copy fails or is cancelled.
pub(crate) fn copy_summed(
    source: &ReadSlot,
    target: &mut WriteSlot,
    bytes: usize,
    cancel: &Cancel,
) -> Result<Summing, TransferError> {
    cancel.check()?;
    let mut summing = Summing::new();
    let goes_on = copy(source, target, bytes, |piece| {
        summing.update(piece);
        !cancel.is_cancelled()
    })?;
    if goes_on { Ok(summing) } else { Err(TransferError::Cancelled) }
}

/// Combines a new block with its checksum, and checks it against the expected one.
///
/// # Errors
/// [`TransferError::Corrupt`].
pub(crate) fn sealed(block: &NewBlock, found: Checksum) -> Result<Sealed, TransferError> {
    let expected = block.checksum.unwrap_or(found);
    if expected != found {
        return Err(TransferError::Corrupt { expected, found });
    }
    Ok(Sealed { identity: block.identity, bytes: block.bytes, checksum: found })
}

/// Verifies a loaded block.
///
/// # Errors
/// [`TransferError::Corrupt`].
pub(crate) fn check_loaded(block: &Sealed, found: Checksum) -> Result<(), TransferError> {
    sealed(&NewBlock::from(*block), found).map(drop)
}
