//! The exact prefix index of one partition: which worker rank has which leading blocks of a prompt, in which
//! tier.
//!
//! # Consistency of queries
//! The index is a plain data structure: its owner puts a lock around it, and a query under the read lock sees
//! only complete operations. An event longer than the owner's batch, a clear, and a sweep of suspect blocks
//! take several slices. Between two slices a query may credit a worker with fewer blocks than it has, never
//! with more.
//!
//! # Contents
//! Every announced name is *held* from then on, with its parent name, local hash and copies by source and
//! tier. A name whose chain to the root is known is *placed* at a position. Only placed names count in
//! queries. Other names are *parked* until their parent arrives. A known position stays: removing a block in
//! mid-chain leaves a hole, and storing it again repairs the chain.
//!
//! # Data structures
//! A position is a *slot*. A stored chain gets consecutive slots, with spare slots behind it while it grows.
//! A lookup therefore mostly compares long runs of local hashes. A *segment* is a run of consecutive slots
//! with one set of holders per tier. The sets are interned, so a walk compares them only where they change.
//! One table maps the engines' names to slots for every rank that uses the slot's own name with one copy per
//! tier. This is the *plain* case, which costs a rank one bit in the set and a count per page of 64 slots.
//! All other cases (a second copy, a second source, another name for the same content, a parked name) are
//! explicit records of the rank. A block of a further group takes a bit at the slot of its name, else a record.
//!
//! Reading order (a module refers only to earlier ones):
//! - storage and utilities: `runs`, `slots` and `segments`; `sets`, `numbers`, `table` and `prefetch`
//! - positions and their holders: `trie` and `hold`
//! - one rank: `record`, `records`, `declared`, `bits`, `pages`, `changes`, `dirty`, `contradicted` and `holder`
//! - workers, pools, sources and connectors' chunks: `meanings`, `source`, `chunks` and `roles`
//! - the index: `index`, `rank`, `registry` and `views`
//! - changes: `apply`, `store`, `park`, `remove`, `absolute`, `sweep` and `shed`
//! - reads: `walk`, `shared` (blocks in pools), `find`, `dump`, `digest`, and `image` with `cut` and
//!   `restore`
//! - `validate`, which checks every invariant

mod error;
mod limits;

mod hold;
mod numbers;
mod prefetch;
mod runs;
mod segments;
mod sets;
mod slots;
mod table;
mod trie;

mod bits;
mod changes;
mod chunks;
mod compact;
mod contradicted;
mod cursor;
mod declared;
mod dirty;
mod holder;
mod listing;
mod meanings;
mod pages;
mod record;
mod records;
mod reuse;
mod roles;
mod shortfall;
mod source;
mod totals;

mod compare;
mod index;
mod rank;
mod registry;
mod views;
mod walk;

mod absolute;
mod apply;
mod grouped;
mod park;
mod remove;
mod shed;
mod store;
mod sweep;

mod cut;
mod digest;
mod dump;
mod find;
mod image;
mod restore;
mod shared;
mod stats;
mod validate;

mod placements;

pub use contradicted::{Contradiction, Meaning};
pub use cut::{Cut, CutReceipt, CutStep};
pub use dump::{DumpRecord, DumpScan, DumpSourceEnd, DumpTail};
pub use error::{DamagedImage, IndexError};
pub use find::{Match, Prompt, Query, Reuse, Scratch};
pub use image::{
    HoleImage, MeaningImage, NameImage, PageImage, Position, RankImage, RunImage, SourceImage,
    WorkerImage,
};
pub use index::Index;
pub use limits::{ChangeLimits, Limits};
pub use placements::{
    Dropped, PlacedMatch, PlacedScratch, Placements, Recorded, Recording, RecordingCut,
};
pub use restore::{Restore, RestoreStep, Restored, Saved};
pub use shared::SharedBlocks;
pub use shed::Shed;
pub use slots::{PAGE_SLOTS, Slot};
pub use source::{HolderId, SourceId};
pub use stats::Stats;
pub use sweep::Cleared;
pub use views::{HolderView, WorkerView};
pub use walk::QueryKey;
