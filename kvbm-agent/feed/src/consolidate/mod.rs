//! Several sources of one worker as one: an engine, a block manager beside it, mirrors of other agents.
//! Pure.
//!
//! A block is stored when its first source stores it in a tier and removed when the last one has removed it there.
//! Sources name blocks in their own ways; what is the same block they agree on by its canonical hash, which
//! follows from its tokens and those before them. A block whose chain to the root its source has not published
//! cannot be joined: it is published under a name that only its source has.
//!
//! What each source holds can be told as it changes, and brought back in another process: then each source's end is
//! the end of its own holdings there, too.

mod consolidator;
mod holding;
mod rank;

pub use consolidator::{ConsolidateConfig, ConsolidateCounts, Consolidated, Consolidator};
pub use holding::{ConsolidatedSource, Holding, HoldingChange, Naming, SOURCES_MAX, SourceNumber};

#[cfg(test)]
mod consolidator_test;
