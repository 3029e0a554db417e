//! The trie of placed blocks.

use super::pages::{NONE, Pages};
use crate::table::{SplitTable, mix};
use kvasir_proto::types::LocalHash;
use smallvec::SmallVec;

/// A holder at a node, with its latest-ending placement through the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) holder: u32,
    pub(super) placement: u32,
}

/// A block with its predecessors as ancestors.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) local: LocalHash,
    pub(super) parent: u32,
    /// A child outside the branch table. Most nodes have one child, with the next number.
    first: u32,
    /// Number of children in the branch table.
    branches: u32,
    /// Entries in order of holders.
    entries: SmallVec<[Entry; 1]>,
}

impl Default for Node {
    fn default() -> Self {
        let first = NONE;
        let branches = 0;
        Self { local: LocalHash(0), parent: NONE, first, branches, entries: SmallVec::new() }
    }
}

impl Node {
    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The holder's latest placement through this node.
    pub(super) fn placement_of(&self, holder: u32) -> Option<u32> {
        let at = self.place_of(holder).ok()?;
        self.entries.get(at).map(|entry| entry.placement)
    }

    /// Whether the node has neither holders nor children.
    pub(super) fn is_bare(&self) -> bool {
        self.entries.is_empty() && !self.has_children()
    }

    pub(super) const fn has_children(&self) -> bool {
        self.first != NONE || self.branches > 0
    }

    fn place_of(&self, holder: u32) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&holder, |entry| entry.holder)
    }

    fn spilled_bytes(&self) -> usize {
        if self.entries.spilled() { self.entries.capacity() * size_of::<Entry>() } else { 0 }
    }
}

/// All nodes. First blocks are children of [`NONE`].
#[derive(Debug, Default)]
pub(super) struct Nodes {
    pub(super) pages: Pages<Node>,
    /// All first blocks, and all children except their parent's first.
    branches: SplitTable<u32>,
    /// Bytes of entry lists with two or more entries.
    spilled_bytes: usize,
}

fn hash(parent: u32, local: LocalHash) -> u64 {
    mix(local.0.wrapping_add(mix(u64::from(parent))))
}

fn hash_of(pages: &Pages<Node>, node: u32) -> u64 {
    let node = &pages[node];
    hash(node.parent, node.local)
}

impl Nodes {
    /// The child of a node with this content; `None` if it does not exist.
    pub(super) fn child(&self, parent: u32, local: LocalHash) -> Option<u32> {
        if parent != NONE {
            // The child is most likely the next node. Check it first: its address does not depend on the
            // parent's content, so the processor can prefetch it.
            let behind = self.pages.behind(parent);
            if behind.is_some_and(|node| node.parent == parent && node.local == local) {
                return Some(parent + 1);
            }
            let node = &self.pages[parent];
            if node.first != NONE && self.pages[node.first].local == local {
                return Some(node.first);
            }
            if node.branches == 0 {
                return None;
            }
        }
        let is_same = |&at: &u32| {
            let node = &self.pages[at];
            node.parent == parent && node.local == local
        };
        self.branches.find(hash(parent, local), is_same).copied()
    }

    /// Adds a child, which must not exist yet. Returns its node.
    pub(super) fn add_child(&mut self, parent: u32, local: LocalHash) -> u32 {
        let child = self.pages.add(Node { local, parent, ..Node::default() });
        if parent != NONE {
            let node = &mut self.pages[parent];
            if node.first == NONE {
                node.first = child;
                return child;
            }
            node.branches += 1;
        }
        let pages = &self.pages;
        self.branches.insert(hash(parent, local), child, |&at| hash_of(pages, at));
        child
    }

    /// Frees a bare node; returns its parent.
    pub(super) fn free(&mut self, node: u32) -> u32 {
        debug_assert!(self.pages[node].is_bare(), "node {node} is bare");
        let Node { parent, local, .. } = self.pages[node];
        if parent != NONE && self.pages[parent].first == node {
            self.pages[parent].first = NONE;
        } else {
            if parent != NONE {
                self.pages[parent].branches -= 1;
            }
            let pages = &self.pages;
            let removed = self.branches.remove(
                hash(parent, local),
                |&at| at == node,
                |&at| hash_of(pages, at),
            );
            debug_assert!(removed.is_some(), "a branch is in the table");
        }
        self.pages.remove(node);
        parent
    }

    /// Sets the holder's placement at a node; returns the previous one.
    pub(super) fn set_entry(&mut self, node: u32, holder: u32, placement: u32) -> Option<u32> {
        let node = &mut self.pages[node];
        match node.place_of(holder) {
            Ok(at) => {
                let entry = node.entries.get_mut(at)?;
                Some(std::mem::replace(&mut entry.placement, placement))
            }
            Err(at) => {
                let before = node.spilled_bytes();
                node.entries.insert(at, Entry { holder, placement });
                self.spilled_bytes = self.spilled_bytes - before + node.spilled_bytes();
                None
            }
        }
    }

    /// Removes a holder from a node.
    pub(super) fn remove_entry(&mut self, node: u32, holder: u32) {
        let node = &mut self.pages[node];
        let Ok(at) = node.place_of(holder) else { return };
        let before = node.spilled_bytes();
        node.entries.remove(at);
        if node.entries.len() * 4 <= node.entries.capacity() {
            node.entries.shrink_to_fit();
        }
        self.spilled_bytes = self.spilled_bytes - before + node.spilled_bytes();
    }

    pub(super) fn bytes(&self) -> usize {
        self.pages.bytes() + self.branches.bytes() + self.spilled_bytes
    }

    /// Checks that every node is its parent's child, and that the counts are correct.
    pub(super) fn validate(&self) -> Result<(), String> {
        self.pages.validate()?;
        let mut roots = 0;
        let mut branches = 0;
        let mut spilled_bytes = 0;
        for (at, node) in self.pages.iter() {
            if self.child(node.parent, node.local) != Some(at) {
                return Err(format!("node {at} is no child of node {}", node.parent));
            }
            if node.is_bare() {
                return Err(format!("node {at} leads nowhere"));
            }
            if !node.entries.is_sorted_by(|a, b| a.holder < b.holder) {
                return Err(format!("node {at} has unsorted entries"));
            }
            roots += usize::from(node.parent == NONE);
            branches += node.branches as usize;
            spilled_bytes += node.spilled_bytes();
        }
        if roots + branches != self.branches.len() {
            return Err(format!(
                "{} branches, {} in the table",
                roots + branches,
                self.branches.len()
            ));
        }
        if spilled_bytes != self.spilled_bytes {
            return Err(format!("{spilled_bytes} spilled, {} counted", self.spilled_bytes));
        }
        Ok(())
    }
}
