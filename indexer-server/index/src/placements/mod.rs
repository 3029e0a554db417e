//! Placements: prompts that a router has just sent to ranks, stored for a while beside the index.
//!
//! When a router places a prompt, it can predict the worker's blocks before any event arrives. For an engine
//! without events, the prediction is the only information. A router may therefore record a prompt for a rank.
//! Its blocks count as *speculative* until a time to live is over. Storage and answers keep these predictions
//! separate from the index.
//!
//! # Data structures
//! The blocks of recorded prompts are nodes of a trie. A *placement* is one recorded prompt of one holder,
//! with an end time. At each node of its path, the holder has an entry with the latest-ending placement
//! through this node. Every placement begins at the root, so an ancestor never ends before its descendants.
//! Three properties follow:
//! - A placement's entries are at the end of its path. To end it, walk up from its leaf. A heap of placements
//!   (not of blocks) gives the next one.
//! - A holder with a live entry at a node has one at every ancestor. A query walks to the deepest node, and
//!   reads the holders from there upwards.
//! - Dropping the blocks that end first never leaves a hole.
//!
//! # Bounds
//! Calls are short: recording takes prompts in pieces, and all other work takes a budget. One (rank, block)
//! pair costs 8 bytes, a block about 50, a placement 44. Without placements, no memory is allocated.

mod holders;
mod nodes;
mod pages;
mod queue;
mod validate;

use holders::Holders;
use kvasir_proto::types::{LocalHash, WorkerId, WorkerKey};
use nodes::Nodes;
use pages::{NONE, Pages};
use queue::{Key, Placement, Queue};
use std::time::Duration;

/// Speculative blocks of one partition, by content: prompts that a router has just sent to ranks. The head of
/// this file explains the data structures.
#[derive(Debug, Default)]
pub struct Placements {
    nodes: Nodes,
    placements: Pages<Placement>,
    queue: Queue,
    holders: Holders,
    blocks: usize,
    /// Number of recordings begun.
    begun: u64,
    /// Raised whenever a node or placement is dropped on which a running recording may depend.
    epoch: u64,
}

/// A prompt that is recorded piece by piece.
#[derive(Debug)]
pub struct Recording {
    worker: WorkerKey,
    key: Key,
    holder: u32,
    /// Created with the first block for which it is the latest placement.
    placement: u32,
    /// Parent of the next block.
    node: u32,
    epoch: u64,
}

/// Result of recording a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recorded {
    /// Blocks that are new to the rank.
    pub added: usize,
    /// Blocks that the rank already had; they now end with this placement, or later.
    pub refreshed: usize,
}

/// Blocks on which the recording depends were dropped between two pieces, so it ends here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("blocks were dropped while a prompt was being recorded")]
pub struct RecordingCut;

/// Progress of work that may take several calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dropped {
    /// Number of dropped (rank, block) pairs.
    pub blocks: usize,
    /// Whether the work is complete.
    pub done: bool,
}

/// Predicted blocks of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedMatch {
    /// The rank.
    pub worker: WorkerKey,
    /// Number of leading blocks of the query.
    pub blocks: u32,
}

/// Buffers for answers, reused between queries.
#[derive(Debug, Default)]
pub struct PlacedScratch {
    /// Nodes of the query, first block first.
    path: Vec<u32>,
    /// Bitmap of the holders that are already listed or skipped.
    seen: Vec<u64>,
    matches: Vec<PlacedMatch>,
}

