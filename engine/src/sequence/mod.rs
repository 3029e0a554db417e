//! Ordering of one bare engine: which batch is next, which is missing, and which belongs to another
//! incarnation of the engine.
//!
//! Most engines number their batches from 0 and state nothing else: a restart, a lost batch and a
//! late subscriber all look like a jump in the numbers. [`Sequencer`] tells them apart. It is a
//! pure state machine: connection events, live batches, replayed batches and the time go in,
//! [`Step`]s come out, and the driver does the I/O.
//!
//! **Guarantees**
//! - Steps are in order: what a batch depends on (a new incarnation, a loss) precedes it.
//! - Batches of one incarnation are applied in the order of their numbers, each at most once.
//! - A cursor from a checkpoint or an earlier connection is compared with the publisher's own copy
//!   of that batch before anything is applied on top of it.
//! - A state of `exact` means that every batch of this incarnation up to the newest known one was
//!   applied. A permanent loss makes the source `degraded` until the engine clears its cache or
//!   begins a new incarnation.
//! - A number far beyond the next one moves nothing, and a live one far below it shows that the
//!   position is wrong: the incarnation begins anew.
//! - Every batch that comes in has exactly one outcome (applied, duplicate, stale) or is buffered.
//!   Numbers whose batches could not be obtained are counted as lost.
//!
//! **Limits of what can be known.** While bytes of a process that is gone are still in transit on
//! the live connection, a replay may already bring its successor's batches, and the two can be
//! mixed. The end of that connection, which the driver must notice, ends the mixture: the next
//! connection begins with a comparison. An engine whose replay socket retains nothing looks like
//! one that restarted and has announced nothing; configure it without a replay socket. Without a
//! replay socket, a lost last batch shows only with the next one.
//!
//! **One round for every recovery.** Every replay starts from the cursor *inclusive*. Its first
//! reply proves or refutes that the publisher is still in the incarnation of the cursor; the
//! replies after it fill the gap. Joining late, reconnecting, resuming from a checkpoint, filling a
//! gap and the periodic probe are the same round, started for different reasons.
//!
//! **Stated incarnations.** Some publishers state an id of their process with each batch (vLLM's
//! 24-byte sequence frame, SGLang's epoch topics). A statement decides, whatever numbers and
//! fingerprints suggest: the same id is the same incarnation, also after a reconnect and after a
//! checkpoint, and another id is a restart. Ids are compared for equality only. Batches of the
//! incarnation that a statement ended on this connection are stale. A batch that states nothing is
//! judged by its number and fingerprint, even if others stated an id: a publisher may leave the id
//! out of its replays, and one that restarts as an older version is detected like any other.
//!
//! **Ids of incarnations** come from the statement, if there is one. Other ids are derived from
//! the number and fingerprint of the first batch applied: two servers that both receive batch 0
//! agree on the id. A restart is often detected by a batch from the middle of the new incarnation,
//! or by an empty replay: [`Step::Restarted`] then ends the old incarnation at once, and
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
    BUFFER_BATCHES_MAX, BUFFER_BYTES_MAX, HELD_BYTES_MAX, HeldBytes, HeldShare, Item, OutcomeCounts,
};
pub use config::{REPLAY_ATTEMPTS_MAX, REPLAY_REPLIES_MAX, SequencerConfig};
pub use incarnation::stated as stated_incarnation;
pub use kvasir_proto::types::LossPolicy;
pub use sequencer::Sequencer;
pub use step::{Input, Received, Step};
