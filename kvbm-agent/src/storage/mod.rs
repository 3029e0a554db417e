//! Storage events: which tier of a block manager stores which block, for subscribers such as storage providers. They
//! are collected separately from the index's stream, and published in batches. Pure: [`broker`](crate::broker) has the
//! connection.
//!
//! - `config`: interval and names.
//! - `waiting`: changes that wait to be published. If there are too many, an image of all blocks replaces them.
//! - `book`: shares this queue between the reader of changes and the publisher.
//! - `outbox`: numbers batches, with one sequence per location.

mod book;
mod config;
mod outbox;
mod waiting;

pub use book::{StorageBook, StorageStats};
pub use config::{STORAGE_INTERVAL_DEFAULT, StorageConfig};
pub use outbox::Outbox;
pub use waiting::{STORAGE_BATCH_EVENTS, STORAGE_QUEUED_EVENTS_MAX, Waiting, Work};
