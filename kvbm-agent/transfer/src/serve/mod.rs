//! The owner's side: a port on which peers fetch blocks.
//!
//! - `shared`: what is served. `sending`: the blocks of a request. `lending`: blocks
//!   that peers read by themselves. `connection`: one peer. [`owner`]: the port.

mod connection;
mod lending;
pub mod owner;

mod sending;
mod shared;

pub use owner::{Owner, OwnerError};

pub use shared::OwnerConfig;
