use crate::order::{BUFFER_BATCHES_MAX, BUFFER_BYTES_MAX};
use kvasir_proto::limits::{SEQUENCES_AHEAD_MAX, SOURCE_PAST_INCARNATIONS_MAX};
use kvasir_proto::types::LossPolicy;
use std::time::Duration;

/// Maximum number of a source's past incarnations that are remembered and refused.
pub const PAST_INCARNATIONS_MAX: usize = SOURCE_PAST_INCARNATIONS_MAX;
/// Minimum time that a past incarnation is remembered, if a message began its successor. While the memory is
/// full of such incarnations, messages cannot begin another.
pub const PAST_INCARNATIONS_KEPT: Duration = Duration::from_secs(600);
/// Maximum number of past incarnations restored from a checkpoint: the latest. They count as ended at the
/// restart. The rest of [`PAST_INCARNATIONS_MAX`] stays free.
pub const PAST_INCARNATIONS_RESUMED_MAX: usize = PAST_INCARNATIONS_MAX / 2;
/// Default of [`RecoveryConfig::attempts_max`]: consecutive rounds without progress before missing batches
/// count as lost.
pub const ATTEMPTS_MAX: u32 = 5;
/// Sequence numbers at this distance beyond the next one, or further, are implausible.
pub const NUMBERS_AHEAD_MAX: u64 = SEQUENCES_AHEAD_MAX;

/// How missing batches can be obtained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Recourse {
    /// Query the publisher's local indexer.
    Ask,
    /// Rewind: the publisher receives the number of the batch to send next.
    Rewind,
    /// None: missing batches are lost.
    Nothing,
}

/// Configuration of a [`Recovery`](super::Recovery). Times are durations of the driver's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecoveryConfig {
    /// How missing batches can be obtained.
    pub recourse: Recourse,
    /// Reaction to a permanent loss.
    pub loss_policy: LossPolicy,
    /// How long suspect blocks are retained under [`LossPolicy::Keep`].
    pub degraded_ttl: Duration,
    /// How long a disconnected source may be silent before it counts as gone.
    pub worker_timeout: Duration,
    /// Whether `worker_timeout` also applies to a connected source, which has promised regular messages.
    pub expires_silent: bool,
    /// Maximum number of buffered live batches.
    pub buffer_batches_max: usize,
    /// Maximum bytes of buffered live batches. The newest batch is buffered whatever its size.
    pub buffer_bytes_max: usize,
    /// Consecutive rounds without progress before the loss policy applies; at least 1.
    pub attempts_max: u32,
    /// How long an announced batch may be in transit before it counts as missing.
    pub announce_grace: Duration,
    /// The first round of a recovery starts at a random time within this duration, so that a starting server
    /// does not query all agents at the same time.
    pub ask_spread: Duration,
    /// Minimum backoff between two rounds.
    pub retry_min: Duration,
    /// Maximum backoff between two rounds.
    pub retry_max: Duration,
    /// Seed of the jitter. Use a different one per source.
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
