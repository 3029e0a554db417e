//! Orders the batches of one bare engine: determines which batch is next, which is missing, and which belongs
//! to another incarnation.
//!
//! Most engines number their batches from 0 and state no incarnation: a restart, a lost batch and a late
//! subscriber all look like a jump in the numbers. [`Sequencer`] distinguishes them. It is a pure state
//! machine: connection events, live batches, replayed batches and the time go in, [`Step`]s come out, and the
//! driver does the I/O.
//!
//! **Guarantees**
//! - Steps are in order: the steps that a batch depends on (a new incarnation, a loss) precede it.
//! - Batches of one incarnation are applied in the order of their numbers, each at most once.
//! - A cursor from a checkpoint or an earlier connection is compared with the publisher's own copy of that
//!   batch, before later batches are applied.
//! - `exact` means that every batch of this incarnation up to the newest known one was applied. A permanent
//!   loss makes the source `degraded` until the engine clears its cache or begins a new incarnation.
//! - A number far beyond the next one does not move the cursor. A live number far below it shows that the
//!   position is wrong: the incarnation begins anew.
//! - Every received batch has exactly one outcome (applied, duplicate, stale) or is buffered. Numbers whose
//!   batches could not be obtained count as lost.
//!
//! **Limits.** Bytes of an ended process may still be in transit on the live connection while a replay
//! already returns its successor's batches. The two can be mixed. The mixture ends with that connection,
//! whose end the driver must notice: the next connection begins with a comparison. An engine with an empty
//! replay socket looks like one that restarted and has published nothing; configure it without a replay
//! socket. Without a replay socket, a lost last batch is detected only with the next one.
//!
//! **One kind of round for every recovery.** Every replay starts from the cursor *inclusive*. Its first reply
//! proves or refutes that the publisher is still in the cursor's incarnation; later replies fill the gap.
//! Late joins, reconnects, resuming from a checkpoint, gaps and periodic probes all use the same round.
//!
//! **Stated incarnations.** Some publishers state an id of their process with each batch (vLLM's 24-byte
//! sequence frame, SGLang's epoch topics). A stated id takes precedence over numbers and fingerprints: the
//! same id is the same incarnation, also after a reconnect and a checkpoint, and another id is a restart. Ids
//! are compared only for equality. If a stated id ends an incarnation, later batches of the ended one on this
//! connection are stale. A batch without an id is judged by its number and fingerprint, even if others stated
//! one: a publisher may omit the id in replays. A publisher that restarts as an older version is detected
//! like any other.
//!
//! **Ids of incarnations** are derived from the stated id if there is one, else from the number and
//! fingerprint of the first applied batch: two servers that both receive batch 0 agree on the id. A restart
//! is often detected by a batch from the middle of the new incarnation, or by an empty replay.
//! [`Step::Restarted`] then ends the old incarnation immediately. [`Step::NewIncarnation`] names the new one
//! when its first batch is available.

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
