//! The services of an agent, and its port for gRPC: `kvasir.v1.LocalIndexer`, ranges and dumps of the agent's
//! sources, for indexes that missed something; `kvasir.v1.WorkerLoads`, how busy its ranks are, for routers.
//!
//! Every stream is served by a task of its own, with a short queue: a client that takes nothing for
//! too long is cut off, and its stream then lacks its last message, which shows that it failed.

mod config;
mod digests;
mod events;
mod loads;
mod local;
mod outlet;
mod records;
mod server;

pub use config::ServiceConfig;
pub use loads::WorkerLoadsService;
pub use local::{LocalIndexerService, Served};
pub(crate) use outlet::failed;
pub use server::{Offered, serve, serve_socket};
