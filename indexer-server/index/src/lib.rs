//! The exact prefix index of one partition: which worker rank holds which leading blocks of a
//! prompt, in which tier.
//!
//! # What a query may observe
//! The index is a plain data structure: its owner puts a lock around it, and a query under the
//! read lock sees complete operations only. An event longer than the owner's batch, a clear and a
//! sweep of suspect blocks take several steps; between two steps a query may credit a worker with
//! fewer blocks than it holds, never with more.
//!
//! # What it holds
//! Every announced name is *held* at once, with its parent name, local hash and copies by source
//! and tier. A name whose chain to the root is known is *placed* at a position, and only placed
//! names score; the others are *parked* until their parent arrives. A position, once known, stays:
//! removing a block in mid-chain leaves a hole, and refilling it heals the chain.
//!
//! # How it is laid out
//! A position is a *slot*. A stored chain gets consecutive slots, with room behind it while it
//! grows, so a lookup compares long runs of local hashes and little else. A *segment* is a stretch
//! of consecutive slots with one set of holders per tier; the sets are interned, so a walk looks at
//! them only where they change. One table maps the engines' names to slots for every rank that
//! uses the slot's own name with one copy per tier: the *plain* case, which costs a rank a bit in
//! the set and a count per page of 64 slots. Whatever is not plain (a second copy, a second source,
//! another name for the same content, a parked name) is an explicit record of that rank.
//!
//! Reading order: `runs`, `slots` and `segments` (storage), `sets`, `numbers`, `table` and `prefetch` (shared
//! pieces), `trie` and `hold` (positions and who holds them), `record`, `records`, `pages`,
//! `changes`, `dirty`, `contradicted` and `holder` (one rank), `meanings`, `source`, `chunks` and `roles` (workers, pools, sources and the chunks of connectors), `index`, `rank`, `registry` and `views`, then
//! the modules that change them: `apply`, `store`, `park`, `remove`, `absolute`, `sweep` and `shed`,
//! then the modules that read them: `walk`, `shared` (what pools hold) and `find`, `dump`, `digest`, `image` with `cut` and `restore`. Last comes
//! `validate`, which checks every invariant. No module refers to a later one.

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

mod changes;
mod chunks;
mod contradicted;
mod cursor;
mod dirty;
mod holder;
mod listing;
mod meanings;
mod pages;
mod record;
mod records;
mod roles;
mod shortfall;
mod source;
mod totals;

mod index;
mod rank;
mod registry;
mod views;
mod walk;

mod absolute;
mod apply;
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
pub use find::{Match, Query, Scratch};
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
