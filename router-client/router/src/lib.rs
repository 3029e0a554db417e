//! The router as a process, for gateways that do not link `router-client`: `kvasir.v1.Router` over gRPC.
//!
//! Data flows one way: [`config`] says what is wanted; [`discovery`] lists the workers of the index and makes a router of
//! the library for each model, tenant and pool ([`fleet`]); [`agents`], [`pages`] and [`sync`] bring in how busy engines say
//! they are ([`reports`]) and what replicas of the router tell; [`routing`] is all of that together, which the gateway uses, too;
//! [`grpc`] serves it, [`metrics`] and [`output`] count it, [`recorder`] writes requests down, [`app`] runs all of it and stops
//! it in order.

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
