//! Runs one trial: one index, one workload, in a separate process.

use crate::indexes::{Chain, Crtc, Index, Kvasir, Locked, Positional, Sharded, Shared};
use crate::line::Line;
use crate::measures::{
    Churn, Writing, apply, cold, floor, heal, lookups, remove, replay, under_writer,
};
use crate::meter::resident_bytes;
use crate::workload::{Fleet, Kind, Order, Trace, removals};
use anyhow::{Context, Result, ensure};
use bench_figures::memory::available_bytes;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// One query in this many is repeated with cold caches, because each costs some milliseconds.
const COLD_SHARE: usize = 20;
/// Memory of the workload per pair of a distinct fleet, in bytes.
const WORKLOAD_BYTES: usize = 40;

/// An index under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Subject {
    /// Kvasir's index.
    Kvasir,
    /// Kvasir's index in two shards.
    #[value(name = "kvasir-2")]
    Kvasir2,
    /// Kvasir's index in four shards.
    #[value(name = "kvasir-4")]
    Kvasir4,
    /// kv-index: ChainIndex.
    Chain,
    /// dynamo-kv-router: ConcurrentRadixTreeCompressed.
    Crtc,
    /// dynamo-kv-router: PositionalIndexer.
    Positional,
}

/// Measurements of a trial. Each trial also measures storing, and the memory afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Measure {
    /// No further measurement.
    Store,
    /// Lookups.
    Lookup,
    /// Removal, tails first.
    RemoveTail,
    /// Removal of the last blocks of random chains.
    RemoveScattered,
    /// Removal of complete events, at random.
    RemoveEvents,
    /// Removal of single blocks at random.
    RemoveRandom,
    /// Lookups with cold caches.
    Cold,
    /// Churn at a constant size.
    Churn,
    /// Removal of a random half, which is then stored again: checks whether holes heal.
    Heal,
    /// Only lookups while another thread writes.
    Writer,
    /// Only a recorded trace.
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

/// Options of a trial.
#[derive(Debug, Clone, Args)]
pub(crate) struct Trial {
    /// The measured index.
    #[arg(long, value_enum)]
    pub(crate) index: Subject,
    /// Content of the fleet.
    #[arg(long, value_enum, default_value = "distinct")]
    pub(crate) workload: Kind,
    /// Number of (worker, block) pairs.
    #[arg(long, default_value_t = 2_000_000)]
    pub(crate) pairs: usize,
    /// Number of workers.
    #[arg(long, default_value_t = 64)]
    pub(crate) workers: usize,
    /// Measurements in this order; a removal must be last.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "store")]
    pub(crate) measure: Vec<Measure>,
    /// Number of queries of each kind.
    #[arg(long, default_value_t = 20_000)]
    pub(crate) questions: usize,
    /// Number of turnovers of churn.
    #[arg(long, default_value_t = 20)]
    pub(crate) turnovers: usize,
    /// Duration of the queries with each function beside a writer, in milliseconds.
    #[arg(long, default_value_t = 1_500)]
    pub(crate) asking_ms: u64,
    /// Trace in the Mooncake form, for the measurement `trace`.
    #[arg(long)]
    pub(crate) trace: Option<PathBuf>,
    /// Seed of contents and orders.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// Output of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Record {
    /// Results of the trial.
    Trial(Line),
    /// The trial was skipped for lack of memory.
    Skipped { index: String, pairs: usize },
}

/// Runs a trial, if there is enough memory for it.
///
/// # Panics
/// At the first wrong size or answer.
pub(crate) fn trial(trial: &Trial) -> Result<Record> {
    if !trial.fits(available_bytes()) {
        return Ok(Record::Skipped { index: trial.index.name(), pairs: trial.pairs });
    }
    let line = match trial.index {
        Subject::Kvasir => of::<Kvasir, Locked>(trial),
        Subject::Kvasir2 => alone::<Sharded<2>>(trial),
        Subject::Kvasir4 => alone::<Sharded<4>>(trial),
        Subject::Chain => of::<Chain, Chain>(trial),
        Subject::Crtc => of::<Crtc, Crtc>(trial),
        Subject::Positional => of::<Positional, Positional>(trial),
    };
    line.map(Record::Trial)
}

/// Runs with `I` for one thread, or with `S` for several threads.
fn of<I: Index, S: Shared>(trial: &Trial) -> Result<Line> {
    match trial.measures(Measure::Writer) {
        true => Ok(under_a_writer::<S>(trial)),
        false => alone::<I>(trial),
    }
}

/// Runs the measurements with one thread.
fn alone<I: Index>(trial: &Trial) -> Result<Line> {
    ensure!(!trial.measures(Measure::Writer), "{} is not measured under a writer", I::NAME);
    if trial.measures(Measure::Trace) {
        let path = trial.trace.as_ref().context("--measure trace needs --trace")?;
        let trace = Trace::load(path, trial.workers, trial.seed)?;
        let mut line = trial.line::<I>();
        replay::<I>(&trace, trial.workers, &mut line);
        return Ok(line);
    }
    Ok(run::<I>(trial))
}

impl Subject {
    /// Name on the command line.
    pub(crate) fn name(self) -> String {
        name(&self)
    }

    /// Bytes per pair, rounded up, to estimate whether a trial fits into memory.
    fn pair_bytes(self) -> usize {
        match self {
            Self::Kvasir | Self::Kvasir2 | Self::Kvasir4 => 70,
            Self::Chain => 110,
            Self::Crtc => 180,
            Self::Positional => 330,
        }
    }
}

/// Name on the command line.
fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

impl Trial {
    /// Command line of the trial.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let measures: Vec<String> = self.measure.iter().map(name).collect();
        let pairs = [
            ("--index", name(&self.index)),
            ("--workload", name(&self.workload)),
            ("--pairs", self.pairs.to_string()),
            ("--workers", self.workers.to_string()),
            ("--measure", measures.join(",")),
            ("--questions", self.questions.to_string()),
            ("--turnovers", self.turnovers.to_string()),
            ("--asking-ms", self.asking_ms.to_string()),
            ("--seed", self.seed.to_string()),
        ];
        let pairs = pairs.map(|(flag, value)| [flag.to_owned(), value]).into_iter().flatten();
        let trace = self.trace.iter();
        let trace = trace.flat_map(|path| ["--trace".to_owned(), path.display().to_string()]);
        ["trial".to_owned()].into_iter().chain(pairs).chain(trace).collect()
    }

    /// Whether the trial fits into `available` bytes, with a fifth to spare.
    fn fits(&self, available: u64) -> bool {
        let needed = self.pairs * (self.index.pair_bytes() + WORKLOAD_BYTES);
        needed as u64 <= available / 5 * 4
    }

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
        }
    }

    fn measures(&self, measure: Measure) -> bool {
        self.measure.contains(&measure)
    }
}

/// All measurements with one thread.
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
        let questions = trial.questions / COLD_SHARE;
        cold(index.asked(), &fleet, questions, &mut line);
        if let Some(bytes) = index.accounted_bytes().filter(|_| fleet.kind != Kind::Prefix64) {
            floor(&fleet, bytes, questions, &mut line);
        }
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

/// Measures lookups while another thread writes.
fn under_a_writer<I: Shared>(trial: &Trial) -> Line {
    let fleet = trial.fleet();
    let mut line = trial.line::<I>();
    let writing = Writing::new(&fleet, Duration::from_millis(trial.asking_ms), trial.seed);
    let mut index = I::new(trial.workers);
    apply(&mut index, &fleet.content, &fleet.stores());
    under_writer(&mut index, &fleet, &writing, &mut line);
    line
}
