//! Orders the batches of one source that states its incarnation and, usually, can be queried for missing
//! batches.
//!
//! An agent numbers its events and states their incarnation, so restarts are always detected. It can send all
//! missing batches: by number if it still retains them, else as a dump of all its blocks. [`Recovery`]
//! decides which batch is next, which are missing, and what to request. It is a pure state machine for every
//! transport: messages, answers and the time are [`Input`]s; [`Step`]s come out, and the driver does the I/O.
//!
//! **Guarantees**
//! - Batches of one incarnation are applied in order, each at most once, on top of all earlier ones: from the
//!   first batch, or from a dump that states its last batch. Only a permanent loss
//!   ([`RecoveryConfig::attempts_max`]) skips batches. The source is then `degraded` until a dump replaces
//!   its blocks.
//! - A number far beyond the next one ([`NUMBERS_AHEAD_MAX`]) does not move the cursor. If the source can be
//!   queried, it is. A publisher that can rewind its stream receives the number of the next batch.
//! - A batch counts as a duplicate only if a copy of it was received.
//! - A newly announced incarnation ends the current one, unless it is one of the last
//!   [`PAST_INCARNATIONS_MAX`]: a delayed stream of an old incarnation is refused. A new incarnation is also
//!   refused if that many ended within [`PAST_INCARNATIONS_KEPT`].
//! - The answer of a source that can be queried is authoritative. It is queried when an old incarnation
//!   announces itself. An answer from another incarnation begins that one, even if it ended before. Batches
//!   of a replacement are applied only after its first answer. A late first message of an old incarnation
//!   thus costs a dump, but old blocks do not enter the index. Without an answer, the loss policy decides in
//!   the end, but a past incarnation never resumes.
//! - A broken dump differs from an empty dump: only [`Input::DumpEnd`] drops the blocks that the dump did not
//!   contain.
//! - One round runs at a time. Rounds without progress are followed by backoff.
//! - Every received batch has exactly one outcome (applied, duplicate, stale), is buffered, or is refused, to
//!   be sent again.
//!
//! **Buffer.** It contains batches received before their predecessors, and all batches while a dump is read
//! into the index: half a dump plus later events is an inconsistent state. When it is full, the lowest
//! numbers are dropped. Ranges have no upper end and dumps end at their watermark, so both return the lowest
//! numbers again. The newest may exist only here.
//!
//! **Sources that cannot be queried** ([`Recourse`]). A publisher that can rewind its stream receives the
//! number of the next batch. Otherwise missing batches are lost immediately.

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
