//! One trial: one index, one workload, in a process of its own.

use crate::indexes::{Chain, Crtc, Index, Kvasir, Locked, Positional, Shared};
use crate::line::Line;
use crate::measures::{Churn, Writing, apply, cold, heal, lookups, remove, replay, under_writer};
use crate::meter::resident_bytes;
use crate::workload::{Fleet, Kind, Order, Trace, removals};
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use std::collections::BTreeMap;
use std::path::PathBuf;

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
    /// Lookups with cold caches.
    Cold,
    /// Turning over at a steady size.
    Churn,
    /// Removal of a random half, which is then stored again: do holes heal?
    Heal,
    /// Lookups while another thread writes, and nothing else.
    Writer,
    /// A recorded trace, and nothing else.
    Trace,
}

impl Measure {
    fn order(self) -> Option<Order> {
        match self {
            Self::RemoveTail => Some(Order::Tail),
            Self::RemoveScattered => Some(Order::Scattered),
            Self::RemoveEvents => Some(Order::Events),
            Self::RemoveRandom => Some(Order::Random),
            Self::Store
            | Self::Lookup
            | Self::Cold
            | Self::Heal
            | Self::Churn
            | Self::Writer
            | Self::Trace => None,
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
    /// Turnovers of churn.
    #[arg(long, default_value_t = 20)]
    pub(crate) turnovers: usize,
    /// A trace in the Mooncake form, for the measure of that name.
    #[arg(long)]
    pub(crate) trace: Option<PathBuf>,
    /// Seed of contents and orders.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// Runs a trial.
///
/// # Errors
/// If the trace cannot be read.
///
/// # Panics
/// At the first wrong size or answer.
pub(crate) fn trial(trial: &Trial) -> Result<Line> {
    match trial.index {
        Subject::Kvasir => of::<Kvasir, Locked>(trial),
        Subject::Chain => of::<Chain, Chain>(trial),
        Subject::Crtc => of::<Crtc, Crtc>(trial),
        Subject::Positional => of::<Positional, Positional>(trial),
    }
}

/// `I` for one thread, `S` where several share it.
fn of<I: Index, S: Shared>(trial: &Trial) -> Result<Line> {
    if trial.measures(Measure::Writer) {
        return Ok(under_a_writer::<S>(trial));
    }
    if trial.measures(Measure::Trace) {
        let path = trial.trace.as_ref().context("--measure trace needs --trace")?;
        let trace = Trace::load(path, trial.workers, trial.seed)?;
        let mut line = trial.line::<I>();
        replay::<I>(&trace, trial.workers, &mut line);
        return Ok(line);
    }
    Ok(run::<I>(trial))
}

impl Trial {
    fn fleet(&self) -> Fleet {
        Fleet::new(self.workload, self.workers, self.pairs, self.seed)
    }

    fn line<I: Index>(&self) -> Line {
        Line {
            index: I::NAME.to_owned(),
            workload: self.workload,
            workers: self.workers,
            pairs: self.pairs,
            seed: self.seed,
            figures: BTreeMap::new(),
            curves: BTreeMap::new(),
        }
    }

    fn measures(&self, measure: Measure) -> bool {
        self.measure.contains(&measure)
    }
}

/// Everything that one thread does.
fn run<I: Index>(trial: &Trial) -> Line {
    let mut fleet = trial.fleet();
    let mut line = trial.line::<I>();
    let order = trial.measure.iter().find_map(|measure| measure.order());
    let removals = order.map(|order| removals(&fleet, order, trial.seed + 2));
    let churn = trial.measures(Measure::Churn);
    let churn = churn.then(|| Churn::new(&fleet, trial.turnovers, trial.seed));
    let stores = fleet.stores();
    let before = resident_bytes();
    let per_pair = |now: u64| now.saturating_sub(before) as f64 / fleet.pairs as f64;
    let mut index = I::new(trial.workers);
    let stored = apply(&mut index, &fleet.content, &stores);
    line.set("store.cpu_rate", stored.cpu_rate());
    line.set("store.wall_rate", stored.wall_rate());
    line.set("memory.full", per_pair(resident_bytes()));
    if let Some(bytes) = index.accounted_bytes() {
        line.set("memory.accounted", bytes as f64 / fleet.pairs as f64);
    }
    assert_eq!(index.pairs(), fleet.pairs, "pairs after storing");
    if trial.measures(Measure::Lookup) {
        lookups(index.asked(), &fleet, trial.questions, &mut line);
    }
    if trial.measures(Measure::Cold) {
        cold(index.asked(), &fleet, &mut line);
    }
    if let (Some(order), Some(removals)) = (order, removals) {
        remove(&mut index, &fleet, order, &removals, &mut line);
        index.tidy();
        line.set("memory.empty", per_pair(resident_bytes()));
    }
    if trial.measures(Measure::Heal) {
        heal(&mut index, &fleet, &mut line);
    }
    if let Some(churn) = churn {
        churn.run(&mut index, &mut fleet, before, &mut line);
    }
    line
}

/// Lookups while another thread writes.
fn under_a_writer<I: Shared>(trial: &Trial) -> Line {
    let fleet = trial.fleet();
    let mut line = trial.line::<I>();
    let writing = Writing::new(&fleet, trial.seed);
    let mut index = I::new(trial.workers);
    apply(&mut index, &fleet.content, &fleet.stores());
    under_writer(&mut index, &fleet, &writing, &mut line);
    line
}
