//! The gRPC port: thin handlers that convert, call, and convert back. The only code here that
//! knows tonic and messages.

mod admin;
mod config;
mod dump;
mod find;
mod indexer;
mod ingest;
mod limit;
mod local;
mod metrics;
mod outlet;
mod server;
mod sibling;
mod status;
mod too_long;

pub use config::GrpcConfig;
pub use local::LocalClients;
pub use metrics::GrpcMetrics;
pub use server::{Parts, ServeError, serve};
pub use sibling::SiblingClient;
