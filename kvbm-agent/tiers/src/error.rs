//! Why a transfer failed.

use crate::checksum::Checksum;
use kvasir_memory::{AccessError, AllocateError, ClaimError};
use std::io;

/// Why a block was not stored, loaded or erased. Nothing of it counts then; a target holds bytes that mean nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// It was told to stop, and has.
    #[error("cancelled")]
    Cancelled,
    /// Its place is in use, or there is none.
    #[error("{0}")]
    Claim(#[from] ClaimError),
    /// The bytes are not those of the block.
    #[error("the block's checksum is {found}, and was {expected}")]
    Corrupt {
        /// What it must be.
        expected: Checksum,
        /// What the bytes add up to.
        found: Checksum,
    },
    /// The storage ended too early.
    #[error("{done} of {wanted} bytes were there")]
    Short {
        /// Bytes that were moved.
        done: usize,
        /// Bytes of the block.
        wanted: usize,
    },
    /// The storage has no room.
    #[error("the storage is full: {0}")]
    Full(String),
    /// The storage failed.
    #[error("{0}")]
    Io(String),
    /// The block is not there.
    #[error("the block is not there")]
    Missing,
    /// What is there was written for another layout or model, or by another version.
    #[error("{0}")]
    Foreign(String),
    /// The storage has places of another kind.
    #[error("this storage has no place of that kind")]
    Place,
    /// The volume is not registered any more.
    #[error("volume {0} is not registered any more")]
    Unregistered(String),
    /// It took too long.
    #[error("no answer within {seconds} s")]
    Late {
        /// The limit.
        seconds: u64,
    },
    /// The block is larger than the storage's blocks, or empty.
    #[error("a block of {bytes} bytes, where they have 1 to {limit}")]
    Size {
        /// Bytes of the block.
        bytes: usize,
        /// Most bytes of a block.
        limit: usize,
    },
    /// Memory could not be reached.
    #[error("{0}")]
    Access(#[from] AccessError),
    /// There was no memory for a buffer.
    #[error("{0}")]
    Memory(String),
    /// The storage panicked: a defect.
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
