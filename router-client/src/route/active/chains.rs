//! The blocks that active requests use, as a radix tree of their chains.
//!
//! A sequence hash identifies a block with its complete prefix, so two requests share only leading blocks. A node is a
//! run of blocks that the same requests use; for each rank, it counts the requests that pass through. A rank uses each
//! block of a node once, however many of its requests pass. So the work per request grows with the number of branches
//! on its path. Per block, only a comparison is needed.

use super::slab::Slab;
use kvasir_proto::types::SequenceHash;
use std::collections::{BTreeMap, HashMap};

/// Number of a node. It stays valid while a request ends there.
pub(super) type NodeId = u32;
/// Number of a rank.
pub(super) type Slot = u32;

#[derive(Debug)]
struct Node {
    parent: Option<NodeId>,
    /// At least one block.
    blocks: Vec<SequenceHash>,
    /// Child nodes by their first block.
    children: BTreeMap<SequenceHash, NodeId>,
    /// Number of requests that pass or end here, by rank, ascending; at least one entry.
    holders: Vec<(Slot, u32)>,
    /// Number of requests that end with the node's last block.
    ends: u32,
}

/// Chains of blocks in use, by rank.
#[derive(Debug, Default)]
pub(super) struct Chains {
    nodes: Slab<Node>,
    /// Nodes without a parent, by their first block.
    roots: HashMap<SequenceHash, NodeId>,
    blocks: usize,
}

/// The end of a request's chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Inserted {
    /// The node with the chain's last block; `None` for a chain without blocks.
    pub(super) end: Option<NodeId>,
    /// Number of blocks that the rank did not use before.
    pub(super) new_blocks: u64,
}

// === impl Node ===

impl Node {
    fn len(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Counts a request of a rank. Returns the number of blocks that are new to the rank.
    fn add_request(&mut self, slot: Slot) -> u64 {
        match self.holders.binary_search_by_key(&slot, |(slot, _)| *slot) {
            Ok(at) => {
                if let Some((_, requests)) = self.holders.get_mut(at) {
                    *requests += 1;
                }
                0
            }
            Err(at) => {
                self.holders.insert(at, (slot, 1));
                self.len()
            }
        }
    }

    /// Removes a request of a rank. Returns the number of blocks that the rank no longer uses.
    fn release(&mut self, slot: Slot) -> u64 {
        let Ok(at) = self.holders.binary_search_by_key(&slot, |(slot, _)| *slot) else {
            debug_assert!(false, "rank {slot} holds nothing here");
            return 0;
        };
        if let Some((_, requests @ 2..)) = self.holders.get_mut(at) {
            *requests -= 1;
            return 0;
        }
        self.holders.remove(at);
        self.len()
    }
}

// === impl Chains ===

impl Chains {
    /// Blocks in the tree.
    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Whether any rank uses the first block of a chain.
    pub(super) fn begins(&self, chain: &[SequenceHash]) -> bool {
        chain.first().is_some_and(|first| self.roots.contains_key(first))
    }

    /// Adds the chain of a request to a rank. Returns the end of the chain, and the number of blocks that are new to
    /// the rank.
    pub(super) fn insert(&mut self, slot: Slot, chain: &[SequenceHash]) -> Inserted {
        let mut end = None;
        let mut new_blocks = 0;
        let mut rest = chain;
        while let Some(first) = rest.first() {
            let Some(child) = self.child(end, *first) else {
                end = Some(self.append(end, *first, rest, slot));
                new_blocks += rest.len() as u64;
                break;
            };
            let common = self.common(child, rest);
            debug_assert!(common > 0, "a child begins with the block it is found by");
            let at = self.split(child, common);
            if let Some(node) = self.nodes.get_mut(at) {
                new_blocks += node.add_request(slot);
            }
            end = Some(at);
            rest = rest.get(common..).unwrap_or_default();
        }
        if let Some(node) = end.and_then(|end| self.nodes.get_mut(end)) {
            node.ends += 1;
        }
        debug_assert!(new_blocks <= chain.len() as u64, "no more than the chain has");
        Inserted { end, new_blocks }
    }

