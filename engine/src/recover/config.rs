use crate::order::{BUFFER_BATCHES_MAX, BUFFER_BYTES_MAX};
use kvasir_proto::limits::{SEQUENCES_AHEAD_MAX, SOURCE_PAST_INCARNATIONS_MAX};
use kvasir_proto::types::LossPolicy;
use std::time::Duration;

/// Earlier incarnations of a source that are remembered, and refused.
pub const PAST_INCARNATIONS_MAX: usize = SOURCE_PAST_INCARNATIONS_MAX;
/// Time for which each of them is remembered at least, where a message begins the one after it. If the memory is full of
/// such, no message begins another.
pub const PAST_INCARNATIONS_KEPT: Duration = Duration::from_secs(600);
/// Those of a checkpoint that are remembered, as if they had ended at the restart: the latest. There is room for as many
/// again.
pub const PAST_INCARNATIONS_RESUMED_MAX: usize = PAST_INCARNATIONS_MAX / 2;
/// Rounds in a row that may bring nothing before what is missing is given up.
pub const ATTEMPTS_MAX: u32 = 5;
/// A number this far beyond the next one, or further, is not believed.
pub const NUMBERS_AHEAD_MAX: u64 = SEQUENCES_AHEAD_MAX;

/// How missing batches can be obtained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Recourse {
    /// The publisher's local indexer can be asked.
    Ask,
    /// The publisher can rewind its stream, and learns which batch to send next.
    Rewind,
    /// Not at all: they are lost.
    Nothing,
}

/// How a [`Recovery`](super::Recovery) behaves. Times are durations of the driver's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecoveryConfig {
    /// How missing batches can be obtained.
    pub recourse: Recourse,
    /// What a loss does.
    pub loss_policy: LossPolicy,
    /// How long suspect blocks are retained under [`LossPolicy::Keep`].
    pub degraded_ttl: Duration,
    /// How long a source without a connection may be silent before it counts as gone.
    pub worker_timeout: Duration,
    /// Whether that applies to a connected source, too: it has promised regular messages.
    pub expires_silent: bool,
    /// Live batches held back at most.
    pub buffer_batches_max: usize,
    /// Bytes of live batches held back at most; the newest batch is held whatever its size.
    pub buffer_bytes_max: usize,
    /// Rounds in a row that bring nothing before the loss policy applies; at least 1.
    pub attempts_max: u32,
    /// How long an announced batch may be on its way before it counts as missing.
    pub announce_grace: Duration,
    /// The first round of a recovery starts within this time, at random: a server that starts does
    /// not ask all agents at once.
    pub ask_spread: Duration,
    /// Shortest back-off between two rounds.
    pub retry_min: Duration,
    /// Longest back-off between two rounds.
    pub retry_max: Duration,
    /// Seed of the jitter. Give every source another.
    pub jitter_seed: u64,
}

impl Default for RecoveryConfig {
    fn default() -> Self {
        Self {
            recourse: Recourse::Ask,
            loss_policy: LossPolicy::Keep,
            degraded_ttl: Duration::from_secs(600),
            worker_timeout: Duration::from_secs(60),
            expires_silent: false,
            buffer_batches_max: BUFFER_BATCHES_MAX,
            buffer_bytes_max: BUFFER_BYTES_MAX,
            attempts_max: ATTEMPTS_MAX,
            announce_grace: Duration::from_millis(500),
            ask_spread: Duration::from_millis(20),
            retry_min: Duration::from_millis(100),
            retry_max: Duration::from_secs(10),
            jitter_seed: 0,
        }
    }
}
