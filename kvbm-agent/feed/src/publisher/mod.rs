//! The direct API: an engine that embeds the agent publishes what it holds.

mod direct;
mod error;

pub use direct::{Content, KvEventPublisher, NewBlocks};
pub use error::PublishError;

#[cfg(test)]
mod direct_test;
