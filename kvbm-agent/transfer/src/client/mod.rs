//! Fetching blocks from other agents over TCP.
//!
//! - `config`: who fetches. `owners`: whose sets are imported. `connection`: one, until it is lost. `receive`: blocks into slots.
//! - [`tcp`]: the backend.

mod config;
mod connection;
mod owners;
mod receive;
pub mod tcp;

pub use config::ClientConfig;
pub use tcp::TcpBackend;
