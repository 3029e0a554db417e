//! One source, from its sockets to commands for the index: [`run`].
//!
//! A link owns the subscription and opens a new connection for every round of replay. What comes
//! in goes through the [`Sequencer`](crate::sequence::Sequencer); what is to be applied is decoded
//! and normalised here, in order, and sent on as [`SourceCommand`]s. Nothing is spawned: a link is
//! one future.
//!
//! **When the receiver is slow.** Commands wait in an outbox of [`OUTBOX_COMMANDS_MAX`] commands
//! and [`OUTBOX_BYTES_MAX`] bytes of payload while the sockets are still served (so PINGs are
//! answered). Once it is full, the sockets are not read: the publisher's queue fills, it drops
//! batches, and the gap is replayed when there is room again.
//!
//! **Accounting.** Each batch is one [`SourceCommand::Apply`] or counted in one
//! [`SourceCommand::Outcome`]; batches that wait are in [`SourceStatus::buffered_batches`](kvasir_proto::types::SourceStatus::buffered_batches).

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
