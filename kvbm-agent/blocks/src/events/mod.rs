//! Publishes the registrations of a worker's blocks: a snapshot, then ordered change events.
//!
//! One [`EventManager`] serves all tiers of a worker. It keeps an entry for each block that is registered in any tier,
//! and a bounded queue of changes. One lock protects both. Therefore an [`Image`] plus the events after its watermark
//! give the exact current state. Publishing never blocks: if the queue is full, the reader must take a new image.

mod event;
mod handles;
mod manager;

#[cfg(test)]
mod events_test;

pub use event::{BlockEvent, Change, Image, Registration};
pub use handles::{PublishHandle, RegistrationHandle};
pub use manager::{EventManager, EventStats, Overflowed, PublishError};
