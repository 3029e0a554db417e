//! Fetching blocks from other agents over TCP.
//!
//! - `config`: who fetches. `owners`: whose sets are imported. `connection`: one, until it is lost. `connections`: all, used
//!   again. `answers`: requests on one, and what comes back. `slots`: where blocks go.
//! - `receive`: blocks as they are. `parts`: blocks from owners with another layout.
//! - [`tcp`]: the backend.

mod answers;
mod config;
mod connection;
mod connections;
mod owners;
mod parts;
mod receive;
mod slots;
pub mod tcp;

pub use config::ClientConfig;
pub use tcp::TcpBackend;
