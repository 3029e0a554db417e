//! Errors of opening a disk tier.

use std::io;
use std::path::PathBuf;

/// Why a disk tier can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// A system call failed.
    #[error("{}: {what}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The failed operation.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The disk has no room for the file.
    #[error("{}: no room for {bytes} bytes: {source}", path.display())]
    Full {
        /// The file.
        path: PathBuf,
        /// Size of the file.
        bytes: u64,
        /// The system's error.
        source: io::Error,
    },
    /// Another process has opened the file.
    #[error("{} is in use by another process: give each its own file", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file is not a disk tier.
    #[error("{} is not a disk tier of Kvasir, and is left as it is: name another file", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The file has a different format version.
    #[error(
        "{} has format version {found}, and this program reads and writes version {ours}: use the version that wrote \
         it, or delete the file to begin with an empty tier", path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Version of the file.
        found: u32,
        /// Version of this program.
        ours: u32,
    },
    /// The file's blocks have a different layout or model.
    #[error(
        "{} holds blocks of another layout or model ({found}), and this process has {ours}: configure that again, or \
         delete the file to begin with an empty tier", path.display()
    )]
    Layout {
        /// The file.
        path: PathBuf,
        /// Description of the file's blocks.
        found: String,
        /// Description of this process's blocks.
        ours: String,
    },
    /// The file's header is damaged.
    #[error("{}: the header is damaged: delete the file to begin with an empty tier", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// The sizes are not possible.
    #[error("a disk tier of {slots} blocks of {block_bytes} bytes is not possible")]
    Geometry {
        /// Bytes of a block.
        block_bytes: usize,
        /// Number of blocks.
        slots: u32,
    },
    /// The memory for buffers can't be allocated.
    #[error("{0}")]
    Memory(String),
}
