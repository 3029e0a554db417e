//! API for an engine that embeds the agent and publishes its own events.

mod direct;
mod error;

pub use direct::{Content, KvEventPublisher, NewBlocks};
pub use error::PublishError;

#[cfg(test)]
mod direct_test;
