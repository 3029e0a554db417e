//! The service `kvasir.v1.LocalIndexer`, and its port for gRPC: ranges and dumps of an agent's sources, for indexes
//! that missed something.
//!
//! Every stream is served by a task of its own, with a short queue: a client that takes nothing for
//! too long is cut off, and its stream then lacks its last message, which says that it failed.

mod config;
mod events;
mod local;
mod records;
mod server;

pub use config::ServiceConfig;
pub use local::LocalIndexerService;
pub(crate) use local::failed;
pub use server::{ServeError, Served, serve};
