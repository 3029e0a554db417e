//! The journal on disk, so that an agent which comes back goes on with the life of an engine that lived on.
//!
//! - **Written ahead**: what sources say at once is one atomic write together with the source's cursor, handed to
//!   the system before anybody is told of it. It is not synced: a killed agent loses nothing, and a machine that
//!   crashes takes the engine with it, which is found out.
//! - **An image** of all that is held, made from a dump in the background, bounds what is kept: batches before it
//!   go, but for those that indexes may ask for. The image before stays until the new one is complete.
//! - **It counts as long as its mark is there** (`folder`): the first write that fails removes it, and the next start
//!   begins a new life. So does whatever cannot be read. Another worker's folder, or one that is in use, is refused.
//!
//! What is written and how it is read back are functions over `Target` and
//! `Origin`, tested without RocksDB; `store` is the shell.

mod config;
mod error;
mod figures;
mod folder;
mod format;
mod image;
mod open;
mod records;
mod restore;
mod store;
mod verdict;

pub use config::{DiskConfig, LOG_BYTES_MAX};
pub use error::DiskError;
pub use figures::{DiskFigures, DiskStatus};
pub use image::{CompleteImage, ImageOptions, ImageWriter};
pub use open::{Opened, Restored, leave, open};
pub use records::{KeptSource, SourceKind};
pub use store::{Disk, SourceChange};
pub use verdict::{NewLife, Verdict};

#[cfg(test)]
mod restore_test;
#[cfg(test)]
mod store_test;