impl PlacedScratch {
    /// The answer to the last query: most blocks first.
    #[must_use]
    pub fn matches(&self) -> &[PlacedMatch] {
        &self.matches
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Placements {
    /// Number of speculative (rank, block) pairs. Includes expired ones and those of removed workers until
    /// they are dropped.
    #[must_use]
    pub const fn blocks(&self) -> usize {
        self.blocks
    }

    /// Bytes allocated. O(workers).
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.nodes.bytes() + self.placements.bytes() + self.queue.bytes() + self.holders.bytes()
    }

    /// When the first placement ends, as time since the origin; `None` without placements.
    #[must_use]
    pub fn first_end(&self) -> Option<Duration> {
        let first = self.queue.first()?;
        Some(Duration::from_nanos(self.placements[first].key.0))
    }

    /// Begins to record a prompt for a rank, at `now` since the origin. The blocks stay for `ttl`.
    pub fn begin(&mut self, worker: WorkerKey, now: Duration, ttl: Duration) -> Recording {
        self.begun += 1;
        let key = (nanos(now.saturating_add(ttl)), self.begun);
        let epoch = self.epoch;
        Recording { worker, key, holder: NONE, placement: NONE, node: NONE, epoch }
    }

    /// Records the next blocks of a prompt in one call. Callers split long prompts into pieces.
    ///
    /// # Errors
    /// If blocks on which the recording depends were dropped meanwhile.
    pub fn record(
        &mut self,
        recording: &mut Recording,
        locals: &[LocalHash],
    ) -> Result<Recorded, RecordingCut> {
        let mut recorded = Recorded::default();
        if locals.is_empty() {
            return Ok(recorded);
        }
        if recording.node == NONE {
            recording.holder = self.holders.get_or_add(&recording.worker);
        } else if recording.epoch != self.epoch {
            return Err(RecordingCut);
        }
        for &local in locals {
            let child = self.nodes.child(recording.node, local);
            let node = child.unwrap_or_else(|| self.nodes.add_child(recording.node, local));
            recording.node = node;
            let present = self.nodes.pages[node].placement_of(recording.holder);
            match present {
                Some(present) if self.placements[present].key >= recording.key => {
                    recorded.refreshed += 1;
                }
                Some(present) => {
                    self.make_latest(recording);
                    self.disown(present);
                    recorded.refreshed += 1;
                }
                None => {
                    self.make_latest(recording);
                    self.blocks += 1;
                    recorded.added += 1;
                }
            }
        }
        recording.epoch = self.epoch;
        Ok(recorded)
    }

    /// Makes the recording's placement the latest at its node.
    fn make_latest(&mut self, recording: &mut Recording) {
        let Recording { holder, key, node, .. } = *recording;
        if recording.placement == NONE {
            let number = self.placements.add(Placement::new(holder, key));
            self.queue.push(&mut self.placements, number);
            let next = std::mem::replace(&mut self.holders.pages[holder].first, number);
            self.placements[number].next = next;
            if next != NONE {
                self.placements[next].previous = number;
            }
            recording.placement = number;
        }
        self.nodes.set_entry(node, holder, recording.placement);
        let placement = &mut self.placements[recording.placement];
        placement.leaf = node;
        placement.owned += 1;
    }

    /// Removes a placement's first block, which a later placement has taken.
    fn disown(&mut self, number: u32) {
        let placement = &mut self.placements[number];
        placement.owned -= 1;
        if placement.owned == 0 {
            self.remove_placement(number);
        }
    }

    /// Removes a placement without blocks, and its holder after the last placement.
    fn remove_placement(&mut self, number: u32) {
        self.epoch += 1;
        self.queue.remove(&mut self.placements, number);
        let Placement { holder, previous, next, .. } = self.placements.remove(number);
        if next != NONE {
            self.placements[next].previous = previous;
        }
        if previous != NONE {
            self.placements[previous].next = next;
        } else {
            self.holders.pages[holder].first = next;
            if next == NONE {
                self.holders.free(holder);
            }
        }
    }

    /// Drops blocks of a placement from its leaf upwards, at most `budget`. Returns their number.
    fn trim(&mut self, number: u32, budget: &mut usize) -> usize {
        let holder = self.placements[number].holder;
        let before = self.blocks;
        self.epoch += 1;
        while *budget > 0 {
            *budget -= 1;
            let leaf = self.placements[number].leaf;
            self.nodes.remove_entry(leaf, holder);
            self.blocks -= 1;
            let above = self.nodes.pages[leaf].parent;
            if self.nodes.pages[leaf].is_bare() {
                self.nodes.free(leaf);
            }
            let placement = &mut self.placements[number];
            placement.leaf = above;
            placement.owned -= 1;
            if placement.owned > 0 {
                continue;
            }
            if above == NONE || !self.nodes.pages[above].is_bare() {
                self.remove_placement(number);
                break;
            }
            // A removed worker's placements are dropped in any order, so the previous one may already be
            // gone. This placement then takes over its node, and frees it like all others.
            placement.owned = 1;
            self.nodes.set_entry(above, holder, number);
            self.blocks += 1;
        }
        before - self.blocks
    }

    /// Drops blocks that ended by `now`, at most `budget`.
    pub fn expire(&mut self, now: Duration, mut budget: usize) -> Dropped {
        let now = nanos(now);
        let mut dropped = Dropped::default();
        while let Some(first) = self.queue.first() {
            if self.placements[first].key.0 > now {
                break;
            }
            if budget == 0 {
                return dropped;
            }
            dropped.blocks += self.trim(first, &mut budget);
        }
        dropped.done = true;
        dropped
    }

    /// Drops the blocks that end first until `target` blocks are left, at most `budget`. If all have the same
    /// time to live, these are the oldest. Within one prompt the last blocks are dropped first.
    pub fn prune(&mut self, target: usize, budget: usize) -> Dropped {
        let mut budget = budget.min(self.blocks.saturating_sub(target));
        let mut dropped = Dropped::default();
        while budget > 0
            && let Some(first) = self.queue.first()
        {
            dropped.blocks += self.trim(first, &mut budget);
        }
        dropped.done = self.blocks <= target;
        dropped
    }

    /// Removes a worker. Answers no longer contain it, and new recordings under its id belong to another
    /// worker. [`sweep`](Self::sweep) drops its blocks.
    pub fn remove_worker(&mut self, worker: &WorkerId) {
        self.epoch += 1;
        self.holders.retire(worker);
    }

    /// Drops blocks of removed workers, at most `budget`.
    pub fn sweep(&mut self, mut budget: usize) -> Dropped {
        let mut dropped = Dropped::default();
        while let Some(&holder) = self.holders.retired.last() {
            let first = self.holders.pages[holder].first;
            if first == NONE {
                self.holders.pages.remove(holder);
                self.holders.retired.pop();
                continue;
            }
            if budget == 0 {
                return dropped;
            }
            dropped.blocks += self.trim(first, &mut budget);
        }
        self.holders.retired = Vec::new();
        dropped.done = true;
        dropped
    }

    /// Finds the ranks that are expected, at `now` since the origin, to have leading blocks of a prompt, and
    /// how many. Stops at the first block that was not sent to any rank.
    pub fn find(&self, locals: &[LocalHash], now: Duration, scratch: &mut PlacedScratch) {
        let PlacedScratch { path, seen, matches } = scratch;
        path.clear();
        matches.clear();
        let mut node = NONE;
        for &local in locals {
            let Some(child) = self.nodes.child(node, local) else { break };
            path.push(child);
            node = child;
        }
        if path.is_empty() {
            return;
        }
        let now = nanos(now);
        seen.clear();
        seen.resize(self.holders.pages.numbers().div_ceil(64), 0);
        // A holder at a node is also at the node's ancestors, so equal numbers mean equal sets. This does not
        // apply while removed workers are swept.
        let mut known = 0;
        let nested = self.holders.retired.is_empty();
        for (at, &node) in path.iter().enumerate().rev() {
            let entries = self.nodes.pages[node].entries();
            if nested && entries.len() == known {
                continue;
            }
            for entry in entries {
                let Some(word) = seen.get_mut(entry.holder as usize / 64) else { continue };
                let bit = 1 << (entry.holder % 64);
                if *word & bit != 0 || self.placements[entry.placement].key.0 <= now {
                    continue;
                }
                *word |= bit;
                known += 1;
                if let Some(worker) = self.holders.key(entry.holder) {
                    // Queries have far fewer than 2^32 blocks.
                    let blocks = u32::try_from(at + 1).unwrap_or(u32::MAX);
                    matches.push(PlacedMatch { worker, blocks });
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "placements_test.rs"]
mod tests;
