//! Follows one source, from its sockets to commands for the index: [`run`].
//!
//! A link owns the subscription and opens a new connection for every round of replay. The
//! [`Sequencer`](crate::sequence::Sequencer) orders the received batches. The link decodes and normalises
//! them in order, and sends them as [`SourceCommand`]s. A link is one future and spawns no tasks.
//!
//! **Backpressure from a slow receiver.** Commands wait in an outbox of [`OUTBOX_COMMANDS_MAX`] commands and
//! [`OUTBOX_BYTES_MAX`] bytes of payload. The sockets are still served meanwhile (PINGs are answered). While
//! the outbox is full, the link does not read the sockets: the publisher's queue fills, and it drops batches.
//! The link replays the gap when the outbox has room again.
//!
//! **Accounting.** Each batch is either one [`SourceCommand::Apply`] or counted in one
//! [`SourceCommand::Outcome`]. Batches that wait are in
//! [`SourceStatus::buffered_batches`](kvasir_proto::types::SourceStatus::buffered_batches).

mod clears;
mod command;
mod config;
mod driver;
mod frames;
mod logs;
mod replay;
mod reports;
mod topic;
mod unheard;

#[cfg(test)]
mod frames_test;

pub use command::{ReplayOutcome, SourceCommand};
pub use config::{
    Common, LinkConfig, OUTBOX_BYTES_MAX, OUTBOX_COMMANDS_MAX, REPLAY_REPLY_TIMEOUT, Resume,
    STATUS_INTERVAL,
};
pub use driver::run;
pub use topic::{takes_topic, topics_overlap};
