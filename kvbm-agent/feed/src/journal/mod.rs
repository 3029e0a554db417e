//! What one source has said: its last batches, numbered, and all that it holds by now. Pure: no I/O,
//! no clock, no lock; whoever shares a journal puts a lock around it, and every call holds it for a
//! bounded time.
//!
//! - The ring of batches is bounded by their number and by their bytes; the oldest go first. It
//!   answers ranges, contiguous and exact.
//! - What is more than one message carries is several batches, each with its number: an event is cut
//!   between blocks, and a chain goes on below its last.
//! - The inventory is what a fresh dump needs: for each rank and name the parent, the local hash and
//!   the copies by tier. At most 44 bytes a name: 32 in a dense array, the rest in the table that
//!   finds them.
//! - A dump reads the inventory a step at a time while batches go on. What is changed after it was
//!   read is noted by name, and its absolute state follows at the end, cut at one moment together
//!   with the number of the last batch. So the records, later ones replacing earlier ones, are
//!   exactly what the source held at that number.
//! - What is held can be told anew, in a new incarnation whose first batches say all of it: for a peer that lacks
//!   batches which are gone, and that can ask nobody. Such an image stays in the ring whatever it takes.
//!
//! A digest of what is held is kept up with it, so that an index finds out whether it holds the same.
//!
//! Copies are read as the index reads them, with one difference: a name that is announced with
//! another parent or another local hash than before stands for new content, and its old copies are
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
