//! Fetch planning: which blocks a rank fetches from peers instead of computing them, from which peers, and whether it
//! pays.
//!
//! A *holder* is a worker with leading blocks of the prompt in host memory or on disk, whose agent serves them to other
//! agents. Agents do not serve blocks in device memory, so these do not count. Fetched blocks arrive in the host memory
//! of the fetching worker, and are credited as host memory.
//!
//! > fetching: peers × 2 ms + bytes / bandwidth + (1 − host credit) × time to compute the blocks
//!
//! A plan continues the blocks that the rank has without a hole. It uses the fastest holder first, then slower holders
//! with more blocks. It ends where most time is saved. There is no plan unless computing takes [`FETCH_GAIN_MIN`] times
//! as long.

use super::cost::{FetchCost, TierBlocks, TierCredits};
use super::error::{ConfigError, check};
use kvasir_proto::types::WorkerKey;
use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

/// Maximum peers of a plan. The agent's `Fetch` accepts more.
pub const PLAN_PEERS_MAX: usize = 8;
/// Maximum blocks of a plan: the limit of one call of the agent's `Fetch`.
pub const FETCH_BLOCKS_MAX: u32 = 4_096;
/// Minimum ratio of the expected computing time to the expected fetch time.
pub const FETCH_GAIN_MIN: f64 = 1.25;
/// Maximum expected fetch time, in seconds: by default, `Fetch` stops after this time.
const SECONDS_MAX: f64 = 10.0;
/// Time until a peer begins to send, in seconds: one connection and one request.
const BEGIN_SECONDS: f64 = 0.002;
/// Maximum holders that a decision considers: first the holders with the fastest blocks, then the holders with most
/// blocks.
const HOLDERS_MAX: usize = 64;
/// Weight of a new measurement in the moving average of the bandwidth.
const NEWEST_SHARE: f64 = 0.2;
/// Age after which a measured bandwidth counts as unknown. Otherwise one slow fetch could prevent all later fetches,
/// and with them all new measurements.
const MEASURED_AGE_MAX: Duration = Duration::from_secs(60);

/// Rates assumed where there is no measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FetchConfig {
    /// Bandwidth between two agents, in bytes per second, at least 0. With 0, no fetch is planned until one was
    /// reported.
    pub bytes_per_second: f64,
    /// Prompt tokens that a rank computes per second, at least 0, until its first tokens show its own pace. With 0, no
    /// fetch is planned for a rank without a measured pace.
    pub prefill_tokens_per_second: f64,
}

/// Measures the bandwidth between agents from reported fetches.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FetchMeter {
    /// Moving average in bytes per second, and the time of the last measurement.
    measured: Option<(f64, Duration)>,
}

/// A rate, measured or configured.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rate {
    /// The value, in units per second.
    pub per_second: f64,
    /// Whether the value was measured; otherwise it is configured.
    pub is_measured: bool,
}

/// Kind of an agent's blocks. Agents exchange blocks unchanged only if their kinds are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockKind {
    /// Size of a block in bytes, above 0.
    pub bytes: NonZeroU64,
    /// Fingerprint of model, layout, dtype and part of the heads.
    pub fingerprint: u64,
}

/// A worker whose agent serves blocks of the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// Index of the holder among the candidates.
    pub candidate: usize,
    /// Number of the holder's worker; all ranks of a worker have one agent.
    pub worker: usize,
    /// Leading blocks of the prompt in host memory or on disk, each in the better of the two. Blocks in `device` do not
    /// count.
    pub blocks: TierBlocks,
    /// Kind of the holder's blocks.
    pub kind: BlockKind,
}

/// A rank that could fetch blocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fetcher {
    /// Number of the rank's worker.
    pub worker: usize,
    /// Kind of the rank's blocks; `None` without an agent that fetches.
    pub kind: Option<BlockKind>,
    /// Leading blocks of the prompt that the rank has in any tier, or is computing.
    pub own_blocks: u32,
    /// Tokens that the rank computes per second.
    pub prefill: Rate,
}

/// Consecutive blocks from one holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Segment {
    /// Index of the holder among the candidates.
    pub candidate: usize,
    /// Number of blocks from this holder.
    pub blocks: u32,
}

