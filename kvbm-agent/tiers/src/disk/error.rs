//! Why a disk tier cannot be used.

use std::io;
use std::path::PathBuf;

/// Why a disk tier cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The system refused.
    #[error("{}: {what}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// There is no room for the file.
    #[error("{}: no room for {bytes} bytes: {source}", path.display())]
    Full {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// What the system said.
        source: io::Error,
    },
    /// Another process has it.
    #[error("{} is in use by another process: give each its own file", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// It is something else.
    #[error("{} is not a disk tier of Kvasir, and is left as it is: name another file", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// It is of another version.
    #[error(
        "{} has format version {found}, and this program reads and writes version {ours}: use the version that wrote \
         it, or delete the file to begin with an empty tier", path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// Ours.
        ours: u32,
    },
    /// It holds blocks that mean something else.
    #[error(
        "{} holds blocks of another layout or model ({found}), and this process has {ours}: configure that again, or \
         delete the file to begin with an empty tier", path.display()
    )]
    Layout {
        /// The file.
        path: PathBuf,
        /// What its blocks are.
        found: String,
        /// What ours are.
        ours: String,
    },
    /// Its header is damaged.
    #[error("{}: the header is damaged: delete the file to begin with an empty tier", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// Such a tier cannot be.
    #[error("a disk tier of {slots} blocks of {block_bytes} bytes is not possible")]
    Geometry {
        /// Bytes of a block.
        block_bytes: usize,
        /// How many.
        slots: u32,
    },
    /// There was no memory for buffers.
    #[error("{0}")]
    Memory(String),
}
