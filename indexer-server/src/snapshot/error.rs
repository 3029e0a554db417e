use super::SET_ASIDE_MAX;
use super::format::FormatError;
use kvasir_proto::code::ErrorCode;
use kvasir_proto::convert::WorkerAddress;
use kvasir_proto::shard::ShardPlace;
use kvasir_store::Cause;
use std::io;
use std::path::{Path, PathBuf};

/// Why snapshots cannot be opened, written or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The disk is full, or a quota is used up. Stored images are intact. The next write retries.
    #[error(
        "{}: the disk is full; the last checkpoint is unharmed: make room, the next checkpoint \
         tries again ({reason})", folder.display()
    )]
    DiskFull {
        /// Path of the database.
        folder: PathBuf,
        /// The failed operation's error.
        reason: String,
    },
    /// The data on disk is damaged.
    #[error(
        "{}: damaged: move it away or remove it; the server then fills its index from engines and \
         agents ({reason})", folder.display()
    )]
    Corrupt {
        /// Path of the database.
        folder: PathBuf,
        /// Symptom of the damage.
        reason: String,
    },
    /// The database is damaged, and the limit of set-aside damaged databases is reached.
    #[error(
        "{}: damaged again, and {SET_ASIDE_MAX} damaged databases lie beside it: check the disk, \
         then remove them", folder.display()
    )]
    CorruptAgain {
        /// Path of the database.
        folder: PathBuf,
    },
    /// Another process uses the database.
    #[error(
        "{}: another process has it open: each server needs a folder of its own ({reason})",
        folder.display()
    )]
    Locked {
        /// Path of the database.
        folder: PathBuf,
        /// The failed operation's error.
        reason: String,
    },
    /// Another format version wrote the database.
    #[error(
        "{}: written in format {found} by version {writer} of the server, while this one reads \
         format {supported}: run that version, or choose an empty folder", folder.display()
    )]
    Version {
        /// Path of the database.
        folder: PathBuf,
        /// Format of the database.
        found: u32,
        /// The format that this server reads and writes.
        supported: u32,
        /// Version of the server that wrote the database.
        writer: String,
    },
    /// A server of another shard wrote the database.
    #[error(
        "{}: written by a server started {}, while this one is started {}: start it as that one, or \
         choose a folder of its own", folder.display(), started(*found), started(*requested)
    )]
    Shard {
        /// Path of the database.
        folder: PathBuf,
        /// Shard that wrote the database.
        found: Option<ShardPlace>,
        /// Shard of this server.
        requested: Option<ShardPlace>,
    },
    /// The folder contains data other than snapshots.
    #[error(
        "{}: not a database of snapshots: choose a folder of the server's own ({reason})",
        folder.display()
    )]
    Foreign {
        /// Path of the folder.
        folder: PathBuf,
        /// The unexpected content.
        reason: String,
    },
    /// The process may not read or write in the folder.
    #[error(
        "{}: not permitted: let the server's user write there ({reason})", folder.display()
    )]
    Permission {
        /// Path of the folder.
        folder: PathBuf,
        /// The failed operation's error.
        reason: String,
    },
    /// The folder cannot contain a database.
    #[error(
        "{}: cannot be created or used: choose a folder on a local disk ({reason})", folder.display()
    )]
    Unusable {
        /// Path of the folder.
        folder: PathBuf,
        /// The failed operation's error.
        reason: String,
    },
    /// The disk reports errors.
    #[error("{}: {reason}", folder.display())]
    Disk {
        /// Path of the folder.
        folder: PathBuf,
        /// The failed operation's error.
        reason: String,
    },
    /// An export is already running. It reads a view (RocksDB checkpoint) beside the database, one at a time.
    #[error("{}: an export is under way: wait for its end", folder.display())]
    Exporting {
        /// Path of the database.
        folder: PathBuf,
    },
    /// Changes of a worker can only follow its complete image.
    #[error("worker {worker}: a complete image is needed first")]
    NeedsWhole {
        /// The worker.
        worker: WorkerAddress,
    },
    /// An image cannot be stored: a fault of the server.
    #[error("worker {worker}: its image is invalid: {error}")]
    Image {
        /// The worker.
        worker: WorkerAddress,
        /// The reason.
        error: FormatError,
    },
}

