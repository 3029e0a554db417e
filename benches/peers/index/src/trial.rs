//! One trial: one index, one workload, in a process of its own.

use crate::indexes::{Ask, Chain, Crtc, Index, Kvasir, Positional, summary};
use crate::line::Line;
use crate::measures::{apply, lookups};
use crate::meter::resident_bytes;
use crate::workload::{Fleet, Kind, Order, Question, cases, removals};
use clap::{Args, ValueEnum};
use std::collections::BTreeMap;

/// An index under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Subject {
    /// Ours.
    Kvasir,
    /// kv-index: ChainIndex.
    Chain,
    /// dynamo-kv-router: ConcurrentRadixTreeCompressed.
    Crtc,
    /// dynamo-kv-router: PositionalIndexer.
    Positional,
}

/// What a trial measures. Storing, and memory after it, are measured by each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Measure {
    /// Nothing more.
    Store,
    /// Lookups.
    Lookup,
    /// Removal, tails first.
    RemoveTail,
    /// Removal of last blocks of random chains.
    RemoveScattered,
    /// Removal of whole events at random.
    RemoveEvents,
    /// Removal of single blocks at random.
    RemoveRandom,
}

impl Measure {
    fn order(self) -> Option<Order> {
        match self {
            Self::RemoveTail => Some(Order::Tail),
            Self::RemoveScattered => Some(Order::Scattered),
            Self::RemoveEvents => Some(Order::Events),
            Self::RemoveRandom => Some(Order::Random),
            Self::Store | Self::Lookup => None,
        }
    }
}

/// A trial.
#[derive(Debug, Clone, Args)]
pub(crate) struct Trial {
    /// The index.
    #[arg(long, value_enum)]
    pub(crate) index: Subject,
    /// What the fleet holds.
    #[arg(long, value_enum, default_value = "distinct")]
    pub(crate) workload: Kind,
    /// (worker, block) pairs.
    #[arg(long, default_value_t = 2_000_000)]
    pub(crate) pairs: usize,
    /// Workers.
    #[arg(long, default_value_t = 64)]
    pub(crate) workers: usize,
    /// What to measure, in this order; a removal is the last.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "store")]
    pub(crate) measure: Vec<Measure>,
    /// Questions of each kind.
    #[arg(long, default_value_t = 20_000)]
    pub(crate) questions: usize,
    /// Seed of contents and orders.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// Runs a trial.
///
/// # Panics
/// At the first wrong size or answer.
pub(crate) fn trial(trial: &Trial) -> Line {
    match trial.index {
        Subject::Kvasir => run::<Kvasir>(trial),
        Subject::Chain => run::<Chain>(trial),
        Subject::Crtc => run::<Crtc>(trial),
        Subject::Positional => run::<Positional>(trial),
    }
}

fn run<I: Index>(trial: &Trial) -> Line {
    let fleet = Fleet::new(trial.workload, trial.workers, trial.pairs, trial.seed);
    let mut line = Line {
        index: I::NAME.to_owned(),
        workload: trial.workload,
        workers: trial.workers,
        pairs: fleet.pairs,
        seed: trial.seed,
        figures: BTreeMap::new(),
        curves: BTreeMap::new(),
    };
    let order = trial.measure.iter().find_map(|measure| measure.order());
    let removals = order.map(|order| removals(&fleet, order, trial.seed + 2));
    let stores = fleet.stores();
    let before = resident_bytes();
    let mut index = I::new(trial.workers);
    let stored = apply(&mut index, &fleet.content, &stores);
    let per_pair = |now: u64| now.saturating_sub(before) as f64 / fleet.pairs as f64;
    line.set("store.cpu_rate", stored.cpu_rate());
    line.set("store.wall_rate", stored.wall_rate());
    line.set("memory.full", per_pair(resident_bytes()));
    assert_eq!(index.pairs(), fleet.pairs, "pairs after storing");
    if trial.measure.contains(&Measure::Lookup) {
        lookups(index.asked(), &fleet, trial.questions, &mut line);
    }
    if let (Some(order), Some(removals)) = (order, removals) {
        let removed = apply(&mut index, &fleet.content, &removals);
        assert_eq!(removed.blocks, fleet.pairs, "removals");
        let name = format!("{order:?}").to_lowercase();
        line.set(format!("remove.{name}.cpu_rate"), removed.cpu_rate());
        line.set(format!("remove.{name}.wall_rate"), removed.wall_rate());
        assert_eq!(index.pairs(), 0, "pairs after removing all, {name}");
        check_empty(index.asked(), &fleet, trial.seed);
        index.tidy();
        line.set("memory.empty", per_pair(resident_bytes()));
    }
    line
}

/// Nobody holds anything any more.
fn check_empty<A: Ask>(asked: &A, fleet: &Fleet, seed: u64) {
    let case = cases(fleet.kind)[0];
    let (mut query, mut answer) = (Vec::new(), A::Answer::default());
    for question in Question::some(fleet, case, 500, seed) {
        query.clear();
        question.append(fleet, &mut query, A::hash);
        for call in 0..A::CALLS.len() {
            asked.ask(call, &query, &mut answer);
            assert_eq!(summary(&asked.scores(call, &answer)).workers, 0, "{question:?}");
        }
    }
}
