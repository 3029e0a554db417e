use crate::order::{BUFFER_BATCHES_MAX, BUFFER_BYTES_MAX};
use kvasir_proto::types::LossPolicy;
use std::time::Duration;

/// Default of [`SequencerConfig::replay_attempts_max`]: consecutive rounds without progress before missing
/// batches count as lost.
pub const REPLAY_ATTEMPTS_MAX: u32 = 5;
/// Maximum number of replies read in one round of replay. If a publisher sends more, the next request resumes
/// from the last offset.
pub const REPLAY_REPLIES_MAX: u64 = 1 << 20;

/// Configuration of a [`Sequencer`](super::Sequencer). Times are durations of the driver's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequencerConfig {
    /// Reaction to a permanent loss.
    pub loss_policy: LossPolicy,
    /// Whether the publisher has a replay socket.
    pub replay: bool,
    /// How long suspect blocks are retained under [`LossPolicy::Keep`].
    pub degraded_ttl: Duration,
    /// How long a source may be disconnected before it counts as gone.
    pub worker_timeout: Duration,
    /// Time between two probes of a source without missing batches.
    pub probe_interval: Duration,
    /// Maximum number of buffered live batches.
    pub buffer_batches_max: usize,
    /// Maximum bytes of buffered live batches. The newest batch is buffered whatever its size.
    pub buffer_bytes_max: usize,
    /// Rounds without a new batch before the loss policy applies; at least 1.
    pub replay_attempts_max: u32,
    /// The first round of a recovery starts at a random time within this duration, so that a starting server
    /// does not query all engines at the same time.
    pub replay_spread: Duration,
    /// Minimum backoff between two rounds.
    pub retry_min: Duration,
    /// Maximum backoff between two rounds.
    pub retry_max: Duration,
    /// Seed of the jitter. Use a different one per source.
    pub jitter_seed: u64,
}

impl Default for SequencerConfig {
    fn default() -> Self {
        Self {
            loss_policy: LossPolicy::Keep,
            replay: true,
            degraded_ttl: Duration::from_secs(600),
            worker_timeout: Duration::from_secs(60),
            probe_interval: Duration::from_secs(30),
            buffer_batches_max: BUFFER_BATCHES_MAX,
            buffer_bytes_max: BUFFER_BYTES_MAX,
            replay_attempts_max: REPLAY_ATTEMPTS_MAX,
            replay_spread: Duration::from_millis(20),
            retry_min: Duration::from_millis(100),
            retry_max: Duration::from_secs(5),
            jitter_seed: 0,
        }
    }
}
