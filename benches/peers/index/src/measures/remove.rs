//! Measures removals, and checks answers meanwhile.

use super::apply::{Applied, apply};
use crate::indexes::{Ask, Index};
use crate::line::Line;
use crate::workload::{
    Action, Fleet, Operation, Order, Piece, Question, Script, Span, cases, removals,
};
use std::collections::HashMap;

/// Number of queries of each kind half-way and at the end.
const QUESTIONS: usize = 500;

/// Removes all blocks of the fleet.
pub(crate) fn remove<I: Index>(
    index: &mut I,
    fleet: &Fleet,
    order: Order,
    script: &Script,
    line: &mut Line,
) {
    let name = format!("remove.{order:?}").to_lowercase();
    let (first, second) = script.operations().split_at(script.operations().len() / 2);
    let mut removed = Applied::default();
    removed.add(index, &fleet.content, script, first);
    let wrong = wrong_answers(index.asked(), fleet, &Held::after(fleet, script, first), line.seed);
    removed.add(index, &fleet.content, script, second);
    assert_eq!(removed.blocks, fleet.pairs, "removals");
    line.set(format!("{name}.cpu_rate"), removed.cpu_rate());
    line.set(format!("{name}.wall_rate"), removed.wall_rate());
    line.set(format!("{name}.wrong"), wrong);
    assert!(wrong == 0.0 || !I::EXACT, "{name}: wrong answers: {wrong}, seed {}", line.seed);
    assert_eq!(index.pairs(), 0, "pairs after {name}");
    let nothing = Held { bits: Vec::new() };
    let wrong = wrong_answers(index.asked(), fleet, &nothing, line.seed);
    assert_eq!(wrong, 0.0, "wrong answers after {name}");
}

/// Removes a random half of the blocks and stores it again, block by block and parents first. No block is then missing,
/// so every answer can be as before.
pub(crate) fn heal<I: Index>(index: &mut I, fleet: &Fleet, line: &mut Line) {
    let script = removals(fleet, Order::Random, line.seed + 2);
    let (half, _) = script.operations().split_at(script.operations().len() / 2);
    Applied::default().add(index, &fleet.content, &script, half);
    let again = stored_again(fleet, &script, half);
    let applied = apply(index, &fleet.content, &again);
    line.set("heal.cpu_rate", applied.cpu_rate());
    let all = Held::after(fleet, &script, &[]);
    let wrong = wrong_answers(index.asked(), fleet, &all, line.seed);
    line.set("heal.wrong", wrong);
    assert!(wrong == 0.0 || !I::EXACT, "healed: wrong answers: {wrong}, seed {}", line.seed);
}

/// Stores the removed blocks, one block per event.
fn stored_again(fleet: &Fleet, script: &Script, removed: &[Operation]) -> Script {
    let mut of_workers = vec![Vec::new(); fleet.workers()];
    for operation in removed {
        if let Action::Remove { listed } = operation.action {
            of_workers[operation.worker as usize].extend_from_slice(script.removed(listed));
        }
    }
    let mut again = Script::default();
    for ((blocks, pieces), worker) in of_workers.iter_mut().zip(&fleet.pieces).zip(0..) {
        let first =
            |piece: &Piece| (piece.blocks.start, piece.after.map(|at| pieces[at].blocks.last()));
        let firsts: HashMap<u32, Option<u32>> = pieces.iter().map(first).collect();
        // A block has a higher number than its parent.
        blocks.sort_unstable();
        for &mut start in blocks {
            let parent = firsts.get(&start).copied().unwrap_or_else(|| Some(start - 1));
            again.store(worker, parent, Span { start, len: 1 });
        }
    }
    again
}

/// Ground truth: the blocks of each worker.
struct Held {
    /// One bit per block, for each worker.
    bits: Vec<Vec<u64>>,
}

impl Held {
    /// The blocks that remain after `removed` are removed.
    fn after(fleet: &Fleet, script: &Script, removed: &[Operation]) -> Self {
        let words = fleet.content.len().div_ceil(64);
        let mut held = Self { bits: vec![vec![0; words]; fleet.workers()] };
        for (bits, pieces) in held.bits.iter_mut().zip(&fleet.pieces) {
            let blocks = pieces.iter().flat_map(|piece| piece.blocks.start..piece.blocks.end());
            blocks.for_each(|block| bits[block as usize / 64] |= 1 << (block % 64));
        }
        for operation in removed {
            if let Action::Remove { listed } = operation.action {
                let bits = &mut held.bits[operation.worker as usize];
                let blocks = script.removed(listed);
                blocks.iter().for_each(|&block| bits[block as usize / 64] &= !(1 << (block % 64)));
            }
        }
        held
    }

    /// (worker, leading blocks) for a chain of blocks.
    fn scores(&self, blocks: &[u32]) -> Vec<(u32, u32)> {
        let leading = |bits: &Vec<u64>| {
            let held = |block: &&u32| bits[**block as usize / 64] >> (**block % 64) & 1 == 1;
            blocks.iter().take_while(held).count() as u32
        };
        let scores =
            self.bits.iter().map(leading).zip(0..).map(|(blocks, worker)| (worker, blocks));
        scores.filter(|&(_, blocks)| blocks > 0).collect()
    }
}

/// Fraction of wrong answers.
fn wrong_answers<A: Ask>(asked: &A, fleet: &Fleet, held: &Held, seed: u64) -> f64 {
    let mut query = Vec::new();
    let mut answer = A::Answer::default();
    let mut wrong = 0;
    let mut all = 0;
    for &case in cases(fleet.kind) {
        for question in Question::some(fleet, case, QUESTIONS, seed) {
            query.clear();
            question.append(fleet, &mut query, A::hash);
            let truth = held.scores(&question.known_blocks(fleet));
            for call in 0..A::CALLS.len() {
                asked.ask(call, &query, &mut answer);
                let mut scores = asked.scores(call, &answer);
                scores.sort_unstable();
                wrong += usize::from(scores != truth);
                all += 1;
            }
        }
    }
    wrong as f64 / all as f64
}
