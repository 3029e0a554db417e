//! The ranks that can be chosen, in order of their keys.

use super::config::RouterWorker;
use super::index::Held;
use crate::route::{ActiveLoads, BlockKind, Holder, RankId, TierBlocks};
use kvasir_proto::types::{WorkerId, WorkerKey};
use std::collections::HashMap;
use std::time::Duration;

/// Label of a worker with the address at which its agent serves blocks to other agents.
const PEER_LABEL: &str = "blocks-peer";
/// Label of a worker with the bytes of a block at its agent.
const BLOCK_BYTES_LABEL: &str = "blocks-bytes";
/// Label of a worker with the fingerprint of its agent's blocks, in hexadecimal. Ranks with different parts of the heads have
/// blocks of the same size and different fingerprints.
const FINGERPRINT_LABEL: &str = "blocks-fingerprint";
/// Members of a [`Span`].
const SPAN: usize = u64::BITS as usize;

/// A rank that can be chosen.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) worker: RouterWorker,
    pub(super) rank: RankId,
    /// Number of its worker: ranks of one worker have the same.
    pub(super) number: usize,
    /// Blocks at its agent; none if it has no agent that fetches or serves.
    pub(super) kind: Option<BlockKind>,
    /// When its worker joined; none for those that were there when the router began.
    pub(super) joined: Option<Duration>,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Workers {
    /// By key.
    members: Vec<Member>,
    /// The members' ranks with the blocks that each has in all, 0 if unknown. They lie side by side: a decision looks at
    /// all of them.
    ranks: Vec<(RankId, u64)>,
    numbers: HashMap<WorkerKey, usize>,
    /// Workers, each with its ranks.
    count: usize,
    /// When the last of them joined; none if all were there when the router began.
    joined_last: Option<Duration>,
}

/// What members hold of a prompt, by their numbers. Usually only a few hold any.
#[derive(Debug, Default)]
pub(super) struct Holders {
    /// In the order of their numbers.
    held: Vec<(usize, Held)>,
    /// For each 64 members in turn; empty if nobody holds anything.
    spans: Vec<Span>,
}

/// Which of 64 members hold something.
#[derive(Debug, Clone, Copy, Default)]
struct Span {
    /// A bit for each, the lowest first.
    holders: u64,
    /// Holders before these members.
    before: usize,
}

impl Member {
    /// Where its agent serves blocks; none if it does not.
    pub(super) fn peer(&self) -> Option<&String> {
        self.worker.profile.labels.get(PEER_LABEL)
    }
}

/// Blocks at the agent of a worker, by its labels; none unless both labels are numbers.
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

    /// Their ranks in the same order, with the blocks that each has in all, 0 if unknown.
    pub(super) fn ranks(&self) -> &[(RankId, u64)] {
        &self.ranks
    }

    /// Whether all have been there for so long.
    pub(super) fn are_settled(&self, window: Duration, now: Duration) -> bool {
        self.joined_last.is_none_or(|at| now.saturating_sub(at) >= window)
    }

    /// A rank by its key.
    pub(super) fn member(&self, key: &WorkerKey) -> Option<&Member> {
        self.members.get(*self.numbers.get(key)?)
    }

    /// Workers, each counted once.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    pub(super) fn has_worker(&self, worker: &WorkerId) -> bool {
        let first = WorkerKey { worker: worker.clone(), rank: 0 };
        let at = self.members.partition_point(|member| member.worker.key < first);
        self.members.get(at).is_some_and(|member| member.worker.key.worker == *worker)
    }

    /// These are the ranks from now on. Returns those that went.
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
            // Beyond the limit on ranks nobody is chosen.
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

    /// Members whose agents serve these leading blocks.
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

    /// What members hold of a prompt. This looks up those who hold any, and not every member.
    pub(super) fn holders(&self, held: &[(WorkerKey, Held)]) -> Holders {
        let number = |(key, held): &(_, _)| Some((*self.numbers.get(key)?, *held));
        Holders::new(held.iter().filter_map(number).collect(), self.members.len())
    }
}

// === impl Holders ===

impl Holders {
    /// Of so many members, these hold something, by their numbers. Of one that comes twice, the last counts.
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

    /// What the member with this number holds; none if that is nothing.
    #[inline]
    pub(super) fn of(&self, number: usize) -> Option<Held> {
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
        /// Each member holds what was said of it last; members of whom nothing was said hold nothing.
        #[test]
        fn each_holds_what_was_said_of_it(
            members in 1_usize..300,
            said in proptest::collection::vec((0_usize..300, 0_u32..100), 0..200),
        ) {
            let said: Vec<_> = said.into_iter().map(|(at, device)| (at % members, device)).collect();
            let held = said.iter().map(|(at, device)| {
                let blocks = TierBlocks { device: *device, ..TierBlocks::default() };
                (*at, Held { blocks, trust: Trust::Full })
            });
            let holders = Holders::new(held.collect(), members);
            let expected: BTreeMap<_, _> = said.into_iter().collect();
            for number in 0..members + 70 {
                let held = holders.of(number).map(|held| held.blocks.device);
                prop_assert_eq!(held, expected.get(&number).copied(), "{}", number);
            }
        }
    }
}
