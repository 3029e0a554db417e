//! HTTP client of engines' APIs, plain or over TLS, with their keys.

mod address;
mod client;
mod connect;
mod keys;

pub use address::{need_authority, read_address};
pub use client::{Answer, EngineClient, EngineError, Sent, Whole};
pub use keys::EngineKeys;
