//! Several sources of one worker as one: an engine, a block manager beside it, mirrors of other agents.
//! Pure.
//!
//! A block is stored when its first source stores it in a tier and removed when the last one has removed it there.
//! Sources name blocks in their own ways; what is the same block they agree on by its canonical hash, which
//! follows from its tokens and those before them. A block whose chain to the root its source has not published
//! cannot be joined: it is published under a name that only its source has.

mod consolidator;
mod rank;

pub use consolidator::{
    ConsolidateConfig, ConsolidateCounts, Consolidator, SOURCES_MAX, SourceNumber,
};

#[cfg(test)]
mod consolidator_test;
