//! Fetching blocks from other agents over TCP.
//!
//! - `owners`: whose sets are imported. `connection`: one, until it is lost. `receive`: blocks into slots. [`tcp`]: the backend.

mod connection;
mod owners;
mod receive;
pub mod tcp;

pub use tcp::{ClientConfig, TcpBackend};
