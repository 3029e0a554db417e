//! Merges all sources of an agent into one stream. Each source publishes through its [`Inlet`], from any thread, and
//! the hub appends its events to the agent's [`Feed`](crate::feed::Feed) in order.
//!
//! - If each rank has one source, events pass unchanged, under the source's names and copy mode, and no block is stored
//!   twice. If a rank may have several sources, they are [consolidated](crate::consolidate), in copy mode set.
//! - A source is cleared when it begins a new incarnation, loses events or ends. The agent's stream continues, because
//!   its incarnation is independent of the sources'.
//! - Batches are published immediately, or collected for a configured time. Waiting batches are not in the journal, and
//!   neither readers nor heartbeats see them.
//! - Each call holds one lock while it publishes. A clear holds it while it removes all blocks of the source.

mod config;
mod inlet;
mod left;
mod merge;
mod persisted;
mod report;
mod resume;
mod source;
mod sources;
mod waiting;

pub use config::{BATCH_BLOCKS_MAX, BATCH_INTERVAL_MAX, BatchingConfig, HubConfig, HubError};
pub use inlet::{Hub, Inlet, Taken};
pub use report::{SourceCounts, SourceReport};

#[cfg(test)]
#[cfg(feature = "disk")]
mod consolidated_test;
#[cfg(test)]
mod hub_test;
#[cfg(test)]
#[cfg(feature = "disk")]
mod persisted_test;
#[cfg(test)]
mod waiting_test;
