//! Generates the orders in which a fleet removes all blocks, in batches of 16 blocks. Workers send one batch each in
//! turn.

use super::content::{Script, Span};
use super::fleet::{EVENT_BLOCKS, Fleet, Piece, events_of, in_turn};
use crate::random::Random;
use clap::ValueEnum;

/// An order of removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Order {
    /// Newest chain first, last block first: the order in which engines free blocks without interference.
    Tail,
    /// Chains in random order, last block first: the order of a cache's turnover.
    Chains,
    /// The last remaining block of a random chain.
    Scattered,
    /// Complete events, in random order: holes of 16 blocks.
    Events,
    /// Single blocks, at random: holes everywhere.
    Random,
}

/// The removals.
pub(crate) fn removals(fleet: &Fleet, order: Order, seed: u64) -> Script {
    let mut random = Random::new(seed);
    let queues = fleet.pieces.iter().map(|pieces| batches(pieces, order, &mut random)).collect();
    let mut script = Script::default();
    in_turn(queues, |worker, blocks: Vec<u32>| script.remove(worker, blocks));
    script
}

fn batches(pieces: &[Piece], order: Order, random: &mut Random) -> Vec<Vec<u32>> {
    match order {
        Order::Tail => pieces.iter().rev().flat_map(|piece| tail_first(piece.blocks)).collect(),
        Order::Chains => {
            // Prompts are removed last, because chains follow them.
            let prefixed = pieces.iter().any(|piece| piece.after.is_some());
            let (mut chains, prompts): (Vec<Piece>, Vec<Piece>) =
                pieces.iter().partition(|piece| piece.after.is_some() || !prefixed);
            random.shuffle(&mut chains);
            chains.iter().chain(&prompts).flat_map(|piece| tail_first(piece.blocks)).collect()
        }
        Order::Scattered => scattered(pieces, random),
        Order::Events => {
            let events = |piece: &Piece| events_of(piece.blocks).collect::<Vec<_>>();
            let mut events: Vec<Span> = pieces.iter().flat_map(events).collect();
            random.shuffle(&mut events);
            events.iter().map(|event| (event.start..event.end()).rev().collect()).collect()
        }
        Order::Random => {
            let blocks = |piece: &Piece| piece.blocks.start..piece.blocks.end();
            let mut blocks: Vec<u32> = pieces.iter().flat_map(blocks).collect();
            random.shuffle(&mut blocks);
            blocks.chunks(EVENT_BLOCKS as usize).map(<[u32]>::to_vec).collect()
        }
    }
}

fn tail_first(span: Span) -> Vec<Vec<u32>> {
    events_of(span).rev().map(|event| (event.start..event.end()).rev().collect()).collect()
}

/// Takes last blocks of random pieces. A prompt is removed once no piece follows it any more.
fn scattered(pieces: &[Piece], random: &mut Random) -> Vec<Vec<u32>> {
    let mut left: Vec<u32> = pieces.iter().map(|piece| piece.blocks.len).collect();
    let mut followers = vec![0_usize; pieces.len()];
    pieces.iter().filter_map(|piece| piece.after).for_each(|after| followers[after] += 1);
    let mut open: Vec<usize> = (0..pieces.len()).filter(|&at| followers[at] == 0).collect();
    let mut order = Vec::new();
    while !open.is_empty() {
        let chosen = random.below(open.len());
        let at = open[chosen];
        left[at] -= 1;
        order.push(pieces[at].blocks.start + left[at]);
        if left[at] > 0 {
            continue;
        }
        open.swap_remove(chosen);
        if let Some(after) = pieces[at].after {
            followers[after] -= 1;
            if followers[after] == 0 {
                open.push(after);
            }
        }
    }
    order.chunks(EVENT_BLOCKS as usize).map(<[u32]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Action, Kind};
    use std::collections::{BTreeSet, HashMap};

    const SEED: u64 = 7;
    const PAIRS: usize = 64_000;
    const ORDERS: [Order; 5] =
        [Order::Tail, Order::Chains, Order::Scattered, Order::Events, Order::Random];

    fn held(fleet: &Fleet) -> BTreeSet<(u32, u32)> {
        let stores = fleet.stores();
        let mut held = BTreeSet::new();
        for operation in stores.operations() {
            if let Action::Store { parent, blocks } = operation.action {
                let parent = parent.map(|parent| (operation.worker, parent));
                assert!(parent.is_none_or(|parent| held.contains(&parent)), "parents come first");
                held.extend((blocks.start..blocks.end()).map(|block| (operation.worker, block)));
            }
        }
        held
    }

    /// The preceding block of each block of a worker.
    fn parents(pieces: &[Piece]) -> HashMap<u32, u32> {
        let mut parents = HashMap::new();
        for piece in pieces {
            parents.extend((piece.blocks.start + 1..piece.blocks.end()).map(|at| (at, at - 1)));
            let after = piece.after.map(|at| pieces[at].blocks.last());
            parents.extend(after.map(|after| (piece.blocks.start, after)));
        }
        parents
    }

    #[test]
    fn fleets_hold_as_many_pairs_as_asked() {
        for kind in Kind::ALL {
            let fleet = Fleet::new(kind, 8, PAIRS, SEED);
            assert_eq!(fleet.pairs, PAIRS, "{kind:?}");
            assert_eq!(held(&fleet).len(), PAIRS, "{kind:?}");
        }
    }

    /// Applies removals and returns how many left a hole. Each must remove a cached block.
    fn holes(fleet: &Fleet, script: &Script, held: &mut BTreeSet<(u32, u32)>) -> usize {
        let parents: Vec<_> = fleet.pieces.iter().map(|pieces| parents(pieces)).collect();
        let mut followers = vec![HashMap::<u32, usize>::new(); fleet.workers()];
        for (counts, parents) in followers.iter_mut().zip(&parents) {
            parents.values().for_each(|&at| *counts.entry(at).or_default() += 1);
        }
        let removed = script.operations().iter().flat_map(|operation| {
            let Action::Remove { listed } = operation.action else {
                panic!("a store");
            };
            script.removed(listed).iter().map(|&block| (operation.worker, block))
        });
        let mut holes = 0;
        for (worker, block) in removed {
            assert!(held.remove(&(worker, block)), "{block} is removed twice");
            let followers = &mut followers[worker as usize];
            holes += usize::from(followers.get(&block).is_some_and(|&count| count > 0));
            let parent = parents[worker as usize].get(&block);
            if let Some(count) = parent.and_then(|parent| followers.get_mut(parent)) {
                *count -= 1;
            }
        }
        holes
    }

    #[test]
    fn each_order_removes_everything_once_and_some_leave_no_holes() {
        for kind in Kind::ALL {
            let fleet = Fleet::new(kind, 8, PAIRS, SEED);
            for order in ORDERS {
                let mut held = held(&fleet);
                let holes = holes(&fleet, &removals(&fleet, order, SEED), &mut held);
                assert!(held.is_empty(), "{kind:?}, {order:?} leaves {}", held.len());
                let makes_holes = matches!(order, Order::Events | Order::Random);
                assert_eq!(holes > 0, makes_holes, "{kind:?}, {order:?}: {holes} holes");
            }
        }
    }
}
