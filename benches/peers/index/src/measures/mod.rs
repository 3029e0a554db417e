//! What is measured, each on an index that holds what its workload says.

mod apply;
mod lookup;

pub(crate) use apply::{Applied, apply};
pub(crate) use lookup::{check, lookups};
