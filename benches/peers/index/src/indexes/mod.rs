//! The compared indexes, each with the same two traits, through its fastest public interface.

mod chain;
mod crtc;
mod dynamo;
mod kvasir;
mod locked;
mod positional;
mod sharded;

pub(crate) use chain::Chain;
pub(crate) use crtc::Crtc;
pub(crate) use kvasir::Kvasir;
pub(crate) use locked::Locked;
pub(crate) use positional::Positional;
pub(crate) use sharded::Sharded;

use crate::workload::{Content, Expected, Operation, Script};
use std::sync::Arc;

/// An index that is written and measured.
pub(crate) trait Index: Sized {
    /// Name in reports.
    const NAME: &'static str;
    /// Whether answers are exact while chains have holes.
    const EXACT: bool;
    /// The index's query interface.
    type Asked: Ask;
    /// Operations in the index's own form.
    type Batch: Default;

    /// Creates an empty index for `workers` workers.
    fn new(workers: usize) -> Self;

    /// Converts operations to the index's own form. Not timed.
    fn prepare(content: &Content, script: &Script, part: &[Operation], batch: &mut Self::Batch);

    /// Applies a batch, and returns when all of it is visible. Timed.
    fn apply(&mut self, batch: &mut Self::Batch);

    /// Number of (worker, block) pairs.
    fn pairs(&mut self) -> usize;

    /// Memory use by the index's own account, in bytes, if it keeps one.
    fn accounted_bytes(&self) -> Option<u64> {
        None
    }

    /// Performs the maintenance that the index's makers intend and nothing else triggers.
    fn tidy(&mut self) {}

    /// The query interface.
    fn asked(&self) -> &Self::Asked;
}

/// An index that other threads may query while it is written.
pub(crate) trait Shared: Index<Asked: Send + Sync> + Send {
    /// The query interface.
    fn shared(&self) -> Arc<Self::Asked>;
}

/// The query interface of an index.
pub(crate) trait Ask {
    /// Names of its query functions.
    const CALLS: &'static [&'static str];
    /// The index's type of a local hash.
    type Hash: Copy;
    /// Buffer of an answer, kept between queries so that its memory is reused.
    type Answer: Default;

    /// Converts a local hash.
    fn hash(local: u64) -> Self::Hash;

    /// Queries with one of the functions. Timed.
    fn ask(&self, call: usize, query: &[Self::Hash], answer: &mut Self::Answer);

    /// (worker, leading blocks) of the last answer, unsorted.
    fn scores(&self, call: usize, answer: &Self::Answer) -> Vec<(u32, u32)>;
}

/// Summarises an answer for comparison.
pub(crate) fn summary(scores: &[(u32, u32)]) -> Expected {
    Expected {
        workers: scores.len(),
        deepest: scores.iter().map(|&(_, blocks)| blocks as usize).max().unwrap_or(0),
        sum: scores.iter().map(|&(_, blocks)| blocks as usize).sum(),
    }
}