    /// Removes the chain of a request, which ends at `end`, from a rank. Returns the number of blocks that the rank no
    /// longer uses.
    pub(super) fn remove(&mut self, slot: Slot, end: Option<NodeId>) -> u64 {
        if let Some(node) = end.and_then(|end| self.nodes.get_mut(end)) {
            debug_assert!(node.ends > 0, "a request ends here");
            node.ends = node.ends.saturating_sub(1);
        }
        let mut at = end;
        let mut freed_blocks = 0;
        while let Some(number) = at {
            let Some(node) = self.nodes.get_mut(number) else { break };
            freed_blocks += node.release(slot);
            at = node.parent;
            if node.holders.is_empty() {
                self.unlink(number);
            } else {
                self.join(number);
            }
        }
        freed_blocks
    }

    /// Adds to `shared`, by slot, the number of leading blocks of a chain that each rank uses now.
    pub(super) fn count_shared(&self, chain: &[SequenceHash], shared: &mut [u32]) {
        // Ranks that pass a node also pass its parent. If the number of ranks is equal, the ranks are the same, and
        // their blocks are counted together.
        let (mut holders, mut blocks): (&[(Slot, u32)], _) = (&[], 0);
        let mut at = None;
        let mut rest = chain;
        while let Some(child) = rest.first().and_then(|first| self.child(at, *first)) {
            let Some(node) = self.nodes.get(child) else { break };
            if node.holders.len() != holders.len() {
                debug_assert!(
                    at.is_none() || node.holders.len() < holders.len(),
                    "some turned off"
                );
                count(holders, blocks, shared);
                (holders, blocks) = (&node.holders, 0);
            }
            let common = self.common(child, rest);
            blocks += u32::try_from(common).unwrap_or(u32::MAX);
            if common < node.blocks.len() {
                break;
            }
            (at, rest) = (Some(child), rest.get(common..).unwrap_or_default());
        }
        count(holders, blocks, shared);
    }

    /// Returns the chain that ends at a node.
    pub(super) fn chain(&self, end: Option<NodeId>) -> Vec<SequenceHash> {
        let mut at = end;
        let mut chain = Vec::new();
        while let Some(node) = at.and_then(|at| self.nodes.get(at)) {
            chain.extend(node.blocks.iter().rev());
            at = node.parent;
        }
        chain.reverse();
        chain
    }

    fn child(&self, parent: Option<NodeId>, first: SequenceHash) -> Option<NodeId> {
        match parent {
            None => self.roots.get(&first).copied(),
            Some(parent) => self.nodes.get(parent)?.children.get(&first).copied(),
        }
    }

    /// Number of leading blocks that a node has in common with a chain.
    fn common(&self, at: NodeId, chain: &[SequenceHash]) -> usize {
        let blocks = self.nodes.get(at).map_or(&[][..], |node| &node.blocks);
        blocks.iter().zip(chain).take_while(|(ours, theirs)| ours == theirs).count()
    }

    /// Links a node to its parent, or makes it a root.
    fn link(&mut self, parent: Option<NodeId>, first: SequenceHash, child: NodeId) {
        match parent.and_then(|parent| self.nodes.get_mut(parent)) {
            Some(parent) => parent.children.insert(first, child),
            None => self.roots.insert(first, child),
        };
    }

    /// Adds a node with `blocks` below `parent`, used by one request of `slot`. Returns its number.
    fn append(
        &mut self,
        parent: Option<NodeId>,
        first: SequenceHash,
        blocks: &[SequenceHash],
        slot: Slot,
    ) -> NodeId {
        self.blocks += blocks.len();
        let child = self.nodes.insert(Node {
            parent,
            blocks: blocks.to_vec(),
            children: BTreeMap::new(),
            holders: vec![(slot, 1)],
            ends: 0,
        });
        self.link(parent, first, child);
        child
    }

