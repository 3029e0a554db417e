use kvasir_proto::convert::WorkerAddress;
use std::path::PathBuf;

/// Why a folder cannot be used: wrong configuration, or a failing disk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// This build has no journal on disk.
    #[error("{}: this build has no journal on disk: build kvbm-agent with its feature `disk`", folder.display())]
    Absent {
        /// The folder.
        folder: PathBuf,
    },
    /// Another process uses the folder.
    #[error(
        "{}: another process has it open: each agent needs a folder of its own ({reason})",
        folder.display()
    )]
    Locked {
        /// The folder.
        folder: PathBuf,
        /// Underlying error.
        reason: String,
    },
    /// The folder has another worker's journal.
    #[error("{}: this is the journal of worker {found}, but the agent serves worker {requested}: choose another folder", folder.display())]
    OtherWorker {
        /// The folder.
        folder: PathBuf,
        /// Worker of the journal.
        found: WorkerAddress,
        /// Worker of this agent.
        requested: WorkerAddress,
    },
    /// The folder has other files than a journal.
    #[error("{}: not an agent's journal: choose a folder of the agent's own ({reason})", folder.display())]
    Foreign {
        /// The folder.
        folder: PathBuf,
        /// The unexpected file.
        reason: String,
    },
    /// The process may not read or write the folder.
    #[error("{}: not permitted: let the agent's user write there ({reason})", folder.display())]
    Permission {
        /// The folder.
        folder: PathBuf,
        /// Underlying error.
        reason: String,
    },
    /// The folder cannot be created.
    #[error("{}: cannot be made: choose a folder on a local disk ({reason})", folder.display())]
    NoPlace {
        /// The folder.
        folder: PathBuf,
        /// Underlying error.
        reason: String,
    },
    /// The disk is full, or a quota is used up.
    #[error("{}: the disk is full: make room and start the agent again ({reason})", folder.display())]
    Full {
        /// The folder.
        folder: PathBuf,
        /// Underlying error.
        reason: String,
    },
    /// The journal on disk is damaged.
    #[error("{}: damaged ({reason})", folder.display())]
    Damaged {
        /// The folder.
        folder: PathBuf,
        /// Evidence of the damage.
        reason: String,
    },
    /// The disk fails.
    #[error("{}: {reason}", folder.display())]
    Failing {
        /// The folder.
        folder: PathBuf,
        /// Underlying error.
        reason: String,
    },
}

impl DiskError {
    /// Whether the configuration is wrong, so that the process should exit. After any other error, the agent continues
    /// without its journal on disk.
    #[must_use]
    pub const fn is_misconfigured(&self) -> bool {
        matches!(
            self,
            Self::Absent { .. }
                | Self::Locked { .. }
                | Self::OtherWorker { .. }
                | Self::Foreign { .. }
                | Self::Permission { .. }
                | Self::NoPlace { .. }
        )
    }
}
