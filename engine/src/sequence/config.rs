use crate::order::{BUFFER_BATCHES_MAX, BUFFER_BYTES_MAX};
use kvasir_proto::types::LossPolicy;
use std::time::Duration;

/// Rounds of replay in a row that may bring nothing before the missing batches are given up.
pub const REPLAY_ATTEMPTS_MAX: u32 = 5;
/// Replies read in one round of replay; a publisher that sends more gets another request from
/// where it stopped.
pub const REPLAY_REPLIES_MAX: u64 = 1 << 20;

/// How a [`Sequencer`](super::Sequencer) behaves. Times are durations of the driver's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequencerConfig {
    /// What a loss does.
    pub loss_policy: LossPolicy,
    /// Whether the publisher has a replay socket.
    pub replay: bool,
    /// How long suspect blocks are retained under [`LossPolicy::Keep`].
    pub degraded_ttl: Duration,
    /// How long a source may be disconnected before it counts as gone.
    pub worker_timeout: Duration,
    /// Time between two probes of a source that needs no recovery.
    pub probe_interval: Duration,
    /// Live batches held back at most.
    pub buffer_batches_max: usize,
    /// Bytes of live batches held back at most; the newest batch is held whatever its size.
    pub buffer_bytes_max: usize,
    /// Rounds without a new batch before the loss policy applies; at least 1.
    pub replay_attempts_max: u32,
    /// The first round of a recovery starts within this time, at random: a server that starts
    /// does not ask all engines at once.
    pub replay_spread: Duration,
    /// Shortest back-off between two rounds.
    pub retry_min: Duration,
    /// Longest back-off between two rounds.
    pub retry_max: Duration,
    /// Seed of the jitter. Give every source another.
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