    /// Splits a node after `blocks` blocks, and returns the upper part, or the node itself if it is not longer. The
    /// lower part keeps its number, because requests end there.
    fn split(&mut self, lower: NodeId, blocks: usize) -> NodeId {
        let Some(node) = self.nodes.get_mut(lower) else { return lower };
        if blocks >= node.blocks.len() {
            return lower;
        }
        let rest = node.blocks.split_off(blocks);
        let head = std::mem::replace(&mut node.blocks, rest);
        let parent = node.parent;
        let holders = node.holders.clone();
        let children = node.blocks.first().map(|first| (*first, lower)).into_iter().collect();
        let Some(first) = head.first().copied() else { return lower };
        let upper = self.nodes.insert(Node { parent, blocks: head, children, holders, ends: 0 });
        if let Some(node) = self.nodes.get_mut(lower) {
            node.parent = Some(upper);
        }
        self.link(parent, first, upper);
        upper
    }

    /// Removes a node that no rank uses any more.
    fn unlink(&mut self, at: NodeId) {
        let Some(node) = self.nodes.remove(at) else { return };
        debug_assert!(node.children.is_empty() && node.ends == 0, "whoever is below passes here");
        debug_assert!(self.blocks >= node.blocks.len(), "its blocks were counted");
        self.blocks = self.blocks.saturating_sub(node.blocks.len());
        let Some(first) = node.blocks.first() else { return };
        match node.parent.and_then(|parent| self.nodes.get_mut(parent)) {
            Some(parent) => parent.children.remove(first),
            None => self.roots.remove(first),
        };
    }

    /// Merges a node with its only child if no request ends between them, so that old prompts leave no fragments. The
    /// child keeps its number. Any other node stays unchanged.
    fn join(&mut self, upper: NodeId) {
        let Some(node) = self.nodes.get(upper) else { return };
        let mut children = node.children.values();
        let (0, Some(&lower), None) = (node.ends, children.next(), children.next()) else { return };
        let Some(mut node) = self.nodes.remove(upper) else { return };
        let Some(first) = node.blocks.first().copied() else { return };
        if let Some(child) = self.nodes.get_mut(lower) {
            debug_assert_eq!(child.holders, node.holders, "all who pass one pass the other");
            node.blocks.append(&mut child.blocks);
            child.blocks = node.blocks;
            child.parent = node.parent;
        }
        self.link(node.parent, first, lower);
    }

    /// Checks the documented invariants.
    #[cfg(test)]
    pub(super) fn validate(&self) {
        let blocks: usize = self.nodes.iter().map(|(_, node)| node.blocks.len()).sum();
        assert_eq!(self.blocks, blocks);
        for (number, node) in self.nodes.iter() {
            assert!(!node.blocks.is_empty() && !node.holders.is_empty());
            assert!(node.holders.is_sorted_by(|a, b| a.0 < b.0), "ascending, each once");
            assert!(node.holders.iter().all(|(_, requests)| *requests > 0));
            assert_eq!(self.child(node.parent, node.blocks[0]), Some(number), "its parent has it");
            assert!(node.ends > 0 || node.children.len() > 1, "no fragments");
            let below = node.children.values().flat_map(|child| {
                let child = self.nodes.get(*child).expect("a child");
                assert_eq!(child.parent, Some(number));
                child.holders.iter()
            });
            let below: u32 = below.map(|(_, requests)| requests).sum();
            let here: u32 = node.holders.iter().map(|(_, requests)| requests).sum();
            assert_eq!(here, below + node.ends, "who passes goes on or ends");
        }
    }
}

/// Adds `blocks` to the counts of the listed ranks.
fn count(holders: &[(Slot, u32)], blocks: u32, shared: &mut [u32]) {
    for (slot, _) in holders {
        if let Some(at) = usize::try_from(*slot).ok().and_then(|slot| shared.get_mut(slot)) {
            *at += blocks;
        }
    }
}
