//! Time to live (TTL) for blocks on media whose connector announces stores but never evictions (LMCache on
//! CPU, LMCache#5076). Pure: times come in, events come out.
//!
//! Each stored block on such a medium gets a deadline, counted from the publication of its batch. Each later
//! announcement extends the deadline. A block that is due leaves its tier with all its copies. Memory is
//! bounded by [`EXPIRING_BLOCKS_MAX`] per source and by [`EXPIRING_BYTES_MAX`] for all sources. Beyond either
//! limit, the blocks with the nearest deadlines leave early.

use crate::order::{HeldBytes, HeldShare};
use kvasir_proto::types::{BlockName, DpRank, KvEvent, Tier};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Maximum number of blocks of one source with a deadline. The source's pool has the same limit again.
pub const EXPIRING_BLOCKS_MAX: usize = 1 << 20;
/// Maximum bytes for the deadlines of all sources of a process.
pub const EXPIRING_BYTES_MAX: usize = 512 << 20;
/// Approximate maximum bytes per deadline.
pub const EXPIRING_BLOCK_BYTES: usize = 170;
/// Minimum time stamp (2020-01-01, seconds since 1970). Engines with earlier time stamps do not send the time
/// of day.
const TIME_STAMP_MIN: f64 = 1_577_836_800.0;
/// Maximum number of blocks in one [`Expired`].
const EXPIRED_BLOCKS_MAX: usize = 4_096;

/// Age of a batch. `ts_bits` is its time stamp, as bits of seconds since 1970. Zero if the engine's clock is
/// ahead of ours, or the time stamp is not a time of day.
#[must_use]
pub fn age(ts_bits: u64, now: SystemTime) -> Duration {
    let seconds = f64::from_bits(ts_bits);
    if seconds < TIME_STAMP_MIN {
        return Duration::ZERO;
    }
    let since_epoch = Duration::try_from_secs_f64(seconds).ok();
    let published = since_epoch.and_then(|since| UNIX_EPOCH.checked_add(since));
    published.and_then(|published| now.duration_since(published).ok()).unwrap_or_default()
}

/// A block in one tier of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct TimedBlock {
    rank: DpRank,
    tier: Tier,
    name: BlockName,
}

/// Deadlines of the blocks of one source.
#[derive(Debug)]
pub struct Expiry {
    /// Deadlines by rank, so that clearing a rank costs only its own blocks.
    deadlines: HashMap<DpRank, HashMap<(Tier, BlockName), Duration>>,
    /// All deadlines, nearest first.
    queue: BTreeSet<(Duration, TimedBlock)>,
    /// Blocks that expire early because the limit is reached.
    early: VecDeque<TimedBlock>,
    share: HeldShare,
}

/// Blocks whose time to live is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expired {
    /// The rank that cached the blocks.
    pub rank: DpRank,
    /// The removal event; never empty.
    pub event: KvEvent,
    /// Number of blocks in `event` that expired early because of the memory limit.
    pub early: u64,
}

/// Memory budget for the deadlines of all sources of a process.
#[must_use]
pub const fn all_deadlines() -> HeldBytes {
    HeldBytes::new(EXPIRING_BYTES_MAX, EXPIRING_BLOCKS_MAX * EXPIRING_BLOCK_BYTES)
}

impl Expiry {
    /// Creates an empty `Expiry` whose size is limited by `share`.
    #[must_use]
    pub fn new(share: HeldShare) -> Self {
        Self { deadlines: HashMap::new(), queue: BTreeSet::new(), early: VecDeque::new(), share }
    }

    /// Reports the current number of deadlines. Returns the maximum number.
    fn share(&mut self) -> usize {
        let own = self.queue.len() * EXPIRING_BLOCK_BYTES;
        let most = self.share.note(own);
        // Without an excess, the source may use more than it does now.
        let most = match self.share.excess() {
            0 => most,
            excess => most.min(own.saturating_sub(excess)),
        };
        most / EXPIRING_BLOCK_BYTES
    }

