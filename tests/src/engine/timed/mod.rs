//! Time for mock engines: how long steps take, and an engine that takes them (pure).
//!
//! - [`model`]: how long a step and a transfer take, by stated assumptions;
//! - [`job`]: a request by its counts and the names of its blocks;
//! - [`event`]: what happens in an engine;
//! - `run`, `cache`, `tiers`: a request in an engine, and where its blocks are;
//! - [`machine`]: the engine: requests and times in, timed events out.
//!
//! [`crate::sweep`] runs it in virtual time, [`crate::engine::live`] in real time. There is no other model of time.

mod cache;
pub mod event;
#[cfg(test)]
pub(crate) mod fixtures_test;
pub mod job;
pub mod machine;
pub mod model;
mod run;
mod tiers;

pub use event::{CacheChange, Event, Timed};
pub use job::{Job, PeerFetch, Terms};
pub use machine::Engine;
pub use model::{EngineOptions, Nanos, SECOND, StepLoad, StepModel, TransferModel};
