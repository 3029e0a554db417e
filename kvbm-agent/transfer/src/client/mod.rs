//! Fetching blocks from other agents.
//!
//! - `config`: who fetches. `owners`: whose sets are imported. `connection`: one, until it is lost. `connections`: all, used
//!   again. `requests`: what one is asked. `answers`: blocks that are sent. `slots`: where blocks go.
//! - `receive`: blocks as they are. `parts`: blocks from owners with another layout, by streams of parts: `sent`.
//! - With feature `nixl`: `loans`: what owners lend. `borrow`: lent blocks as they are. `staged`: parts of lent blocks.
//! - [`tcp`]: the backend over TCP. `nixl`: the backend that reads what is lent.

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
