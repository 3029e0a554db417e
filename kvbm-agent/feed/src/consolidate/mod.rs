//! Merges several sources of one worker into one: an engine, a block manager beside it, mirrors of other agents. Pure.
//!
//! A block is stored when its first source stores it in a tier. It is removed when its last source removes it there.
//! Sources name blocks in their own ways. Blocks are matched by canonical hash, which follows from their own tokens and
//! all tokens before. A block whose chain to the root its source has not published cannot be joined. It is published
//! under a name that only its source uses.
//!
//! Changes of each source's holdings can be reported, and restored in another process. The end of a source then still
//! removes exactly its own holdings.

mod consolidator;
mod holding;
mod rank;

pub use consolidator::{ConsolidateConfig, ConsolidateCounts, Consolidated, Consolidator};
pub use holding::{ConsolidatedSource, Holding, HoldingChange, Naming, SOURCES_MAX, SourceNumber};

#[cfg(test)]
mod consolidator_test;
