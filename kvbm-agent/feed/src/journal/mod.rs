//! What one source has published: its last batches, numbered, and all that it holds. Pure: no I/O,
//! no clock, no lock. Tasks share a journal behind a lock, which every call holds for a
//! bounded time.
//!
//! - The ring of batches is bounded by their number and by their bytes; the oldest go first. It
//!   answers ranges, contiguous and exact.
//! - What is more than one message carries is several batches, each with its number: an event is cut
//!   between blocks, and the rest of a chain has the last block as its parent.
//! - The inventory is what a fresh dump needs: for each rank and name the parent, the local hash and
//!   the copies by tier. At most 44 bytes a name: 32 in a dense array, the rest in the table that
//!   finds them.
//! - A dump reads the inventory a step at a time between batches. What changes after it was
//!   read is noted by name, and its absolute state follows at the end, cut at one moment together
//!   with the number of the last batch. So the records, later ones replacing earlier ones, are
//!   exactly what the source held at that number.
//! - All that is held can be published again, as the first batches of a new incarnation: for a peer that lacks
//!   batches which are gone, and that cannot fetch a dump. The ring retains such an image whatever its size.
//!
//! A digest of what is held changes with it, so that an index can check that it holds the same.
//!
//! Copies are read as the index reads them, with one difference: a name that is announced with
//! another parent or another local hash than before is new content, and its old copies are
//! gone. The index may know that both are the same place under two names; engines whose names are
//! hashes of the whole prefix never get there.
//!
//! Tokens never get in: events carry local hashes only.

mod batch;
mod config;
mod dump;
mod error;
mod image;
mod inventory;
mod names;
mod persisted;
mod rank;
mod ring;
mod scan;
mod split;
mod store;

pub use batch::Batch;
pub use config::JournalConfig;
pub use dump::{DumpCut, DumpStep};
pub use error::{AppendError, DigestError, DumpAbort, DumpError, RangeError};
pub use persisted::PersistedIncarnation;
pub use ring::BatchRange;
pub use scan::DumpId;
pub use store::{Journal, JournalStatus, RankDigests};

#[cfg(test)]
mod bounds_test;
#[cfg(test)]
mod journal_test;
#[cfg(test)]
mod model_test;
#[cfg(test)]
mod split_test;
