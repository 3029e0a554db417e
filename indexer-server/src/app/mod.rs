//! The process: wires the modules, runs them, stops them in order.

mod agents;
mod build;
mod checkpoints;
mod engines;
mod error;
mod map;
mod restore;
mod run;
mod siblings;

pub use build::App;
pub use error::BuildError;
pub use run::{RunError, serve};
