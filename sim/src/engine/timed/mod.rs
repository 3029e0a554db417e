//! Mock engines with time: a model of step durations, and an engine that follows it (pure).
//!
//! - [`model`]: durations of steps and transfers, by stated assumptions;
//! - [`job`]: a request in terms of counts and block names;
//! - [`event`]: events of an engine;
//! - `run`, `cache`, `tiers`: a request in an engine, and the locations of its blocks;
//! - [`machine`]: the engine as a state machine: requests and times in, timed events out.
//!
//! [`crate::sweep`] runs the engine in virtual time, [`crate::engine::live`] in real time. Both use this model of time
//! only.

mod cache;
pub mod event;
#[cfg(test)]
pub(crate) mod fixtures_test;
pub mod job;
pub mod machine;
pub mod model;
mod run;
mod states;
mod tiers;

pub use event::{CacheChange, Event, Timed};
pub use job::{Job, PeerFetch, Terms};
pub use machine::Engine;
pub use model::{EngineOptions, Nanos, SECOND, StepLoad, StepModel, TransferModel};
