//! What all storages are.

use crate::block::{NewBlock, Sealed};
use crate::cancel::Cancel;
use crate::checksum::{Checksum, Summing};
use crate::error::TransferError;
use kvasir_memory::{ReadSlot, WriteSlot, copy};
use std::fmt::Debug;

/// What kind of storage it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StorageKind {
    /// Memory of the host (G2).
    Host,
    /// A disk (G3).
    Disk,
    /// Shared blobs (G4).
    Objects,
    /// What a third party plugged in.
    Foreign,
}

/// Where a block lies in a storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// In the slot with this number.
    Slot(u32),
    /// Under its own name.
    Named,
}

impl Place {
    /// The slot's number.
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

/// A storage of blocks. Its calls block the thread, move one block, and return only when they do not touch source or target
/// any more, whatever happened: an [`Executor`](crate::Executor) makes batches of them on threads of its own.
///
/// A storage holds the slot for as long as a call works on it, and refuses others with [`TransferError::Claim`]. It looks at
/// `cancel` before it begins and between pieces.
pub trait Storage: Debug + Send + Sync {
    /// What kind of storage it is.
    fn kind(&self) -> StorageKind;

    /// Most bytes of a block.
    fn block_bytes(&self) -> usize;

    /// How many slots it has; none if blocks lie under their names.
    fn slots(&self) -> Option<u32>;

    /// Stores a block: its bytes first, what makes it count last.
    ///
    /// # Errors
    /// [`TransferError::Corrupt`] if the source is not what the block's checksum says. After any error, the place counts as
    /// empty; a block that was whole may still be found there after a restart.
    fn store(
        &self,
        place: Place,
        block: &NewBlock,
        source: &ReadSlot,
        cancel: &Cancel,
    ) -> Result<Sealed, TransferError>;

    /// Loads a block, and checks it. After an error, `target` holds bytes that mean nothing.
    ///
    /// # Errors
    /// [`TransferError::Corrupt`] if the bytes that arrived are not the block's.
    fn load(
        &self,
        place: Place,
        block: &Sealed,
        target: &mut WriteSlot,
        cancel: &Cancel,
    ) -> Result<(), TransferError>;

    /// Forgets the block: after a restart it is not there.
    ///
    /// # Errors
    /// If the storage fails. The block may come back after a restart then.
    fn erase(&self, place: Place, sequence_hash: u64, cancel: &Cancel)
    -> Result<(), TransferError>;
}

/// Refuses sizes that a storage does not have.
///
/// # Errors
/// [`TransferError::Size`].
pub(crate) fn check_size(bytes: usize, limit: usize) -> Result<(), TransferError> {
    if bytes == 0 || bytes > limit {
        return Err(TransferError::Size { bytes, limit });
    }
    Ok(())
}

/// Copies a block and sums it up in one go.
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

/// What a new block's checksum is, if it is what it must be.
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

/// Checks what arrived.
///
/// # Errors
/// [`TransferError::Corrupt`].
pub(crate) fn check_loaded(block: &Sealed, found: Checksum) -> Result<(), TransferError> {
    sealed(&NewBlock::from(*block), found).map(drop)
}
