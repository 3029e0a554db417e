//! Checks all invariants of placements between two calls.

use super::Placements;
use super::pages::NONE;
use std::collections::BTreeMap;

impl Placements {
    /// Checks every invariant. O(everything): for tests.
    ///
    /// # Errors
    /// A description of the first broken invariant.
    pub fn validate(&self) -> Result<(), String> {
        self.nodes.validate()?;
        self.placements.validate()?;
        self.queue.validate(&self.placements)?;
        self.holders.validate()?;
        self.validate_lists()?;
        self.validate_paths()?;
        if self.blocks == 0 && self.holders.retired.is_empty() && self.bytes() != 0 {
            return Err(format!("{} bytes are left", self.bytes()));
        }
        Ok(())
    }

    /// Checks that every placement is in its holder's list, and that every holder has one.
    fn validate_lists(&self) -> Result<(), String> {
        let mut listed = 0;
        for (at, holder) in self.holders.pages.iter() {
            if holder.first == NONE && !holder.is_retired() {
                return Err(format!("holder {at} has no placement"));
            }
            let mut number = holder.first;
            let mut previous = NONE;
            while number != NONE {
                let placement = &self.placements[number];
                if placement.holder != at || placement.previous != previous {
                    return Err(format!("placement {number} is listed wrongly"));
                }
                listed += 1;
                (previous, number) = (number, placement.next);
            }
        }
        if listed != self.placements.used() {
            return Err(format!("{listed} placements of {} are listed", self.placements.used()));
        }
        Ok(())
    }

    /// Checks that a placement's entries are at the end of its path. A holder at a node must also be at the
    /// node's ancestors, for at least as long; removed workers may have holes.
    fn validate_paths(&self) -> Result<(), String> {
        let mut owned = BTreeMap::<u32, u32>::new();
        for (at, node) in self.nodes.pages.iter() {
            for entry in node.entries() {
                *owned.entry(entry.placement).or_default() += 1;
                let placement = &self.placements[entry.placement];
                if placement.holder != entry.holder {
                    return Err(format!("node {at} has another holder's placement"));
                }
                if node.parent == NONE || self.holders.pages[entry.holder].is_retired() {
                    continue;
                }
                let above = self.nodes.pages[node.parent].placement_of(entry.holder);
                let above = above.map(|above| self.placements[above].key);
                if above.is_none_or(|above| above < placement.key) {
                    return Err(format!("node {at} is held longer than the one before"));
                }
            }
            if node.entries().is_empty() && self.holders.retired.is_empty() {
                return Err(format!("node {at} has no holder"));
            }
        }
        if owned.values().map(|owned| *owned as usize).sum::<usize>() != self.blocks {
            return Err(format!("{} blocks are counted wrongly", self.blocks));
        }
        for (at, placement) in self.placements.iter() {
            if owned.get(&at) != Some(&placement.owned) || placement.owned == 0 {
                return Err(format!("placement {at} does not own {}", placement.owned));
            }
            let mut node = placement.leaf;
            for _ in 0..placement.owned {
                if node == NONE || self.nodes.pages[node].placement_of(placement.holder) != Some(at)
                {
                    return Err(format!("placement {at} is not one stretch"));
                }
                node = self.nodes.pages[node].parent;
            }
        }
        Ok(())
    }
}
