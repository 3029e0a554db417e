//! Placements: prompts that a router has just sent to ranks, kept for a while beside the index.
//!
//! A router that places a prompt knows which blocks that worker is about to hold before any event
//! does. Of an engine that publishes no events, nothing else is ever known. So a router may record a
//! prompt for a rank: its blocks count as *speculative* there until a time to live is over. They are
//! a guess. Storage and answers keep them apart from what the index holds.
//!
//! # How it is laid out
//! Nodes of a trie are the blocks of recorded prompts. A *placement* is one recorded prompt of one
//! holder, with the time at which it ends. At each node of its path the holder has an entry that
//! names the placement that ends last among those leading through. Since every placement begins at
//! the root, an ancestor never ends before its descendants, which gives everything else:
//! - a placement's entries are the last so many of its path, so ending it means walking up from its
//!   leaf, and a heap of placements (not of blocks) says which is next;
//! - a holder with a live entry at a node has one at every node before it, so a query walks to the
//!   deepest node there is and reads who is where from there upwards;
//! - dropping what ends first never leaves a hole.
//!
//! # What it promises
//! Nothing here blocks for long: recording takes prompts in pieces, everything else a budget. One
//! (rank, block) pair costs 8 bytes, a block some 50, a placement 44. When all is over, nothing is
//! allocated.

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

/// Speculative blocks of one partition, by content: prompts that a router has just sent to ranks. The
/// head of this file explains the layout.
#[derive(Debug, Default)]
pub struct Placements {
    nodes: Nodes,
    placements: Pages<Placement>,
    queue: Queue,
    holders: Holders,
    blocks: usize,
    /// Recordings begun so far.
    begun: u64,
    /// Raised whenever something goes that a recording under way may rest on.
    epoch: u64,
}

/// A prompt that is being recorded, piece by piece.
#[derive(Debug)]
pub struct Recording {
    worker: WorkerKey,
    key: Key,
    holder: u32,
    /// Made with the first block that it is the latest for.
    placement: u32,
    /// Where the next block goes.
    node: u32,
    epoch: u64,
}

/// What recording a piece did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recorded {
    /// Blocks that are new to the rank.
    pub added: usize,
    /// Blocks that the rank had; they end when this placement does, or later.
    pub refreshed: usize,
}

/// Blocks that the recording rested on were dropped between two pieces: it ends where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("blocks were dropped while a prompt was being recorded")]
pub struct RecordingCut;

/// A step of something that may take several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dropped {
    /// (rank, block) pairs that were dropped.
    pub blocks: usize,
    /// Whether nothing is left to do.
    pub done: bool,
}

/// What one rank is expected to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedMatch {
    /// The rank.
    pub worker: WorkerKey,
    /// Leading blocks of the query.
    pub blocks: u32,
}

/// Space for answers, reused between queries.
#[derive(Debug, Default)]
pub struct PlacedScratch {
    /// Nodes of the query, first block first.
    path: Vec<u32>,
    /// Holders that need no further look.
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
    /// Speculative blocks: (rank, block) pairs, those included whose time is over or whose worker
    /// was removed and that were not dropped yet.
    #[must_use]
    pub const fn blocks(&self) -> usize {
        self.blocks
    }

    /// Bytes allocated. O(workers).
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.nodes.bytes() + self.placements.bytes() + self.queue.bytes() + self.holders.bytes()
    }

    /// When the first placement ends, as time since the origin; none if there is none.
    #[must_use]
    pub fn first_end(&self) -> Option<Duration> {
        let first = self.queue.first()?;
        Some(Duration::from_nanos(self.placements[first].key.0))
    }

    /// Begins to record a prompt for a rank, at `now` since the origin and for `ttl`.
    pub fn begin(&mut self, worker: WorkerKey, now: Duration, ttl: Duration) -> Recording {
        self.begun += 1;
        let key = (nanos(now.saturating_add(ttl)), self.begun);
        let epoch = self.epoch;
        Recording { worker, key, holder: NONE, placement: NONE, node: NONE, epoch }
    }

    /// Records the next blocks of a prompt, at once: callers cut long prompts into pieces.
    ///
    /// # Errors
    /// If blocks were dropped meanwhile.
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
                    self.own(recording);
                    self.disown(present);
                    recorded.refreshed += 1;
                }
                None => {
                    self.own(recording);
                    self.blocks += 1;
                    recorded.added += 1;
                }
            }
        }
        recording.epoch = self.epoch;
        Ok(recorded)
    }

    /// Makes a recording's placement the latest at its node.
    fn own(&mut self, recording: &mut Recording) {
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

    /// A placement lost its first block to a later one.
    fn disown(&mut self, number: u32) {
        let placement = &mut self.placements[number];
        placement.owned -= 1;
        if placement.owned == 0 {
            self.forget(number);
        }
    }

    /// Forgets a placement that owns nothing, and its holder with the last one.
    fn forget(&mut self, number: u32) {
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

    /// Drops blocks of a placement from its leaf upwards, `budget` at most.
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
                self.forget(number);
                break;
            }
            // A removed worker's placements go in any order, so the one before may have gone
            // first. Its nodes are freed by this one, one at a time like all others.
            placement.owned = 1;
            self.nodes.set_entry(above, holder, number);
            self.blocks += 1;
        }
        before - self.blocks
    }

    /// Drops what ended by `now`, in at most `budget` blocks.
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

    /// Drops what ends first until `target` blocks are left, at most `budget` of them. With one
    /// time to live for all, that is the oldest; of one prompt the last blocks go first.
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

    /// Removes a worker: from now on no answer has it, and what is recorded for the same name is
    /// another worker's. [`sweep`](Self::sweep) drops what it held.
    pub fn remove_worker(&mut self, worker: &WorkerId) {
        self.epoch += 1;
        self.holders.retire(worker);
    }

    /// Drops what removed workers held, in at most `budget` blocks.
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

    /// Which ranks are expected, at `now` since the origin, to hold how many leading blocks of a
    /// prompt. Stops at the first block that no rank was sent.
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
        // Whoever is at a node is at those before it too, so equal numbers are equal sets; but not
        // while removed workers are being swept.
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
