//! Fetching blocks from other agents.
//!
//! - `config`: who fetches. `owners`: whose sets are imported. `connection`: one, until it is lost. `connections`: all, used
//!   again. `answers`: requests on one, and what comes back. `slots`: where blocks go.
//! - `receive`: blocks as they are. `parts`: blocks from owners with another layout. `borrow` (feature `nixl`): blocks that an owner
//!   lends.
//! - [`tcp`]: the backend over TCP. `nixl`: the backend that reads what is lent.

mod answers;
#[cfg(feature = "nixl")]
mod borrow;
mod config;
mod connection;
mod connections;
#[cfg(feature = "nixl")]
mod nixl;
mod owners;
mod parts;
mod receive;
mod slots;
pub mod tcp;

pub use config::ClientConfig;
#[cfg(feature = "nixl")]
pub use nixl::NixlBackend;
pub use tcp::TcpBackend;