/// A fetch that is faster than computing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fetch {
    /// Index of the first fetched block; equals the number of blocks that the rank has.
    pub first_block: u32,
    /// Number of fetched blocks, at least 1.
    pub blocks: u32,
    /// Expected time of the transfer, in seconds.
    pub seconds: f64,
    /// Expected time to compute these blocks instead, in seconds.
    pub compute_seconds: f64,
    /// Size of a block in bytes.
    pub block_bytes: u64,
    /// Tokens that the rank computes per second.
    pub prefill: Rate,
    segments: [Segment; PLAN_PEERS_MAX],
    peers: usize,
}

/// Why no blocks are fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NoFetch {
    /// Planning is off, or the request does not query the index.
    NotAsked,
    /// The rank has all complete blocks of the prompt, or is computing them.
    Complete,
    /// The chosen worker reports no block size: it has no agent that fetches.
    NoAgent,
    /// No other worker with a peer address has more leading blocks of the same kind.
    NoHolder,
    /// Bandwidth or prefill rate is unknown: there is no measurement, and the configured rate is 0.
    UnknownRate,
    /// Computing is as fast, or nearly as fast.
    NotFaster,
}

/// A peer of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchPeer {
    /// The rank that has the blocks.
    pub worker: WorkerKey,
    /// Address at which its agent serves blocks (label `blocks-peer`).
    pub address: String,
    /// Number of blocks expected from this peer.
    pub blocks: u32,
}

/// Which blocks of a prompt to fetch, and which to compute. Own blocks + `blocks` + `recompute_blocks` = the complete
/// blocks of the prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct FetchPlan {
    /// Index of the first block to fetch, from 0; equals the number of blocks that the rank has.
    pub first_block: u32,
    /// Number of blocks to fetch, 1 to [`FETCH_BLOCKS_MAX`].
    pub blocks: u32,
    /// Number of complete blocks after the fetched ones, to be computed.
    pub recompute_blocks: u32,
    /// Peers in the order in which to contact them: 1 to [`PLAN_PEERS_MAX`].
    pub peers: Vec<FetchPeer>,
    /// Expected time of the fetch.
    pub expected: Duration,
    /// Expected time to compute the same blocks.
    pub compute: Duration,
    /// Size of a block in bytes.
    pub block_bytes: u64,
    /// Bandwidth assumed by the plan, in bytes per second.
    pub bandwidth: Rate,
    /// Prefill rate assumed by the plan, in tokens per second.
    pub prefill: Rate,
}

/// Plans fetches for one request.
#[derive(Debug, Clone)]
pub struct FetchPlanner {
    query_blocks: u32,
    block_tokens: f64,
    host_credit: f64,
    bandwidth: Rate,
    /// Holders, fastest first, each with the relative time of a block compared with host memory.
    holders: Vec<(f64, Holder)>,
}

// === impl FetchConfig ===

impl Default for FetchConfig {
    fn default() -> Self {
        // 1 GiB/s is the capacity of a 10 Gbit/s network. Few accelerators compute 20,000 tokens a second; a rate that
        // is too high plans too few fetches, never too many.
        Self { bytes_per_second: 1_073_741_824.0, prefill_tokens_per_second: 20_000.0 }
    }
}

impl FetchConfig {
    /// Checks the rates.
    ///
    /// # Errors
    /// If a rate is negative or not finite.
    pub fn check(&self) -> Result<(), ConfigError> {
        let is_good = |rate: f64| rate.is_finite() && rate >= 0.0;
        check(is_good(self.bytes_per_second), "fetch bandwidth", "must be at least 0")?;
        check(is_good(self.prefill_tokens_per_second), "prefill rate", "must be at least 0")
    }

    /// The measured bandwidth, else the configured one.
    #[must_use]
    pub fn bandwidth(&self, meter: &FetchMeter, now: Duration) -> Rate {
        Rate::measured_or(meter.bytes_per_second(now), self.bytes_per_second)
    }

    /// The measured prefill rate of a rank, else the configured one.
    #[must_use]
    pub fn prefill(&self, measured: Option<f64>) -> Rate {
        Rate::measured_or(measured, self.prefill_tokens_per_second)
    }
}

// === impl Rate ===

impl Rate {
    fn measured_or(measured: Option<f64>, configured: f64) -> Self {
        let per_second = measured.unwrap_or(configured);
        Self { per_second, is_measured: measured.is_some() }
    }
}

// === impl FetchMeter ===

