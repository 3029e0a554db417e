//! The blocks that one rank of an engine has cached.

use crate::chain::{Content, Name};
use kvasir_proto::types::{Tier, TierSet};
use std::collections::BTreeMap;

/// Cached blocks by tier.
#[derive(Debug, Default)]
pub struct Cache {
    contents: BTreeMap<Name, Content>,
    /// One entry a copy, the one used last at the end.
    copies: [Vec<Name>; Tier::COUNT],
    /// Blocks of the group with a sliding window, by their names.
    pub window: Vec<Name>,
}

impl Cache {
    pub fn copies(&self, tier: Tier) -> &[Name] {
        &self.copies[tier.index()]
    }

    pub fn has(&self, tier: Tier, name: Name) -> bool {
        self.copies(tier).contains(&name)
    }

    pub fn count(&self, tier: Tier, name: Name) -> usize {
        self.copies(tier).iter().filter(|&&at| at == name).count()
    }

    pub fn content(&self, name: Name) -> &Content {
        &self.contents[&name]
    }

    pub fn add(&mut self, tier: Tier, name: Name, content: &Content) {
        self.contents.entry(name).or_insert_with(|| content.clone());
        self.copies[tier.index()].push(name);
    }

    /// Removes the oldest copy of a block. Returns how many copies of the block remain in that tier.
    pub fn remove(&mut self, tier: Tier, name: Name) -> usize {
        let copies = &mut self.copies[tier.index()];
        let oldest = copies.iter().position(|&at| at == name).expect("cached");
        copies.remove(oldest);
        self.count(tier, name)
    }

    /// Marks a block as used.
    pub fn touch(&mut self, tier: Tier, name: Name) {
        let copies = &mut self.copies[tier.index()];
        if let Some(at) = copies.iter().position(|&at| at == name) {
            copies[at..].rotate_left(1);
        }
    }

    pub fn clear(&mut self, tier: Tier) {
        self.copies[tier.index()].clear();
        if tier == Tier::Device {
            self.window.clear();
        }
    }

    /// The tiers that have this block.
    pub fn tiers(&self, name: Name) -> TierSet {
        Tier::ALL.into_iter().filter(|&tier| self.has(tier, name)).collect()
    }

    /// The tiers that have a block of this content, whatever follows the block.
    pub fn tiers_under_any_next(&self, wanted: &Content) -> TierSet {
        let has_content = |name: &Name| {
            let content = self.content(*name);
            (content.parent, &content.tokens, &content.keys)
                == (wanted.parent, &wanted.tokens, &wanted.keys)
        };
        Tier::ALL.into_iter().filter(|&tier| self.copies(tier).iter().any(has_content)).collect()
    }
}
