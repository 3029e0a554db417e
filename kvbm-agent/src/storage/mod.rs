//! What a block manager stores where, for subscribers such as storage providers: gathered beside the stream of the index,
//! and published in batches. All here is pure: [`broker`](crate::broker) has the connection.
//!
//! - `config`: how often, and under which names.
//! - `waiting`: changes that wait to be published; if they are too many, an image of everything takes their place.
//! - `book`: the same, shared by who tells of changes and who publishes them.
//! - `outbox`: numbered batches, one sequence for each location.

mod book;
mod config;
mod outbox;
mod waiting;

pub use book::{StorageBook, StorageStats};
pub use config::{STORAGE_INTERVAL_DEFAULT, StorageConfig};
pub use outbox::Outbox;
pub use waiting::{STORAGE_BATCH_EVENTS, STORAGE_QUEUED_EVENTS_MAX, Waiting, Work};
