//! What all sources of an agent publish, as one stream: each publishes through its [`Inlet`], from any thread,
//! and it goes into the agent's [`Feed`](crate::feed::Feed) in order.
//!
//! - Where each rank has one source, its events are passed through, under the source's own names and copy
//!   mode: nothing is held twice. Where a rank may have several, they are
//!   [consolidated](crate::consolidate), in copy mode set.
//! - A source that begins a new incarnation, has lost events or is gone is cleared. The agent's stream
//!   continues: its incarnation is not the source's.
//! - A batch is published at once, or waits for others for a configured time: then it is neither in the journal nor
//!   known to any reader, and heartbeats do not count it.
//! - Each call holds one lock, for as long as it publishes; a clear, for all that the source holds.

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
