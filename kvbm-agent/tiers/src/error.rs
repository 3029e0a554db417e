//! Errors of transfers between memory and a storage.

use crate::checksum::Checksum;
use kvasir_memory::{AccessError, AllocateError, ClaimError};
use std::io;

/// Why a block was not stored, loaded or erased. The block does not count as stored, and a load's target contains
/// undefined bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// The transfer was cancelled, and has stopped.
    #[error("cancelled")]
    Cancelled,
    /// The slot is in use, or does not exist.
    #[error("{0}")]
    Claim(#[from] ClaimError),
    /// The bytes do not match the block's checksum.
    #[error("the block's checksum is {found}, and was {expected}")]
    Corrupt {
        /// The expected checksum.
        expected: Checksum,
        /// The checksum of the bytes.
        found: Checksum,
    },
    /// The storage moved another number of bytes: usually fewer, because the data or the file ended.
    #[error("{done} bytes instead of {wanted} were read or written")]
    Short {
        /// Bytes moved or found.
        done: usize,
        /// Bytes expected.
        wanted: usize,
    },
    /// The storage is full.
    #[error("the storage is full: {0}")]
    Full(String),
    /// Reading or writing failed.
    #[error("{0}")]
    Io(String),
    /// The storage does not have the block.
    #[error("the storage does not have the block")]
    Missing,
    /// The stored data belongs to a different layout, model or format version.
    #[error("{0}")]
    Foreign(String),
    /// The storage does not support this kind of place.
    #[error("the storage does not support this kind of place")]
    Place,
    /// The volume is no longer registered.
    #[error("volume {0} is no longer registered")]
    Unregistered(String),
    /// The storage did not answer in time.
    #[error("no answer within {seconds} s")]
    Late {
        /// The timeout.
        seconds: u64,
    },
    /// The block is empty, or larger than the storage allows.
    #[error("the block has {bytes} bytes, must be 1 to {limit}")]
    Size {
        /// Bytes of the block.
        bytes: usize,
        /// Maximum bytes of a block.
        limit: usize,
    },
    /// The memory can't be accessed.
    #[error("{0}")]
    Access(#[from] AccessError),
    /// The memory for a buffer can't be allocated.
    #[error("{0}")]
    Memory(String),
    /// The storage panicked, which is a bug.
    #[error("the storage panicked")]
    Panicked,
}

impl From<io::Error> for TransferError {
    fn from(error: io::Error) -> Self {
        let kind = error.kind();
        let full =
            [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded, io::ErrorKind::FileTooLarge];
        if full.contains(&kind) {
            Self::Full(error.to_string())
        } else {
            Self::Io(error.to_string())
        }
    }
}

impl From<AllocateError> for TransferError {
    fn from(error: AllocateError) -> Self {
        Self::Memory(error.to_string())
    }
}
