//! The ranks that the router can choose, ordered by key.

use super::config::RouterWorker;
use super::index::Held;
use crate::route::{ActiveLoads, BlockKind, Holder, RankId, TierBlocks};
use kvasir_proto::types::{WorkerId, WorkerKey};
use std::collections::HashMap;
use std::time::Duration;

/// Worker label: the address at which the worker's agent serves blocks to other agents.
const PEER_LABEL: &str = "blocks-peer";
/// Worker label: the size of a block at the worker's agent, in bytes.
const BLOCK_BYTES_LABEL: &str = "blocks-bytes";
/// Worker label: the fingerprint of the blocks at the worker's agent, hexadecimal. Ranks with different parts of the
/// heads have blocks of the same size but with different fingerprints.
const FINGERPRINT_LABEL: &str = "blocks-fingerprint";
/// Number of members in a [`Span`].
const SPAN: usize = u64::BITS as usize;

/// A rank that the router can choose.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) worker: RouterWorker,
    pub(super) rank: RankId,
    /// Number of the worker; all its ranks have the same number.
    pub(super) number: usize,
    /// Kind of the blocks at the worker's agent; `None` without an agent that fetches or serves.
    pub(super) kind: Option<BlockKind>,
    /// When the rank joined; `None` if it was present at the router's start.
    pub(super) joined: Option<Duration>,
}

/// All ranks that the router can choose.
#[derive(Debug, Default)]
pub(super) struct Workers {
    /// Ordered by key.
    members: Vec<Member>,
    /// Rank id and total blocks of each member, 0 if unknown. Stored contiguously, because a decision reads all of
    /// them.
    ranks: Vec<(RankId, u64)>,
    numbers: HashMap<WorkerKey, usize>,
    /// Number of workers; a worker may have several ranks.
    count: usize,
    /// When the newest member joined; `None` if all were present at the router's start.
    joined_last: Option<Duration>,
}

/// The members' cached blocks for a prompt, by member number. Usually only a few members have any.
#[derive(Debug, Default)]
pub(super) struct Holders {
    /// Ordered by member number.
    held: Vec<(usize, Held)>,
    /// One span for each 64 members, in order; empty if no member has blocks.
    spans: Vec<Span>,
}

/// Bitmap of 64 members: which have blocks.
#[derive(Debug, Clone, Copy, Default)]
struct Span {
    /// One bit for each member, the lowest first.
    holders: u64,
    /// Number of members with blocks before this span.
    before: usize,
}

impl Member {
    /// Address at which the worker's agent serves blocks; `None` if it serves none.
    pub(super) fn peer(&self) -> Option<&String> {
        self.worker.profile.labels.get(PEER_LABEL)
    }
}

/// Kind of the blocks at a worker's agent, from its labels. `None` unless both labels are numbers.
fn kind(worker: &RouterWorker) -> Option<BlockKind> {
    let label = |name| worker.profile.labels.get(name);
    Some(BlockKind {
        bytes: label(BLOCK_BYTES_LABEL)?.parse().ok()?,
        fingerprint: u64::from_str_radix(label(FINGERPRINT_LABEL)?, 16).ok()?,
    })
}

impl Workers {
    pub(super) fn members(&self) -> &[Member] {
        &self.members
    }

    /// Rank id and total blocks (0 if unknown) of each member, in the members' order.
    pub(super) fn ranks(&self) -> &[(RankId, u64)] {
        &self.ranks
    }

    /// Whether every member joined at least `window` ago.
    pub(super) fn are_settled(&self, window: Duration, now: Duration) -> bool {
        self.joined_last.is_none_or(|at| now.saturating_sub(at) >= window)
    }

    /// The member with this key.
    pub(super) fn member(&self, key: &WorkerKey) -> Option<&Member> {
        self.members.get(*self.numbers.get(key)?)
    }

