//! gRPC services of an agent, and its port. `kvasir.v1.LocalIndexer` serves ranges and dumps to indexes that missed
//! batches. `kvasir.v1.WorkerLoads` serves the ranks' loads to routers.
//!
//! Every stream is served by a separate task, with a short queue. A client that takes no message for too long is cut
//! off. Its stream then lacks its last message, which shows that it failed.

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
