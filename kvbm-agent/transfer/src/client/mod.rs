//! Fetching blocks from other agents.
//!
//! - `config`: who fetches. `owners`: whose sets are imported. `connection`: one, until it is lost. `receive`: blocks into slots.
//! - [`tcp`]: the backend over TCP. `borrow` (feature `nixl`): blocks that an owner lends. `nixl`: the backend that reads them.

#[cfg(feature = "nixl")]
mod borrow;
mod config;
mod connection;
#[cfg(feature = "nixl")]
mod nixl;
mod owners;
mod receive;
pub mod tcp;

pub use config::ClientConfig;
#[cfg(feature = "nixl")]
pub use nixl::NixlBackend;
pub use tcp::TcpBackend;
