//! Ordering of one source that states its incarnation, and that can be asked for what is missing.
//!
//! An agent's events come numbered, and say which life of the cache they belong to. So a restart is
//! never a guess, and whatever is missing can be had from the agent: batches it still keeps, by
//! their numbers, else a dump of all it holds. [`Recovery`] decides what is next, what is missing
//! and whom to ask for what. It is a pure state machine, the same for every transport: what comes
//! in, answers and the time are [`Input`]s; [`Step`]s come out, and whoever drives it does the I/O.
//!
//! **Guarantees**
//! - Batches of one life are applied in the order of their numbers, each at most once, on top of
//!   all before it: from the first batch, or from a dump that says up to which batch it reaches.
//!   Only once batches were lost for good ([`RecoveryConfig::attempts_max`]) some are missing, and
//!   then the source is `degraded` until a dump replaces what it holds.
//! - An announced incarnation that is not the present one ends the present life, unless it is one
//!   of the last [`PAST_INCARNATIONS_MAX`]: a delayed stream of an old life is refused. Who can be asked
//!   has the last word: it is asked when an old life says that it is there, and an answer that names
//!   another life than the present one begins that, even if it was left before. Since nothing is
//!   applied to a life that replaces another before its first answer, an old life that is heard
//!   late for the first time costs a dump, and puts no old blocks into the index. Should nobody
//!   answer, the loss policy decides in the end; but a life that is remembered is never applied again
//!   without an answer.
//! - A dump that broke off and one that is empty are different things: only [`Input::DumpEnd`]
//!   drops what the dump did not bring.
//! - One round at a time. Rounds that bring nothing are backed off from.
//! - Every batch that comes in has exactly one outcome (applied, duplicate, stale), is buffered, or
//!   is refused to be sent again.
//!
//! **What is held back.** Batches that come before their turn, and all of them while a dump is read
//! into the index: half of a dump with events on top would be neither state. When there are too
//! many, the lowest go: ranges are asked for without an upper end and dumps are cut at theirs, so
//! that both bring the lowest for nothing, while the newest may exist only here.
//!
//! **When nobody can be asked** ([`Recourse`]), a publisher whose stream can be wound back is told
//! what to send; else what is missing is lost at once.

mod config;
mod inputs;
mod progress;
mod recovery;
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
pub use config::{
    ATTEMPTS_MAX, NUMBERS_AHEAD_MAX, PAST_INCARNATIONS_MAX, Recourse, RecoveryConfig,
};
pub use kvasir_proto::types::LossPolicy;
pub use recovery::{Recovery, Resume};
pub use step::{Ask, Input, Numbered, Step};
