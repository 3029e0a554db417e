use super::{SET_ASIDE_MAX, format::FormatError};
use kvasir_proto::{code::ErrorCode, convert::WorkerAddress, shard::ShardPlace};
use kvasir_store::Cause;
use std::{
    io,
    path::{Path, PathBuf},
};

/// Why snapshots cannot be opened, written or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No space is left, or a quota is used up. Stored images are intact; the next write retries.
    #[error(
        "{}: the disk is full; the last checkpoint is unharmed: make room, the next checkpoint \
         tries again ({reason})", folder.display()
    )]
    DiskFull {
        /// The database.
        folder: PathBuf,
        /// What failed.
        reason: String,
    },
    /// The data on disk is damaged.
    #[error(
        "{}: damaged: move it away or remove it; the server then fills its index from engines and \
         agents ({reason})", folder.display()
    )]
    Corrupt {
        /// The database.
        folder: PathBuf,
        /// How it shows.
        reason: String,
    },
    /// Damaged, and too many damaged ones lie beside it.
    #[error(
        "{}: damaged again, and {SET_ASIDE_MAX} damaged databases lie beside it: check the disk, \
         then remove them", folder.display()
    )]
    CorruptAgain {
        /// The database.
        folder: PathBuf,
    },
    /// Another process uses it.
    #[error(
        "{}: another process has it open: each server needs a folder of its own ({reason})",
        folder.display()
    )]
    Locked {
        /// The database.
        folder: PathBuf,
        /// What failed.
        reason: String,
    },
    /// Another version wrote it.
    #[error(
        "{}: written in format {found} by version {writer} of the server, while this one reads \
         format {supported}: run that version, or choose an empty folder", folder.display()
    )]
    Version {
        /// The database.
        folder: PathBuf,
        /// Its format.
        found: u32,
        /// The format that this server reads and writes.
        supported: u32,
        /// The version that wrote it.
        writer: String,
    },
    /// A server that is another shard wrote it.
    #[error(
        "{}: written by a server started {}, while this one is started {}: start it as that one, or \
         choose a folder of its own", folder.display(), started(*found), started(*requested)
    )]
    Shard {
        /// The database.
        folder: PathBuf,
        /// Whose it is.
        found: Option<ShardPlace>,
        /// Which shard this server is.
        requested: Option<ShardPlace>,
    },
    /// The folder has other data than snapshots.
    #[error(
        "{}: not a database of snapshots: choose a folder of the server's own ({reason})",
        folder.display()
    )]
    Foreign {
        /// The folder.
        folder: PathBuf,
        /// What was found.
        reason: String,
    },
    /// The process may not read or write there.
    #[error(
        "{}: not permitted: let the server's user write there ({reason})", folder.display()
    )]
    Permission {
        /// The folder.
        folder: PathBuf,
        /// What failed.
        reason: String,
    },
    /// No database can be there.
    #[error(
        "{}: cannot be created or used: choose a folder on a local disk ({reason})", folder.display()
    )]
    Unusable {
        /// The folder.
        folder: PathBuf,
        /// What failed.
        reason: String,
    },
    /// The disk fails.
    #[error("{}: {reason}", folder.display())]
    Disk {
        /// The folder.
        folder: PathBuf,
        /// What failed.
        reason: String,
    },
    /// An export is made from a view of the database that lies beside it; there is one at a time.
    #[error("{}: an export is under way: wait for its end", folder.display())]
    Exporting {
        /// The database.
        folder: PathBuf,
    },
    /// What changed of a worker can only follow a whole image of it.
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
        /// Why.
        error: FormatError,
    },
}

/// The option that a server of a shard is started with.
fn started(shard: Option<ShardPlace>) -> String {
    shard.map_or_else(|| "without --shard".to_owned(), |place| format!("with --shard {place}"))
}

impl StoreError {
    /// Code to report it with.
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

    /// Whether the process was started wrongly, so that it should not go on: everything else, such as a
    /// full disk or damage, is an accident, which costs the server its snapshots but not its index.
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

    /// Of a value that cannot be read.
    pub(super) fn unreadable(folder: &Path, error: &FormatError) -> Self {
        Self::Corrupt { folder: folder.to_owned(), reason: error.to_string() }
    }

    /// Of a call of the file system.
    pub(super) fn of_io(folder: &Path, error: &io::Error) -> Self {
        let folder = folder.to_owned();
        let reason = error.to_string();
        Self::of_cause(Cause::of_io(error), folder, reason)
    }

    /// Of a call of RocksDB.
    pub(super) fn of_rocksdb(folder: &Path, error: &rocksdb::Error) -> Self {
        let folder = folder.to_owned();
        let reason = error.as_ref().to_owned();
        Self::of_cause(Cause::of_rocksdb(error), folder, reason)
    }

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

/// Why an export was not taken over. The store is empty then, as it was before.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// Something is in the store.
    #[error("{}: not empty: an export can only be taken over by an empty store", folder.display())]
    NotEmpty {
        /// The database.
        folder: PathBuf,
    },
    /// Another version of the server made it.
    #[error("the export has format {found}, while this server reads format {supported}")]
    Version {
        /// Its format.
        found: u32,
        /// The format that this server reads and writes.
        supported: u32,
    },
    /// It is not an export, or damaged.
    #[error("the export is damaged: {reason}")]
    Damaged {
        /// How it shows.
        reason: String,
    },
    /// It cannot be read.
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
