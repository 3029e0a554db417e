//! Blocks that a rank fetches from peers instead of computing them: which ones, from whom, and whether that pays.
//!
//! A *holder* is a worker that holds leading blocks of the prompt in host memory or on disk, and whose agent serves them to
//! other agents. Blocks in device memory alone do not count: agents do not serve these. Fetched blocks arrive in the host memory
//! of the worker that fetches, so they are credited as blocks there.
//!
//! > fetching: peers × 2 ms + bytes / bandwidth + (1 − host credit) × time to compute the blocks
//!
//! A plan continues the blocks that the rank holds without a hole. It takes the fastest holder first and goes on with
//! slower ones where these hold more. It ends where most time is saved. There is no plan unless computing takes
//! [`FETCH_GAIN_MIN`] times as long.

use super::cost::{FetchCost, TierBlocks, TierCredits};
use super::error::{ConfigError, check};
use kvasir_proto::types::WorkerKey;
use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

/// Most peers of a plan. The agent's `Fetch` takes more.
pub const PLAN_PEERS_MAX: usize = 8;
/// Most blocks of a plan: one call of the agent's `Fetch` takes no more.
pub const FETCH_BLOCKS_MAX: u32 = 4_096;
/// Computing must be expected to take so many times as long as fetching.
pub const FETCH_GAIN_MIN: f64 = 1.25;
/// Longest expected fetch, in seconds: by default, `Fetch` stops after that time.
const SECONDS_MAX: f64 = 10.0;
/// Time until a peer begins to send, in seconds: a connection and a request.
const BEGIN_SECONDS: f64 = 0.002;
/// Most holders that a decision looks at: those that serve a block fastest, then those that hold most.
const HOLDERS_MAX: usize = 64;
/// Weight of a new measurement in the mean bandwidth.
const NEWEST_SHARE: f64 = 0.2;
/// Age after which a measured bandwidth counts as unknown. Otherwise one slow fetch could prevent all later ones, and
/// nothing would measure again.
const MEASURED_AGE_MAX: Duration = Duration::from_secs(60);

/// What a decision assumes where nothing was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FetchConfig {
    /// Bandwidth from one agent to another, in bytes a second, at least 0. With 0 nothing is planned until a fetch was
    /// reported.
    pub bytes_per_second: f64,
    /// Tokens of a prompt that a rank computes a second, at least 0, until its first tokens show its own pace. With 0
    /// nothing is planned for such a rank.
    pub prefill_tokens_per_second: f64,
}

/// The bandwidth between agents, as fetches show it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FetchMeter {
    /// The mean in bytes a second, and when the last measurement was taken.
    measured: Option<(f64, Duration)>,
}

/// A value, and whether it was measured or is the configured one.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rate {
    /// The value, in units a second.
    pub per_second: f64,
    /// Whether it was measured.
    pub is_measured: bool,
}

/// What a block of an agent is. Agents exchange blocks unchanged only if these are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockKind {
    /// Bytes of a block, above 0.
    pub bytes: NonZeroU64,
    /// Fingerprint of model, layout, dtype and part of the heads.
    pub fingerprint: u64,
}

/// A worker whose agent serves blocks of the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// Its place among the candidates.
    pub candidate: usize,
    /// Number of its worker: the ranks of a worker have one agent.
    pub worker: usize,
    /// Leading blocks of the prompt that it holds in host memory or on disk, by the better of the two. Blocks in `device` do
    /// not count.
    pub blocks: TierBlocks,
    /// Its blocks.
    pub kind: BlockKind,
}

/// A rank that could fetch blocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fetcher {
    /// Number of its worker.
    pub worker: usize,
    /// Its blocks; none if it has no agent that fetches.
    pub kind: Option<BlockKind>,
    /// Leading blocks of the prompt that it holds in any tier, or is computing already.
    pub own_blocks: u32,
    /// Tokens that it computes a second.
    pub prefill: Rate,
}

/// Consecutive blocks from one holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Segment {
    /// Place of the holder among the candidates.
    pub candidate: usize,
    /// How many blocks come from there.
    pub blocks: u32,
}

/// A fetch that pays.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fetch {
    /// The first block that is fetched: as many as the rank holds.
    pub first_block: u32,
    /// How many are fetched, at least 1.
    pub blocks: u32,
    /// Expected time of the transfer, in seconds.
    pub seconds: f64,
    /// Expected time to compute these blocks instead, in seconds.
    pub compute_seconds: f64,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Tokens that the rank computes a second.
    pub prefill: Rate,
    segments: [Segment; PLAN_PEERS_MAX],
    peers: usize,
}

/// Why nothing is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NoFetch {
    /// Plans are off, or the request does not ask the index.
    NotAsked,
    /// The rank holds all whole blocks of the prompt, or is computing them.
    Complete,
    /// The chosen worker states no bytes of a block: it has no agent that fetches.
    NoAgent,
    /// No other worker with a peer address holds more leading blocks of the same size.
    NoHolder,
    /// Bandwidth or prefill rate is unknown: none was measured, and the configured one is 0.
    UnknownRate,
    /// Computing is as fast, or nearly so.
    NotFaster,
}

