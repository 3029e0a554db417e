//! A time to live for blocks on media whose connector announces what it stores and never what it
//! evicts (LMCache on CPU, LMCache#5076). Pure: times come in, events come out.
//!
//! Each stored block of such a medium gets a deadline, counted from when its batch was published; each
//! later announcement moves it. What is due leaves its tier with all its copies. The memory is
//! bounded: beyond [`EXPIRING_BLOCKS_MAX`], and beyond [`EXPIRING_BYTES_MAX`] of all sources, the blocks with
//! the nearest deadlines leave early.

use crate::{
    normalise::Normalised,
    order::{HeldBytes, HeldShare},
};
use kvasir_proto::types::{BlockName, DpRank, KvEvent, Tier};
use std::{
    collections::{BTreeSet, HashMap},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Most blocks of one source that wait for their deadlines.
pub const EXPIRING_BLOCKS_MAX: usize = 1 << 20;
/// Most bytes that deadlines of all sources of a process take.
pub const EXPIRING_BYTES_MAX: usize = 512 << 20;
/// What one deadline takes, at most and about.
pub const EXPIRING_BLOCK_BYTES: usize = 170;
/// Engines whose time stamps are earlier (2020-01-01, seconds since 1970) do not send the time of day.
const TIME_STAMP_MIN: f64 = 1_577_836_800.0;
/// Most blocks in one [`Expired`].
const EXPIRED_BLOCKS_MAX: usize = 4_096;

/// How long ago a batch was published, by its time stamp, as bits of seconds since 1970. Zero if the
/// engine's clock is ahead of ours, or its time stamp is no time of day.
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
struct Held {
    rank: DpRank,
    tier: Tier,
    name: BlockName,
}

/// Deadlines of the blocks of one source.
#[derive(Debug)]
pub struct Expiry {
    /// By rank, so that a clear costs what the rank holds.
    deadlines: HashMap<DpRank, HashMap<(Tier, BlockName), Duration>>,
    /// The same, nearest first.
    queue: BTreeSet<(Duration, Held)>,
    share: HeldShare,
}

/// Blocks whose time is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expired {
    /// The rank that held them.
    pub rank: DpRank,
    /// The removal; never empty.
    pub event: KvEvent,
    /// How many of them were not due yet, but had to make room.
    pub early: u64,
}

/// What deadlines of all sources of a process take together.
#[must_use]
pub const fn all_deadlines() -> HeldBytes {
    HeldBytes::new(EXPIRING_BYTES_MAX, EXPIRING_BLOCKS_MAX * EXPIRING_BLOCK_BYTES)
}

impl Expiry {
    /// No deadlines, and as many at most as other sources leave room for.
    #[must_use]
    pub fn new(share: HeldShare) -> Self {
        Self { deadlines: HashMap::new(), queue: BTreeSet::new(), share }
    }

    /// Reports the number of blocks with a deadline. Returns how many there may be.
    fn share(&mut self) -> usize {
        let most = self.share.note(self.queue.len() * EXPIRING_BLOCK_BYTES);
        (most - self.share.excess()) / EXPIRING_BLOCK_BYTES
    }

    /// Notes what a batch stores and removes, in its order; it was published `age` before `now`.
    pub fn note(&mut self, batch: &Normalised, now: Duration, age: Duration) {
        if self.queue.is_empty() && batch.expiring.is_empty() {
            return;
        }
        let rank = batch.rank;
        let mut expiring = batch.expiring.iter().peekable();
        for (at, event) in batch.events.iter().enumerate() {
            let held = |tier, name| Held { rank, tier, name };
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
                (KvEvent::Cleared, _) => self.forget_rank(rank),
                // One copy fewer: others may be left, and those have the deadline.
                (KvEvent::Removed { .. } | KvEvent::Stored { .. }, _)
                | (KvEvent::StoredNames { .. }, None) => {}
            }
        }
        debug_assert!(expiring.next().is_none(), "times to live belong to events");
        debug_assert!(
            self.queue.len() == self.deadlines.values().map(HashMap::len).sum::<usize>(),
            "each block has one deadline"
        );
    }

    /// When [`next`](Self::next) has something; none as long as nothing waits.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.queue.first().map(|&(deadline, _)| deadline)
    }

    /// Blocks of one rank and tier that are due, or too many; call again until there are none.
    pub fn next(&mut self, now: Duration) -> Option<Expired> {
        let blocks_max = self.share();
        let mut names = Vec::new();
        let mut early = 0;
        let mut place = None;
        while let Some(&(deadline, held)) = self.queue.first() {
            let is_due = deadline <= now;
            let same = *place.get_or_insert((held.rank, held.tier)) == (held.rank, held.tier);
            let leaves = is_due || self.queue.len() > blocks_max;
            if !same || !leaves || names.len() >= EXPIRED_BLOCKS_MAX {
                break;
            }
            self.forget(held);
            names.push(held.name);
            early += u64::from(!is_due);
        }
        self.share();
        let (rank, tier) = place.filter(|_| !names.is_empty())?;
        Some(Expired { rank, event: KvEvent::Gone { tier, names }, early })
    }

    /// The source's blocks are dropped: none of them has a deadline any more.
    pub fn clear(&mut self) {
        self.deadlines.clear();
        self.queue.clear();
        self.share();
    }

    fn set(&mut self, held: Held, deadline: Duration) {
        let of_rank = self.deadlines.entry(held.rank).or_default();
        if let Some(before) = of_rank.insert((held.tier, held.name), deadline) {
            self.queue.remove(&(before, held));
        }
        self.queue.insert((deadline, held));
    }

    fn forget(&mut self, held: Held) {
        let of_rank = self.deadlines.get_mut(&held.rank);
        let deadline = of_rank.and_then(|of_rank| of_rank.remove(&(held.tier, held.name)));
        if let Some(deadline) = deadline {
            self.queue.remove(&(deadline, held));
        }
    }

    fn forget_rank(&mut self, rank: DpRank) {
        let of_rank = self.deadlines.remove(&rank);
        for ((tier, name), deadline) in of_rank.into_iter().flatten() {
            self.queue.remove(&(deadline, Held { rank, tier, name }));
        }
    }
}

#[cfg(test)]
#[path = "expiry_test.rs"]
mod tests;
