//! A block's life as types: what a block can't do in its state does not compile, or gives it back with a reason.
//!
//! | state | type | what it can do |
//! | --- | --- | --- |
//! | Reset | [`MutableBlock`] | `init_sequence`, `continue_sequence`, `complete` |
//! | Partial | [`PartialBlock`] | `add_token`, `add_tokens`, `commit`, `reset` |
//! | Complete | [`CompleteBlock`] | `register`, `reset` |
//! | Registered | [`RegisteredBlock`] | `clone`, `downgrade`, `withdraw` |
//!
//! Dropping a block is possible in every state. It goes back to Reset, except from Registered: the last handle makes
//! a registered block inactive, and eviction drops its registration, which resets it.

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
