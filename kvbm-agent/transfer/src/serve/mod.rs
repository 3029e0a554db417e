//! The owner's side: a port on which peers fetch blocks.
//!
//! - `registrar`: TCP needs no registration. `shared`: what is served. `sending`: the blocks of a request. `connection`: one
//!   peer. [`owner`]: the port.

mod connection;
pub mod owner;
mod registrar;
mod sending;
mod shared;

pub use owner::{Owner, OwnerError};
pub(crate) use registrar::NoRegistrar;
pub use shared::OwnerConfig;
