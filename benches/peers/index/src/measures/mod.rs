//! Measurements, each on an index with the content of its workload.

mod apply;
mod churn;
mod cold;
mod floor;
mod lookup;
mod remove;
mod replay;
mod writer;

pub(crate) use apply::apply;
pub(crate) use churn::Churn;
pub(crate) use cold::cold;
pub(crate) use floor::floor;
pub(crate) use lookup::{check, lookups};
pub(crate) use remove::{heal, remove};
pub(crate) use replay::replay;
pub(crate) use writer::{Writing, under_writer};
