//! Journal on disk (write-ahead log with images). A restarted agent continues its incarnation if the engine survived.
//!
//! - **Written ahead**: batches that a source publishes together are one atomic write, with the source's cursor. The
//!   operating system has the write before any reader is notified. It is not synced: a killed agent loses nothing. A
//!   crashed machine also ends the engine, which the next start detects.
//! - **Consolidated sources**: the same write has the changed holdings of each source, one value per name. The joined
//!   holdings do not show which source holds a block.
//! - **An image** of all held blocks, made from a dump in the background, bounds the size on disk. Earlier batches are
//!   removed, except those that indexes may request. The previous image stays until the new one is complete.
//! - **Valid while marked**: the first failed write removes the mark, and the next start begins a new incarnation.
//!   Unreadable data has the same effect. Another worker's folder, or one in use, is refused.
//!
//! In a build without the feature `disk`, `absent` replaces `store`, and RocksDB is not linked.

mod config;
mod error;
mod figures;
mod opened;
mod persisted;
#[cfg_attr(not(feature = "disk"), path = "absent.rs")]
mod store;
mod verdict;

pub use config::{DiskConfig, POOL_FOLDER};
pub use error::DiskError;
pub use figures::{DiskFigures, DiskStatus};
pub use opened::{OpenedWith, Restored};
pub use persisted::{
    DiskChange, Flaws, HoldingsChange, NamesChange, PersistedHoldings, PersistedNames,
    PersistedSource, PersistedSources, SourceChange, SourceKind, SourcePosition,
};
pub use store::{CompleteImage, Disk, leave, open};
pub use verdict::{NewIncarnation, Verdict};

/// An opened journal on disk.
pub type Opened = OpenedWith<Disk>;
