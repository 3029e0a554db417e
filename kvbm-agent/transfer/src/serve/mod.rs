//! The owner's side: a port on which peers fetch blocks.
//!
//! - `registrar`: TCP needs no registration. [`owner`]: the port. `connection`: one peer. `sending`: the blocks of a request.

mod connection;
pub mod owner;
mod registrar;
mod sending;

pub use owner::{Owner, OwnerConfig, OwnerError};
pub(crate) use registrar::NoRegistrar;
