//! Ordering of one source that states its incarnation and can be asked for what is missing.
//!
//! An agent numbers its events and states their incarnation. So a restart is never a guess, and the
//! agent can send whatever is missing: batches that it still retains, by their numbers, else a dump
//! of all it holds. [`Recovery`] decides which batch is next, what is missing, and what to request.
//! It is a pure state machine, the same for every transport: messages, answers and the time are
//! [`Input`]s; [`Step`]s come out, and the driver does the I/O.
//!
//! **Guarantees**
//! - Batches of one incarnation are applied in the order of their numbers, each at most once, on
//!   top of all before it: from the first batch, or from a dump that states its last batch. Only a
//!   permanent loss ([`RecoveryConfig::attempts_max`]) leaves some out, and then the source is
//!   `degraded` until a dump replaces what it holds.
//! - A number far beyond the next one ([`NUMBERS_AHEAD_MAX`]) moves nothing. A source that can be
//!   asked is asked; a publisher that can rewind its stream learns which batch is next.
//! - A batch of which no copy came is never taken for a copy.
//! - An announced incarnation other than the current one ends the current one, unless it is one of
//!   the last [`PAST_INCARNATIONS_MAX`]: a delayed stream of an old incarnation is refused. So is one
//!   of a new incarnation where that many ended within [`PAST_INCARNATIONS_KEPT`]. A source
//!   that can be asked has the last word. It is asked when an old incarnation announces itself, and
//!   an answer from another incarnation begins that one, even if it ended before. Nothing is applied
//!   to a replacement before its first answer. So a late first message of an old incarnation costs a
//!   dump, and puts no old blocks into the index. If nobody answers, the loss policy decides in the
//!   end, but a past incarnation is never resumed without an answer.
//! - A broken dump and an empty dump are different things: only [`Input::DumpEnd`] drops what the
//!   dump did not bring.
//! - One round at a time. Rounds that bring nothing are backed off from.
//! - Every batch that comes in has exactly one outcome (applied, duplicate, stale), is buffered, or
//!   is refused, to be sent again.
//!
//! **Buffer.** It holds batches that come before their turn, and all batches while a dump is read
//! into the index: half of a dump with events on top would be neither state. When it is full, the
//! lowest numbers go. Ranges are requested without an upper end and dumps are cut at their
//! watermark, so both bring the lowest numbers again, while the newest may exist only here.
//!
//! **Sources that cannot be asked** ([`Recourse`]). A publisher that can rewind its stream is told
//! which batch to send next; otherwise missing batches are lost at once.

mod config;
mod inputs;
mod progress;
mod recovery;
mod step;
mod validate;

#[cfg(test)]
mod agent_test;
#[cfg(test)]
mod explore_test;
#[cfg(test)]
mod model_test;
#[cfg(test)]
mod rules_test;
#[cfg(test)]
mod simulation_test;

pub use crate::order::{
    BUFFER_BATCHES_MAX, BUFFER_BYTES_MAX, HELD_BYTES_MAX, HeldBytes, HeldShare, Item, OutcomeCounts,
};
pub use config::{
    ATTEMPTS_MAX, NUMBERS_AHEAD_MAX, PAST_INCARNATIONS_KEPT, PAST_INCARNATIONS_MAX,
    PAST_INCARNATIONS_RESUMED_MAX, Recourse, RecoveryConfig,
};
pub use kvasir_proto::types::LossPolicy;
pub use recovery::Recovery;
pub use step::{Admission, Ask, Input, Numbered, Step};
