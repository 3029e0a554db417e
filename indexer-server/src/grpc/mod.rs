//! The gRPC port: thin handlers that convert, call, and convert back. Only this module uses generated messages.

mod access;
mod admin;
mod config;
mod dump;
mod dump_turns;
mod dumpers;
mod endpoints;
mod find;
mod indexer;
mod ingest;
mod large;
mod local;
mod parts;
mod server;
mod sibling;
mod status;

pub use config::GrpcConfig;
pub use endpoints::{ENDPOINT_PLACES_MAX, EndpointRules, Place};
pub use local::LocalClients;
pub use parts::Parts;
pub use server::{local, serve};
pub use sibling::SiblingClient;
