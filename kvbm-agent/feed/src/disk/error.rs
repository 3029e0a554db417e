use kvasir_proto::convert::WorkerAddress;
use std::path::PathBuf;

/// Why a folder cannot be used: the agent was started wrongly, or its disk fails.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// There is no such journal in this build.
    #[error("{}: this build has no journal on disk: build kvbm-agent with its feature `disk`", folder.display())]
    Absent {
        /// The folder.
        folder: PathBuf,
    },
    /// Another process uses it.
    #[error(
        "{}: another process has it open: each agent needs a folder of its own ({reason})",
        folder.display()
    )]
    Locked {
        /// The folder.
        folder: PathBuf,
        /// What failed.
        reason: String,
    },
    /// It is another worker's.
    #[error("{}: the journal of worker {found}, this agent is worker {requested}'s: choose another folder", folder.display())]
    OtherWorker {
        /// The folder.
        folder: PathBuf,
        /// Whose it is.
        found: WorkerAddress,
        /// Whose agent this is.
        requested: WorkerAddress,
    },
    /// Something else than a journal is there.
    #[error("{}: not an agent's journal: choose a folder of the agent's own ({reason})", folder.display())]
    Foreign {
        /// The folder.
        folder: PathBuf,
        /// What was found.
        reason: String,
    },
    /// The process may not read or write there.
    #[error("{}: not permitted: let the agent's user write there ({reason})", folder.display())]
    Permission {
        /// The folder.
        folder: PathBuf,
        /// What failed.
        reason: String,
    },
    /// There is no place for a folder.
    #[error("{}: cannot be made: choose a folder on a local disk ({reason})", folder.display())]
    NoPlace {
        /// The folder.
        folder: PathBuf,
        /// What failed.
        reason: String,
    },
    /// No space is left, or a quota is used up.
    #[error("{}: the disk is full: make room and start the agent again ({reason})", folder.display())]
    Full {
        /// The folder.
        folder: PathBuf,
        /// What failed.
        reason: String,
    },
    /// What is on disk is damaged.
    #[error("{}: damaged ({reason})", folder.display())]
    Damaged {
        /// The folder.
        folder: PathBuf,
        /// How it shows.
        reason: String,
    },
    /// The disk fails.
    #[error("{}: {reason}", folder.display())]
    Failing {
        /// The folder.
        folder: PathBuf,
        /// What failed.
        reason: String,
    },
}

impl DiskError {
    /// Whether the process was started wrongly and should not continue; everything else costs the journal
    /// on disk only.
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
