//! Ordering of one bare engine: which batch is next, which is missing, which belongs to another
//! life of the engine.
//!
//! Most engines number their batches from 0 and say nothing else: a restart, a lost batch and a
//! late subscriber all look like a jump in the numbers. [`Sequencer`] tells them apart. It is a
//! pure state machine: connection events, live batches, replayed batches and the time go in,
//! [`Step`]s come out, and whoever drives it does the I/O.
//!
//! **Guarantees**
//! - Steps are in order: what a batch depends on (a new life, a loss) precedes it.
//! - Batches of one life are applied in the order of their numbers, each at most once.
//! - A cursor from a checkpoint or an earlier connection is compared with the publisher's own copy
//!   of that batch before anything is applied on top of it.
//! - A state of `exact` means that every batch of this life up to the newest known one was
//!   applied. What was lost for good makes the source `degraded` until the engine clears its cache
//!   or begins a new life.
//! - Every batch that comes in has exactly one outcome (applied, duplicate, stale) or is buffered;
//!   batches that could not be had are counted as lost, by their numbers.
//!
//! **Limits of what can be known.** While bytes of a process that is gone are still on their way
//! on the live connection, a replay may already bring its successor's batches, and the two can be
//! mixed. The end of that connection, which the driver must notice, puts an end to it: the next
//! one begins with a comparison. An engine whose replay socket keeps nothing cannot be told from
//! one that restarted and has announced nothing; configure it without a replay socket. Without
//! one, a lost last batch shows only with the next.
//!
//! **One idea for all recovery.** Every replay asks from the cursor *inclusive*. Its first reply
//! proves or refutes that the publisher still lives the life the cursor was taken in; what follows
//! fills the gap. Joining late, reconnecting, resuming from a checkpoint, filling a gap and the
//! periodic probe are the same round, started for different reasons.
//!
//! **Stated lives.** Some publishers state an id of their process with each batch (vLLM's 24-byte
//! sequence frame, SGLang's epoch topics). Such a statement decides, whatever numbers and
//! fingerprints say: the same id is the same life, also after a reconnect and after a checkpoint,
//! and another id is a restart. Ids are compared for equality only. Batches of the life that
//! another statement ended on this connection are stale. A batch that states nothing is judged by
//! its number and fingerprint, whatever others stated: a publisher may leave the id out of its
//! replays, and one that restarts as an older version is found out like any other.
//!
//! **Incarnations** of stated lives come from the statement. Those of others are made here, from
//! the number and fingerprint of the first batch of a life that is applied: two servers that both
//! see batch 0 agree on the id. Often a restart is found out by a batch from the middle of the new
//! life, or by an empty replay: [`Step::Restarted`] then ends the old life at once, and
//! [`Step::NewIncarnation`] names the new one when its first batch is at hand.

mod config;
mod incarnation;
mod inputs;
mod progress;
mod replays;
mod sequencer;
mod step;
mod validate;

#[cfg(test)]
mod explore_test;
#[cfg(test)]
mod model_test;
#[cfg(test)]
mod rules_test;
#[cfg(test)]
mod simulation_test;

pub use crate::order::{
    BUFFER_BATCHES_MAX, BUFFER_BYTES_MAX, HELD_BYTES_MAX, HeldBytes, HeldShare, Item, OrderStatus,
    OutcomeCounts,
};
pub use config::{REPLAY_ATTEMPTS_MAX, REPLAY_REPLIES_MAX, SequencerConfig};
pub use incarnation::stated as stated_incarnation;
pub use kvasir_proto::types::LossPolicy;
pub use sequencer::{Resume, Sequencer};
pub use step::{Input, Received, Step};