    /// Applies a batch's stores and removals at a rank, in order. `expiring` lists the events with a time to
    /// live. The batch was published `age` before `now`.
    pub fn note(
        &mut self,
        rank: DpRank,
        events: &[KvEvent],
        expiring: &[(usize, Duration)],
        now: Duration,
        age: Duration,
    ) {
        if self.queue.is_empty() && expiring.is_empty() {
            return;
        }
        let mut expiring = expiring.iter().peekable();
        for (at, event) in events.iter().enumerate() {
            let held = |tier, name| TimedBlock { rank, tier, name };
            let ttl = expiring.next_if(|(event, _)| *event == at);
            let ttl = ttl.map(|&(_, ttl)| ttl.saturating_sub(age));
            match (event, ttl) {
                (KvEvent::Stored { tier, blocks, .. }, Some(ttl)) => {
                    let names = blocks.iter().map(|block| block.name);
                    names.for_each(|name| self.set(held(*tier, name), now + ttl));
                }
                (KvEvent::StoredNames { tier, names }, Some(ttl)) => {
                    names.iter().for_each(|&name| self.set(held(*tier, name), now + ttl));
                }
                (KvEvent::Gone { tier, names }, _) => {
                    names.iter().for_each(|&name| self.forget(held(*tier, name)));
                }
                (KvEvent::Cleared, _) => self.forget_rank(rank, None),
                (KvEvent::ClearedTier(tier), _) => self.forget_rank(rank, Some(*tier)),
                // One copy fewer: other copies may remain, and keep the deadline.
                (KvEvent::Removed { .. } | KvEvent::Stored { .. }, _)
                | (KvEvent::StoredNames { .. }, None) => {}
            }
            // One batch may have many more blocks than the limit.
            self.make_room();
        }
        debug_assert!(expiring.next().is_none(), "times to live belong to events");
        debug_assert!(
            self.queue.len() == self.deadlines.values().map(HashMap::len).sum::<usize>(),
            "each block has one deadline"
        );
    }

    /// Moves the blocks with the nearest deadlines to `early` until the limit is met.
    fn make_room(&mut self) {
        let blocks_max = self.share();
        while self.queue.len() > blocks_max
            && let Some(&(_, held)) = self.queue.first()
        {
            self.forget(held);
            self.early.push_back(held);
        }
        self.share();
    }

    /// When [`next`](Self::next) will return a block; `None` if no block has a deadline.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        if !self.early.is_empty() {
            return Some(Duration::ZERO);
        }
        self.queue.first().map(|&(deadline, _)| deadline)
    }

    /// Returns due or early blocks of one rank and tier. Call it until it returns `None`.
    pub fn next(&mut self, now: Duration) -> Option<Expired> {
        // Other sources may have taken a larger share meanwhile.
        self.make_room();
        let is_early = !self.early.is_empty();
        let mut names = Vec::new();
        let mut place = None;
        while let Some(held) = self.first(is_early, now) {
            let same = *place.get_or_insert((held.rank, held.tier)) == (held.rank, held.tier);
            if !same || names.len() >= EXPIRED_BLOCKS_MAX {
                break;
            }
            if is_early {
                self.early.pop_front();
            } else {
                self.forget(held);
            }
            names.push(held.name);
        }
        self.share();
        let (rank, tier) = place.filter(|_| !names.is_empty())?;
        let early = if is_early { names.len() as u64 } else { 0 };
        Some(Expired { rank, event: KvEvent::Gone { tier, names }, early })
    }

    /// The next block to expire, if any: from the early blocks, or from the due blocks.
    fn first(&self, is_early: bool, now: Duration) -> Option<TimedBlock> {
        if is_early {
            return self.early.front().copied();
        }
        self.queue.first().filter(|(deadline, _)| *deadline <= now).map(|&(_, held)| held)
    }

    /// Removes all deadlines, because the source's blocks were dropped.
    pub fn clear(&mut self) {
        self.deadlines.clear();
        self.queue.clear();
        self.early.clear();
        self.share();
    }

    /// Sets a deadline, unless the block has a later one. A later announcement never shortens it, even from a
    /// replay with a slow clock.
    fn set(&mut self, held: TimedBlock, deadline: Duration) {
        let of_rank = self.deadlines.entry(held.rank).or_default();
        let known = of_rank.entry((held.tier, held.name)).or_insert(deadline);
        if *known < deadline {
            self.queue.remove(&(*known, held));
            *known = deadline;
        }
        let deadline = *known;
        self.queue.insert((deadline, held));
    }

    fn forget(&mut self, held: TimedBlock) {
        let of_rank = self.deadlines.get_mut(&held.rank);
        let deadline = of_rank.and_then(|of_rank| of_rank.remove(&(held.tier, held.name)));
        if let Some(deadline) = deadline {
            self.queue.remove(&(deadline, held));
        }
    }

    /// Removes the deadlines of a rank, in all tiers or in one.
    fn forget_rank(&mut self, rank: DpRank, only: Option<Tier>) {
        let of_rank = self.deadlines.remove(&rank);
        for ((tier, name), deadline) in of_rank.into_iter().flatten() {
            if only.is_none_or(|only| only == tier) {
                self.queue.remove(&(deadline, TimedBlock { rank, tier, name }));
            } else {
                self.deadlines.entry(rank).or_default().insert((tier, name), deadline);
            }
        }
    }
}

#[cfg(test)]
#[path = "expiry_test.rs"]
mod tests;
