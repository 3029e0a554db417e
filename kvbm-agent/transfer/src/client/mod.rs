//! The fetching side: backends that fetch blocks from other agents.
//!
//! - `config`: configuration. `owners`: owners with imported sets. `connection`: one connection. `connections`: the
//!   connection pool. `requests`: pipelined requests. `answers`: received blocks. `slots`: slots for blocks.
//! - `receive`: complete blocks. `parts`: blocks from owners with another layout, as streams of parts. `sent`: received
//!   parts.
//! - With feature `nixl`: `loans`: lent blocks. `borrow`: complete lent blocks. `staged`: parts of lent blocks.
//! - [`tcp`]: the backend over TCP. `nixl`: the backend that reads lent blocks.

mod answers;
#[cfg(feature = "nixl")]
mod borrow;
mod config;
mod connection;
mod connections;
#[cfg(feature = "nixl")]
mod loans;
#[cfg(feature = "nixl")]
mod nixl;
mod owners;
mod parts;
mod receive;
mod requests;
mod sent;
mod slots;
#[cfg(feature = "nixl")]
mod staged;
pub mod tcp;

pub use config::ClientConfig;
#[cfg(feature = "nixl")]
pub use nixl::NixlBackend;
pub use tcp::TcpBackend;