/// The `--shard` option of a server, as text.
fn started(shard: Option<ShardPlace>) -> String {
    shard.map_or_else(|| "without --shard".to_owned(), |place| format!("with --shard {place}"))
}

impl StoreError {
    /// Returns the error code for the response.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::DiskFull { .. } => ErrorCode::ResourceExhausted,
            Self::NeedsWhole { .. } | Self::Exporting { .. } => ErrorCode::Aborted,
            Self::Locked { .. }
            | Self::Version { .. }
            | Self::Shard { .. }
            | Self::Foreign { .. }
            | Self::Permission { .. }
            | Self::Unusable { .. } => ErrorCode::FailedPrecondition,
            Self::Corrupt { .. }
            | Self::CorruptAgain { .. }
            | Self::Disk { .. }
            | Self::Image { .. } => ErrorCode::Internal,
        }
    }

    /// Whether the process was misconfigured and must stop. Any other error, such as a full disk or damage, costs the
    /// server its snapshots but keeps its index.
    #[must_use]
    pub const fn is_misconfigured(&self) -> bool {
        matches!(
            self,
            Self::Locked { .. }
                | Self::Version { .. }
                | Self::Shard { .. }
                | Self::Foreign { .. }
                | Self::Permission { .. }
                | Self::Unusable { .. }
        )
    }

    /// Error for a value that cannot be read.
    pub(super) fn unreadable(folder: &Path, error: &FormatError) -> Self {
        Self::Corrupt { folder: folder.to_owned(), reason: error.to_string() }
    }

    /// Error of a file system call.
    pub(super) fn of_io(folder: &Path, error: &io::Error) -> Self {
        let folder = folder.to_owned();
        let reason = error.to_string();
        Self::of_cause(Cause::of_io(error), folder, reason)
    }

    /// Error of a RocksDB call.
    pub(super) fn of_rocksdb(folder: &Path, error: &rocksdb::Error) -> Self {
        let folder = folder.to_owned();
        let reason = error.as_ref().to_owned();
        Self::of_cause(Cause::of_rocksdb(error), folder, reason)
    }

    /// Creates the error for a cause, with the folder and the reason.
    fn of_cause(cause: Cause, folder: PathBuf, reason: String) -> Self {
        match cause {
            Cause::Full => Self::DiskFull { folder, reason },
            Cause::Denied => Self::Permission { folder, reason },
            Cause::Locked => Self::Locked { folder, reason },
            Cause::Damaged => Self::Corrupt { folder, reason },
            Cause::Foreign => Self::Foreign { folder, reason },
            Cause::Failing => Self::Disk { folder, reason },
            Cause::Unusable => Self::Unusable { folder, reason },
        }
    }
}

/// Why an import failed. The store is then empty, as before the import.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The store is not empty.
    #[error("{}: the store is not empty: only an empty store can import a snapshot", folder.display())]
    NotEmpty {
        /// Path of the database.
        folder: PathBuf,
    },
    /// Another format version wrote the export.
    #[error("the export has format {found}, while this server reads format {supported}")]
    Version {
        /// Format of the export.
        found: u32,
        /// The format that this server reads and writes.
        supported: u32,
    },
    /// The input is not an export, or is damaged.
    #[error("the export is damaged: {reason}")]
    Damaged {
        /// Symptom of the damage.
        reason: String,
    },
    /// The input cannot be read.
    #[error("the export cannot be read: {0}")]
    Read(#[from] io::Error),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<FormatError> for ImportError {
    fn from(error: FormatError) -> Self {
        Self::Damaged { reason: error.to_string() }
    }
}
