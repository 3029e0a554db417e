//! Event log of one source: its latest batches, numbered, and all its held blocks. Pure: no I/O, no clock, no lock.
//! Tasks share a journal behind a lock, which every call holds for a bounded time.
//!
//! - The ring of batches is limited by number and bytes; the oldest batches are evicted first. It answers range
//!   requests, contiguous and exact.
//! - Events that exceed one message become several batches, each with its number. An event is cut between blocks, and
//!   the rest of a chain has the last block as its parent.
//! - The inventory has the data for a fresh dump: for each rank and name the parent, the local hash and the copies by
//!   tier. It takes at most 44 bytes a name: 32 in a dense array, the rest in the lookup table.
//! - A dump reads the inventory in steps between batches. Names that change after they were read are recorded. Their
//!   final state follows at the end, cut at one moment together with the number of the last batch. If later records
//!   replace earlier ones, the records are exactly the source's blocks at that number.
//! - All held blocks can be republished, as the first batches of a new incarnation. This serves a peer that lacks
//!   evicted batches and cannot fetch a dump. The ring retains such an image whatever its size.
//!
//! The journal updates a digest of all cached blocks. An index compares it, to check that it has the same blocks.
//!
//! Copies count as in the index. A store under a held name, but with another parent or local hash, counts as a copy of
//! the held block. Engines whose names are hashes of the complete prefix never send such a store.
//!
//! Events carry local hashes only, never tokens.

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