/// A peer of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchPeer {
    /// The rank that holds the blocks.
    pub worker: WorkerKey,
    /// Address at which its agent serves them (label `blocks-peer`).
    pub address: String,
    /// How many blocks are expected from there.
    pub blocks: u32,
}

/// Which blocks of a prompt to fetch, and which ones to compute: own blocks + `blocks` + `recompute_blocks` are the whole
/// blocks of the prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct FetchPlan {
    /// The first block to fetch, from 0: as many as the rank holds.
    pub first_block: u32,
    /// How many to fetch, 1 to [`FETCH_BLOCKS_MAX`].
    pub blocks: u32,
    /// Whole blocks after these, to be computed.
    pub recompute_blocks: u32,
    /// From whom, in the order in which to ask: 1 to [`PLAN_PEERS_MAX`].
    pub peers: Vec<FetchPeer>,
    /// Expected time of the fetch.
    pub expected: Duration,
    /// Expected time to compute the same blocks.
    pub compute: Duration,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Bandwidth that the plan rests on, in bytes.
    pub bandwidth: Rate,
    /// Prefill rate that the plan rests on, in tokens.
    pub prefill: Rate,
}

/// Plans fetches for one request.
#[derive(Debug, Clone)]
pub struct FetchPlanner {
    query_blocks: u32,
    block_tokens: f64,
    host_credit: f64,
    bandwidth: Rate,
    /// The fastest first, each with the time of a block in relation to one in host memory.
    holders: Vec<(f64, Holder)>,
}

// === impl FetchConfig ===

impl Default for FetchConfig {
    fn default() -> Self {
        // 1 GiB/s is what a network of 10 Gbit/s carries. Few accelerators compute 20,000 tokens a second: a rate that is
        // too high plans too little, never too much.
        Self { bytes_per_second: 1_073_741_824.0, prefill_tokens_per_second: 20_000.0 }
    }
}

impl FetchConfig {
    /// Whether it can be used.
    ///
    /// # Errors
    /// If a rate is negative or no number.
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
    /// Takes a measurement: so many bytes came in so much time. One without bytes or time says nothing.
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

    /// The mean in bytes a second; none if nothing was measured in the last minute.
    #[must_use]
    pub fn bytes_per_second(&self, now: Duration) -> Option<f64> {
        let (mean, at) = self.measured?;
        (now.saturating_sub(at) <= MEASURED_AGE_MAX).then_some(mean)
    }
}

// === impl Fetch ===

impl Fetch {
    /// From whom, in order.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        self.segments.get(..self.peers).unwrap_or(&self.segments)
    }

    /// What it changes in the cost of its rank.
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
    /// A planner for a prompt of so many whole blocks. Of holders that are alike, those behind number `turn` come first, so
    /// that requests do not all go to one of them.
    #[must_use]
    pub fn new(
        (query_blocks, block_size): (u32, NonZeroU32),
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

    /// Whether nobody serves blocks of the prompt.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    /// The bandwidth that it assumes.
    #[must_use]
    pub const fn bandwidth(&self) -> Rate {
        self.bandwidth
    }

    /// What a rank had better fetch.
    ///
    /// # Errors
    /// If it had better fetch nothing, with the reason.
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

    /// Whole blocks that are left to compute.
    #[must_use]
    pub const fn recompute_blocks(&self, fetch: &Fetch) -> u32 {
        self.query_blocks.saturating_sub(fetch.first_block.saturating_add(fetch.blocks))
    }

    /// The fetch that saves most, if it pays.
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
            // What fetched blocks cost in host memory counts, too.
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

/// Blocks that arrive within so many seconds, if each takes so long.
fn blocks_within(seconds: f64, each: f64) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
    let blocks = (seconds / each) as u32;
    blocks
}

/// Leading blocks that a holder's agent serves.
const fn depth(holder: &Holder) -> u32 {
    holder.blocks.host.saturating_add(holder.blocks.disk)
}

/// Time of a block of a holder in relation to one in host memory, on average: which of its blocks lie where is not known.
fn relative_seconds(holder: &Holder, disk_seconds: f64) -> f64 {
    let TierBlocks { host, disk, .. } = holder.blocks;
    if disk == 0 {
        return 1.0;
    }
    // Without a credit for disk a block there is never worth waiting for.
    let disk_seconds = if disk_seconds.is_nan() { f64::INFINITY } else { disk_seconds.max(1.0) };
    (f64::from(host) + f64::from(disk) * disk_seconds) / f64::from(depth(holder))
}

/// Leaves out holders that no plan takes: two of other workers come before them and hold as much. At most one of these is the
/// rank that fetches.
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
