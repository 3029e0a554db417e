//! The orders in which a fleet lets go of everything, in batches of 16 blocks, one batch of
//! each worker in turn.

use super::content::{Script, Span};
use super::fleet::{EVENT_BLOCKS, Fleet, Piece, events_of, in_turn};
use crate::random::Random;
use clap::ValueEnum;

/// An order of removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Order {
    /// Newest chain first, last block first: how engines free, when nothing else interferes.
    Tail,
    /// Chains in random order, last block first: how a cache turns over.
    Chains,
    /// The last held block of a random chain.
    Scattered,
    /// Whole events, in random order: holes of 16 blocks.
    Events,
    /// Random single blocks: holes everywhere.
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
            // Prompts go last: chains stand on them.
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

/// Takes last blocks of random pieces; a prompt has its turn when nothing follows it any more.
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
