//! What is registered where, and what changed, as values.
//!
//! One [`EventManager`] serves all tiers of a worker. It has one entry for each block that is registered in any tier,
//! and a bounded queue of changes. Both change under one lock, so an [`Image`] and the events after its watermark
//! together are the truth. Publishing never blocks: a change that does not fit makes the consumer take an image.

mod event;
mod handles;
mod manager;

#[cfg(test)]
mod events_test;

pub use event::{BlockEvent, Change, Image, Registration};
pub use handles::{PublishHandle, RegistrationHandle};
pub use manager::{EventManager, EventStats, Overflowed, PublishError};