impl FetchMeter {
    /// Adds a measurement: the number of bytes, and the time that they took. Ignores it if either is 0.
    pub fn measure(&mut self, bytes: u64, took: Duration, now: Duration) {
        let seconds = took.as_secs_f64();
        if bytes == 0 || seconds <= 0.0 {
            return;
        }
        let rate = bytes as f64 / seconds;
        let before = self.bytes_per_second(now);
        let mean = before.map_or(rate, |before| before + NEWEST_SHARE * (rate - before));
        self.measured = Some((mean, now));
    }

    /// The moving average in bytes per second; `None` without a measurement in the last minute.
    #[must_use]
    pub fn bytes_per_second(&self, now: Duration) -> Option<f64> {
        let (mean, at) = self.measured?;
        (now.saturating_sub(at) <= MEASURED_AGE_MAX).then_some(mean)
    }
}

// === impl Fetch ===

impl Fetch {
    /// Segments of the fetch, in order.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        self.segments.get(..self.peers).unwrap_or(&self.segments)
    }

    /// Effect of the fetch on the rank's cost.
    #[must_use]
    pub fn cost(&self) -> FetchCost {
        FetchCost { blocks: self.blocks, tokens: self.seconds * self.prefill.per_second }
    }
}

// === impl NoFetch ===

impl fmt::Display for NoFetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAsked => "not asked",
            Self::Complete => "complete",
            Self::NoAgent => "no agent",
            Self::NoHolder => "no holder",
            Self::UnknownRate => "unknown rate",
            Self::NotFaster => "not faster",
        })
    }
}

// === impl FetchPlanner ===

impl FetchPlanner {
    /// A planner for a prompt with this number of complete blocks. Among equal holders, those after number `turn` come
    /// first, so that requests are spread over them.
    #[must_use]
    pub fn new(
        query_blocks: u32,
        block_size: NonZeroU32,
        credits: &TierCredits,
        bandwidth: Rate,
        holders: impl IntoIterator<Item = Holder>,
        turn: usize,
    ) -> Self {
        let disk_seconds = credits.host / credits.disk;
        let holders = holders.into_iter().filter(|at| depth(at) > 0);
        let mut holders: Vec<_> =
            holders.map(|at| (relative_seconds(&at, disk_seconds), at)).collect();
        let count = holders.iter().map(|(_, at)| at.candidate).max().unwrap_or(0) + 1;
        let begin = turn % count;
        holders.sort_by(|(a_seconds, a), (b_seconds, b)| {
            let speed = a_seconds.total_cmp(b_seconds);
            let depth = depth(b).cmp(&depth(a));
            let place = |at: &Holder| (at.candidate + count - begin) % count;
            speed.then(depth).then_with(|| place(a).cmp(&place(b)))
        });
        retain_useful(&mut holders);
        holders.truncate(HOLDERS_MAX);
        let host_credit = credits.host;
        let block_tokens = f64::from(block_size.get());
        Self { query_blocks, block_tokens, host_credit, bandwidth, holders }
    }

    /// Whether no agent serves blocks of the prompt.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    /// The assumed bandwidth.
    #[must_use]
    pub const fn bandwidth(&self) -> Rate {
        self.bandwidth
    }

    /// Returns the best fetch for a rank.
    ///
    /// # Errors
    /// The reason, if fetching does not pay or is impossible.
    pub fn plan(&self, by: &Fetcher) -> Result<Fetch, NoFetch> {
        if by.own_blocks >= self.query_blocks {
            return Err(NoFetch::Complete);
        }
        let kind = by.kind.ok_or(NoFetch::NoAgent)?;
        let is_fit =
            |at: &Holder| at.worker != by.worker && at.kind == kind && depth(at) > by.own_blocks;
        if !self.holders.iter().any(|(_, at)| is_fit(at)) {
            return Err(NoFetch::NoHolder);
        }
        let bandwidth = self.bandwidth.per_second;
        let prefill = by.prefill.per_second;
        if bandwidth <= 0.0 || prefill <= 0.0 {
            return Err(NoFetch::UnknownRate);
        }
        let fetch = self.best(by, kind).ok_or(NoFetch::NotFaster)?;
        debug_assert!(fetch.blocks > 0 && fetch.first_block == by.own_blocks, "{fetch:?}");
        debug_assert!(fetch.first_block + fetch.blocks <= self.query_blocks, "{fetch:?}");
        Ok(fetch)
    }

