use super::advice::{Advice, AdviceKind, AdviceReason};
use super::tree::{BlockKey, Node, PlaceId, PlaceView, Tree};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::Reverse;
use std::time::Duration;

/// Longest prefix that is promoted together with a hot block, in blocks.
const PREFIX_BLOCKS_MAX: usize = 65_536;

/// Thresholds of the advice.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// Classes of locations (the part of a name before `:`), fastest first. Unlisted classes are slower than all listed
    /// ones.
    pub order: Vec<String>,
    /// Number of recent uses from which a block is hot.
    pub hot_uses: f64,
    /// Time without a use after which a block is cold.
    pub cold_after: Duration,
    /// Maximum number of places with a copy of one block.
    pub copies_max: usize,
    /// Maximum pieces of advice of each kind per round.
    pub advice_max: usize,
}

impl Rules {
    /// Rank of a location's class; 0 is the fastest.
    fn rank(&self, location: &str) -> usize {
        let class = location.split(':').next().unwrap_or_default();
        self.order.iter().position(|at| at == class).unwrap_or(self.order.len())
    }
}

/// Computes the advice at `now`: the most urgent pieces of each kind.
#[must_use]
pub fn advise(tree: &Tree, rules: &Rules, now: Duration) -> Vec<Advice> {
    let ranks = tree.places().map(|at| (at.id, (rules.rank(at.location), at))).collect();
    let round = Round { tree, rules, now, ranks };
    [round.promotions(), round.demotions(), round.compactions()].concat()
}

/// One round of advice.
struct Round<'a> {
    tree: &'a Tree,
    rules: &'a Rules,
    now: Duration,
    ranks: FxHashMap<PlaceId, (usize, PlaceView<'a>)>,
}

impl<'a> Round<'a> {
    /// Promotion candidates: the hottest blocks missing from the fastest location, each with its prefix (useless
    /// without it).
    fn promotions(&self) -> Vec<Advice> {
        let Some(to) = self.rules.order.first() else { return Vec::new() };
        let heat = |node| self.tree.heat(node, self.now);
        let mut hot: Vec<_> = self
            .tree
            .nodes()
            .map(|(key, node)| (key, heat(node)))
            .filter(|(_, heat)| *heat >= self.rules.hot_uses)
            .collect();
        hot.sort_unstable_by(|(a, a_heat), (b, b_heat)| b_heat.total_cmp(a_heat).then(a.cmp(b)));
        let mut seen = FxHashSet::default();
        let mut advice = Vec::new();
        for (key, _) in hot {
            let mut path = Vec::new();
            let mut next = Some(key);
            while let Some(at) =
                next.filter(|at| path.len() < PREFIX_BLOCKS_MAX && seen.insert(*at))
            {
                path.push(at);
                next = self.tree.parent(at).map(|(parent, _)| parent);
            }
            // From the root, because a prefix is loaded in this order.
            for key in path.into_iter().rev() {
                let Some(node) = self.tree.node(key) else { continue };
                let Some((rank, place)) = self.sorted(node).first().copied() else { continue };
                if rank > 0 {
                    let to = Some(to.clone());
                    advice.push(self.advice(
                        (AdviceKind::Promotion, AdviceReason::Hot),
                        (key, node),
                        (place, to),
                    ));
                }
                if advice.len() >= self.rules.advice_max {
                    return advice;
                }
            }
        }
        advice
    }

    /// Demotion candidates, least recently used first. A candidate is cold, a slower class than its place exists, and
    /// no block of the same place continues it.
    fn demotions(&self) -> Vec<Advice> {
        // Blocks that are continued in the same place.
        let continued: FxHashSet<(BlockKey, PlaceId)> = self
            .tree
            .nodes()
            .filter_map(|(key, node)| Some((BlockKey { sequence: node.parent?, ..key }, node)))
            .flat_map(|(parent, node)| node.places.iter().map(move |place| (parent, *place)))
            .collect();
        let mut cold = Vec::new();
        for (key, node, place) in self.stored() {
            let Some((rank, _)) = self.ranks.get(&place) else { continue };
            let has_slower = rank + 1 < self.rules.order.len();
            let idle = node.idle(self.now);
            let is_cold = idle >= self.rules.cold_after
                && self.tree.heat(node, self.now) < self.rules.hot_uses;
            if has_slower && is_cold && !continued.contains(&(key, place)) {
                cold.push((Reverse(idle), key, place));
            }
        }
        cold.sort_unstable();
        cold.truncate(self.rules.advice_max);
        let advice = cold.into_iter().filter_map(|(_, key, place)| {
            let (rank, place) = self.ranks.get(&place)?;
            let to = self.rules.order.get(rank + 1).cloned();
            let what = (AdviceKind::Demotion, AdviceReason::Cold);
            Some(self.advice(what, (key, self.tree.node(key)?), (*place, to)))
        });
        advice.collect()
    }

    /// Compaction candidates: blocks that no prompt reaches, then the slowest copies of blocks in too many places.
    fn compactions(&self) -> Vec<Advice> {
        let mut orphans = Vec::new();
        let mut copies = Vec::new();
        for (key, node) in self.tree.nodes() {
            if node.parent.is_some() && self.tree.parent(key).is_none() {
                orphans.push((key, AdviceReason::Orphan));
            } else if self.sorted(node).len() > self.rules.copies_max {
                copies.push((key, AdviceReason::Copies));
            }
        }
        orphans.sort_unstable();
        copies.sort_unstable();
        let all = orphans.into_iter().chain(copies).take(self.rules.advice_max);
        let advice = all.filter_map(|(key, reason)| {
            let node = self.tree.node(key)?;
            let (_, slowest) = *self.sorted(node).last()?;
            Some(self.advice((AdviceKind::Compaction, reason), (key, node), (slowest, None)))
        });
        advice.collect()
    }

    fn stored(&self) -> impl Iterator<Item = (BlockKey, &'a Node, PlaceId)> {
        let each = |(key, node): (BlockKey, &'a Node)| {
            node.places.iter().map(move |place| (key, node, *place))
        };
        self.tree.nodes().flat_map(each)
    }

    /// Places that have a block, fastest first. A volume is one place, whichever worker reports it.
    fn sorted(&self, node: &Node) -> Vec<(usize, PlaceView<'a>)> {
        let mut places: Vec<_> =
            node.places.iter().filter_map(|place| self.ranks.get(place).copied()).collect();
        places.sort_unstable_by_key(|(rank, place)| (*rank, place.location, place.id));
        places.dedup_by(|(_, a), (_, b)| is_shared(a.location) && a.location == b.location);
        places
    }

    fn advice(
        &self,
        (kind, reason): (AdviceKind, AdviceReason),
        (key, node): (BlockKey, &Node),
        (place, to): (PlaceView<'_>, Option<String>),
    ) -> Advice {
        let hash = |sequence: u64| format!("{sequence:016x}");
        Advice {
            kind,
            reason,
            model: place.address.partition.model().to_owned(),
            tenant: place.address.partition.tenant().to_owned(),
            worker: place.address.worker.as_str().to_owned(),
            from: place.location.to_owned(),
            to,
            sequence_hash: hash(key.sequence),
            prefix_hash: node.parent.map(hash),
            block_bytes: node.bytes,
            heat: self.tree.heat(node, self.now),
            idle_s: node.idle(self.now).as_secs(),
            copies: self.sorted(node).len(),
        }
    }
}

/// Whether locations with this name are one location shared by all workers.
fn is_shared(location: &str) -> bool {
    location.starts_with("volume:")
}

#[cfg(test)]
#[path = "rules_test.rs"]
mod tests;