    /// Number of workers, each counted once.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    pub(super) fn has_worker(&self, worker: &WorkerId) -> bool {
        let first = WorkerKey { worker: worker.clone(), rank: 0 };
        let at = self.members.partition_point(|member| member.worker.key < first);
        self.members.get(at).is_some_and(|member| member.worker.key.worker == *worker)
    }

    /// Replaces the ranks. Returns the members that were removed.
    pub(super) fn set(
        &mut self,
        mut workers: Vec<RouterWorker>,
        active: &mut ActiveLoads,
        now: Duration,
    ) -> Vec<Member> {
        let is_first = self.members.is_empty();
        workers.sort_by(|a, b| a.key.cmp(&b.key));
        workers.dedup_by(|a, b| a.key == b.key);
        let before = std::mem::take(&mut self.members).into_iter();
        let mut before: HashMap<_, _> = before.map(|at| (at.worker.key.clone(), at)).collect();
        self.numbers.clear();
        self.ranks.clear();
        self.count = 0;
        self.joined_last = None;
        for worker in workers {
            // Ranks beyond the limit cannot be chosen.
            let Some(rank) = active.join(&worker.key) else { continue };
            let joined = match before.remove(&worker.key) {
                Some(member) => member.joined,
                None => Some(now).filter(|_| !is_first),
            };
            let last = self.members.last();
            let is_new = last.is_none_or(|last| last.worker.key.worker != worker.key.worker);
            self.count += usize::from(is_new);
            active.report_blocks(rank, worker.active_blocks);
            self.numbers.insert(worker.key.clone(), self.members.len());
            self.ranks.push((rank, worker.profile.total_kv_blocks.unwrap_or(0)));
            self.joined_last = self.joined_last.max(joined);
            let number = self.count - 1;
            let kind = kind(&worker);
            self.members.push(Member { worker, rank, number, kind, joined });
        }
        debug_assert_eq!(self.ranks.len(), self.members.len(), "each member has one rank");
        debug_assert_eq!(self.numbers.len(), self.members.len(), "each rank has one number");
        before.into_values().collect()
    }

    /// Returns the members whose agents can serve `blocks` to other agents. Skips ejected workers.
    pub(super) fn serving<'a>(
        &'a self,
        blocks: &'a [(WorkerKey, TierBlocks)],
        is_ejected: impl Fn(&WorkerId) -> bool + 'a,
    ) -> impl Iterator<Item = Holder> + 'a {
        blocks.iter().filter_map(move |(key, blocks)| {
            let candidate = *self.numbers.get(key)?;
            let member = self.members.get(candidate)?;
            member.peer().filter(|_| !is_ejected(&key.worker))?;
            let worker = member.number;
            let kind = member.kind?;
            Some(Holder { candidate, worker, blocks: *blocks, kind })
        })
    }

    /// The members' cached blocks for a prompt. Looks up only members with blocks, not every member.
    pub(super) fn holders(&self, held: &[(WorkerKey, Held)]) -> Holders {
        let number = |(key, held): &(_, _)| Some((*self.numbers.get(key)?, *held));
        Holders::new(held.iter().filter_map(number).collect(), self.members.len())
    }
}

// === impl Holders ===

impl Holders {
    /// Builds the map for `members` members from entries by number. If a number occurs twice, the last entry counts.
    fn new(mut held: Vec<(usize, Held)>, members: usize) -> Self {
        if held.is_empty() {
            return Self::default();
        }
        held.sort_by_key(|(number, _)| *number);
        held.dedup_by(|later, kept| {
            let is_same = later.0 == kept.0;
            if is_same {
                *kept = *later;
            }
            is_same
        });
        let mut spans = vec![Span::default(); members.div_ceil(SPAN)];
        for (number, _) in &held {
            if let Some(span) = spans.get_mut(number / SPAN) {
                span.holders |= 1 << (number % SPAN);
            }
        }
        let mut before = 0;
        for span in &mut spans {
            span.before = before;
            before += span.holders.count_ones() as usize;
        }
        debug_assert_eq!(before, held.len(), "each has a bit");
        Self { held, spans }
    }

    /// Returns the cached blocks of the member with this number, if it has any.
    #[inline]
    pub(super) fn blocks_of(&self, number: usize) -> Option<Held> {
        let span = self.spans.get(number / SPAN)?;
        let bit = 1 << (number % SPAN);
        if span.holders & bit == 0 {
            return None;
        }
        let at = span.before + (span.holders & (bit - 1)).count_ones() as usize;
        self.held.get(at).map(|(_, held)| *held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::Trust;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// The last entry for a member counts; members without an entry have no blocks.
        #[test]
        fn each_holds_what_was_said_of_it(
            members in 1_usize..300,
            said in proptest::collection::vec((0_usize..300, 0_u32..100), 0..200),
        ) {
            let said: Vec<_> = said.into_iter().map(|(at, device)| (at % members, device)).collect();
            let held = said.iter().map(|(at, device)| {
                let blocks = TierBlocks { device: *device, ..TierBlocks::default() };
                (*at, Held { blocks, trust: Trust::Full, reusable_tokens: None })
            });
            let holders = Holders::new(held.collect(), members);
            let expected: BTreeMap<_, _> = said.into_iter().collect();
            for number in 0..members + 70 {
                let held = holders.blocks_of(number).map(|held| held.blocks.device);
                prop_assert_eq!(held, expected.get(&number).copied(), "{}", number);
            }
        }
    }
}