    /// Number of complete blocks after a fetch, which remain to compute.
    #[must_use]
    pub const fn recompute_blocks(&self, fetch: &Fetch) -> u32 {
        self.query_blocks.saturating_sub(fetch.first_block.saturating_add(fetch.blocks))
    }

    /// Returns the fetch that saves most time, or `None` if computing is faster.
    fn best(&self, by: &Fetcher, kind: BlockKind) -> Option<Fetch> {
        let host_seconds = kind.bytes.get() as f64 / self.bandwidth.per_second;
        let block_seconds = self.block_tokens / by.prefill.per_second;
        let end = self.query_blocks.min(by.own_blocks.saturating_add(FETCH_BLOCKS_MAX));
        let mut fetch = Fetch {
            first_block: by.own_blocks,
            blocks: 0,
            seconds: 0.0,
            compute_seconds: 0.0,
            block_bytes: kind.bytes.get(),
            prefill: by.prefill,
            segments: [Segment::default(); PLAN_PEERS_MAX],
            peers: 0,
        };
        let mut best: Option<(f64, Fetch)> = None;
        for (relative, holder) in &self.holders {
            let at = fetch.first_block + fetch.blocks;
            let to = depth(holder).min(end);
            let is_other = holder.worker != by.worker && holder.kind == kind;
            if !is_other || to <= at || fetch.peers == PLAN_PEERS_MAX {
                continue;
            }
            let each = host_seconds * relative;
            let blocks =
                (to - at).min(blocks_within(SECONDS_MAX - fetch.seconds - BEGIN_SECONDS, each));
            if blocks == 0 {
                break;
            }
            let seconds = BEGIN_SECONDS + f64::from(blocks) * each;
            if let Some(segment) = fetch.segments.get_mut(fetch.peers) {
                *segment = Segment { candidate: holder.candidate, blocks };
            }
            fetch.peers += 1;
            fetch.blocks += blocks;
            fetch.seconds += seconds;
            fetch.compute_seconds = f64::from(fetch.blocks) * block_seconds;
            // The remaining cost of fetched blocks in host memory counts too.
            let rest = (1.0 - self.host_credit) * fetch.compute_seconds;
            let saved = fetch.compute_seconds - fetch.seconds - rest;
            let pays = fetch.compute_seconds >= FETCH_GAIN_MIN * (fetch.seconds + rest);
            if pays && best.is_none_or(|(most, _)| saved > most) {
                best = Some((saved, fetch));
            }
        }
        best.map(|(_, fetch)| fetch)
    }
}

/// Number of blocks that arrive within `seconds`, at `each` seconds per block.
fn blocks_within(seconds: f64, each: f64) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
    let blocks = (seconds / each) as u32;
    blocks
}

/// Number of leading blocks that a holder's agent serves.
const fn depth(holder: &Holder) -> u32 {
    holder.blocks.host.saturating_add(holder.blocks.disk)
}

/// Returns the mean time per block of a holder, relative to a block in host memory. A mean, because the tier of each
/// block is unknown.
fn relative_seconds(holder: &Holder, disk_seconds: f64) -> f64 {
    let TierBlocks { host, disk, .. } = holder.blocks;
    if disk == 0 {
        return 1.0;
    }
    // Without a credit for disk, fetching a block from disk never pays.
    let disk_seconds = if disk_seconds.is_nan() { f64::INFINITY } else { disk_seconds.max(1.0) };
    (f64::from(host) + f64::from(disk) * disk_seconds) / f64::from(depth(holder))
}

/// Removes a holder if at least two faster workers have as many blocks, because no plan would use it. One of the two
/// may be the fetching rank.
fn retain_useful(holders: &mut Vec<(f64, Holder)>) {
    let mut kept: Vec<Holder> = Vec::new();
    holders.retain(|(_, at)| {
        let mut deeper = kept.iter().filter(|other| {
            other.worker != at.worker && other.kind == at.kind && depth(other) >= depth(at)
        });
        let first = deeper.next();
        let is_useful =
            !first.is_some_and(|first| deeper.any(|other| other.worker != first.worker));
        if is_useful && kept.len() < HOLDERS_MAX {
            kept.push(*at);
        }
        is_useful
    });
}

#[cfg(test)]
#[path = "fetch_test.rs"]
mod fetch_test;
