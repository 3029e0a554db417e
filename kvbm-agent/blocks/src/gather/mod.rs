//! Gather and scatter: which bytes of which source go where, when blocks of the same tokens lie differently.
//!
//! A worker with 4 tensor-parallel ranks and one with 8 split the heads of each token differently, and may have other
//! page sizes, forms of layout and alignments. A [`CopyPlan`] is the list of copies between them, as offsets in the
//! memory of [block sets](crate::sets). It is a value: somebody else carries it out.
//!
//! Splits are compared as intervals of elements, so a plan exists for any two ways to split the same heads. Groups in which
//! ranks hold the same heads (MLA, or fewer heads than ranks) state so in
//! [`TensorParallel::replicas`](crate::sets::TensorParallel::replicas).

mod error;
mod op;
mod side;

mod pair;

mod copy_plan;

#[cfg(test)]
mod gather_test;

pub use copy_plan::CopyPlan;
pub use error::{CopyError, Side};
pub use op::{CopyLimits, CopyOp, CopyPlace};
pub use side::CopyRank;
