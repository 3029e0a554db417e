//! The indexes, each behind the same two traits, through its fastest public interface.

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

/// An index being built.
pub(crate) trait Index: Sized {
    /// What it is called in reports.
    const NAME: &'static str;
    /// Whether its answers are right while chains have holes.
    const EXACT: bool;
    /// Its side that answers.
    type Asked: Ask;
    /// Operations in its own form.
    type Batch: Default;

    /// An empty index for that many workers.
    fn new(workers: usize) -> Self;

    /// Turns operations into its own form. Not timed.
    fn prepare(content: &Content, script: &Script, part: &[Operation], batch: &mut Self::Batch);

    /// Applies a batch, and returns when all of it can be seen. Timed.
    fn apply(&mut self, batch: &mut Self::Batch);

    /// (worker, block) pairs that it holds.
    fn pairs(&mut self) -> usize;

    /// Bytes that it takes by its own account, if it keeps one.
    fn accounted_bytes(&self) -> Option<u64> {
        None
    }

    /// Does the maintenance that its makers foresee and that nothing else triggers.
    fn tidy(&mut self) {}

    /// The side that answers.
    fn asked(&self) -> &Self::Asked;
}

/// An index whose answering side other threads may use while it is written.
pub(crate) trait Shared: Index<Asked: Send + Sync> + Send {
    /// The side that answers.
    fn shared(&self) -> Arc<Self::Asked>;
}

/// The side of an index that answers.
pub(crate) trait Ask {
    /// Its calls, by name.
    const CALLS: &'static [&'static str];
    /// Its type of a local hash.
    type Hash: Copy;
    /// Where an answer goes: kept between questions, so that what can be reused is.
    type Answer: Default;

    /// A local hash.
    fn hash(local: u64) -> Self::Hash;

    /// Asks with one of the calls. Timed.
    fn ask(&self, call: usize, query: &[Self::Hash], answer: &mut Self::Answer);

    /// (worker, leading blocks) of the last answer, in no order.
    fn scores(&self, call: usize, answer: &Self::Answer) -> Vec<(u32, u32)>;
}

/// Sums an answer up, to compare it.
pub(crate) fn summary(scores: &[(u32, u32)]) -> Expected {
    Expected {
        workers: scores.len(),
        deepest: scores.iter().map(|&(_, blocks)| blocks as usize).max().unwrap_or(0),
        sum: scores.iter().map(|&(_, blocks)| blocks as usize).sum(),
    }
}
