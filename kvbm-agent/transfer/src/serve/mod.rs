//! The owner's side: a port on which peers fetch blocks.
//!
//! - `shared`: state shared by connections. `sending`: sends the blocks of a request. `lending`: blocks that peers read
//!   directly. `connection`: one peer's connection. [`owner`]: the port.

mod connection;
mod lending;
pub mod owner;

mod sending;
mod shared;

pub use owner::{Owner, OwnerError};

pub use shared::OwnerConfig;
