//! Block states as types: an operation that a state does not allow either does not compile, or returns the block with
//! the reason.
//!
//! | state | type | what it can do |
//! | --- | --- | --- |
//! | Reset | [`MutableBlock`] | `init_sequence`, `continue_sequence`, `complete` |
//! | Partial | [`PartialBlock`] | `add_token`, `add_tokens`, `commit`, `reset` |
//! | Complete | [`CompleteBlock`] | `register`, `reset` |
//! | Registered | [`RegisteredBlock`] | `clone`, `downgrade`, `withdraw` |
//!
//! A block can be dropped in every state. Dropping it resets it, except in Registered: there, dropping the last handle
//! makes the block inactive, and eviction ends the registration and resets it.

mod complete;
mod error;
mod mutable;
mod partial;
mod quarantined;
mod registered;
mod state;

#[cfg(test)]
mod lifecycle_test;

pub use complete::{CompleteBlock, Registration};
pub use error::{BlockRefused, CommitError, IdentityError};
pub use mutable::MutableBlock;
pub use partial::{BlockFull, PartialBlock};
pub use quarantined::QuarantinedBlock;
pub use registered::{RegisteredBlock, WeakBlock};
pub use state::{Block, BlockState};
