//! The router process, for gateways that do not link `router-client`: serves `kvasir.v1.Router` over gRPC.
//!
//! Data flows in one direction:
//!
//! - [`config`] has the checked options.
//! - [`discovery`] lists the index's workers, and creates a library router for each model, tenant and pool ([`fleet`]).
//! - [`agents`], [`pages`] and [`sync`] receive engines' load reports ([`reports`]) and messages from other routers.
//! - [`routing`] combines these parts; the gateway uses it too.
//! - [`grpc`] serves it, [`metrics`] and [`output`] count, and [`recorder`] writes requests to a file.
//! - [`app`] starts all parts and stops them in order.

pub mod agents;
pub mod app;
pub mod config;
pub mod discovery;
mod fetches;
pub mod fleet;
pub mod grpc;
pub mod metrics;
pub mod output;
pub mod pages;
pub mod recorder;
pub mod reports;
pub mod routing;
pub mod sync;
