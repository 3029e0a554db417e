//! The journal on disk, so that a restarted agent continues its incarnation if the engine survived.
//!
//! - **Written ahead**: what a source publishes at once is one atomic write together with its cursor, handed to
//!   the system before any reader is notified. It is not synced: a killed agent loses nothing, and a machine that
//!   crashes takes the engine with it, which is found out.
//! - **Where sources are consolidated** the same write has what each of them holds, a value for each of its names: what
//!   they hold together does not say whose it is.
//! - **An image** of all that is held, made from a dump in the background, bounds what is on disk: batches before it
//!   go, but for those that indexes may ask for. The image before stays until the new one is complete.
//! - **It counts as long as its mark is there**: the first write that fails removes it, and the next start begins a
//!   new incarnation. So does whatever cannot be read. Another worker's folder, or one that is in use, is refused.
//!
//! In a build without the feature `disk` `absent` takes the place of `store`, and nothing links RocksDB.

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

/// A journal on disk that was opened.
pub type Opened = OpenedWith<Disk>;
