//! The router as a process, for gateways that do not link `router-client`: `kvasir.v1.Router` over gRPC.
//!
//! - [`config`]: options.
//! - [`fleet`]: a router of the library for each model, tenant and pool.
//! - [`discovery`]: which workers there are, by the index.
//! - [`agents`]: how busy they are, by their agents.
//! - [`reports`]: how busy the engines say they are.
//! - [`sync`]: replicas of the router.
//! - [`metrics`]: counters and histograms.
//! - [`grpc`]: the service.
//! - [`app`]: all of it, run and stopped in order.

pub mod agents;
pub mod app;
pub mod config;
pub mod discovery;
pub mod fleet;
pub mod grpc;
pub mod metrics;
pub mod reports;
pub mod sync;
