//! Gather and scatter: plans copies between block layouts that store the same tokens differently.
//!
//! A worker with 4 tensor-parallel ranks and a worker with 8 split the heads of each token differently. Page sizes,
//! forms of layout and alignments may differ, too. A [`CopyPlan`] lists the copies between them, as offsets in the
//! memory of [block sets](crate::sets). It is plain data: the caller executes it.
//!
//! Splits are compared as intervals of elements, so a plan exists for any two splits of the same heads. In some groups
//! several ranks have the same heads (MLA, or fewer heads than ranks). They state this in
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
