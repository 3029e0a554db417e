//! Seeded scripts of index operations, on which the index is compared with the [oracle](crate::oracle).
//!
//! A script is plain data, so a failing script can be shrunk by removing steps. Steps refer to sources by their number
//! in [`Script::sources`], and to dumps by a slot. A step has no effect if its source is absent, or if its slot is in
//! use or free at the wrong time. Two families of streams:
//!
//! - [`Family::Chaos`]: names from a tiny pool and local hashes from a tiny alphabet, so that collisions of every kind
//!   are frequent;
//! - [`Family::Fleet`]: engines that cache overlapping prompts under names derived from their content, with a little
//!   chaos mixed in, so that chains become long and shared.

mod chaos;
mod fleet;
mod roles;

use kvasir_proto::types::{BlockName, CopyMode, DpRank, KvEvent, Tier, WorkerId};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fmt;

/// The random generator of scripts: for one seed, equal on every platform.
pub type ScriptRng = ChaCha8Rng;

/// One source that a script may add.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceSpec {
    /// Worker of the source.
    pub worker: WorkerId,
    /// Name of the source.
    pub name: String,
    /// Rank with which the source is added; its events may have any rank.
    pub rank: DpRank,
    /// Copy mode of the source.
    pub copy_mode: CopyMode,
}

/// Limits of the index under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScriptLimits {
    /// Maximum length of a chain of blocks.
    pub chain_blocks_max: usize,
    /// Maximum number of parked names of one rank.
    pub rank_parked_max: usize,
    /// Maximum number of names that may change during a dump.
    pub dirty_names_max: usize,
}

/// The kind of a script's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Collisions of names and contents are frequent.
    Chaos,
    /// Overlapping prompts of up to this many blocks.
    Fleet {
        /// Maximum length of a prompt, in blocks.
        prompt_blocks_max: usize,
    },
    /// Thousands of short prompts: tables grow, split and shrink.
    Large,
}

/// One operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Adds a source, unless it is present.
    AddSource {
        /// Number of the source.
        source: usize,
    },
    /// Clears a source, then removes it.
    RemoveSource {
        /// Number of the source.
        source: usize,
        /// Maximum number of positions dropped per call.
        budget: usize,
    },
    /// One event of a source.
    Event {
        /// Number of the source.
        source: usize,
        /// Rank of the event.
        rank: DpRank,
        /// The event.
        event: KvEvent,
    },
    /// Drops the blocks that a source stored, in slices.
    Clear {
        /// Number of the source.
        source: usize,
        /// One rank; none for all.
        rank: Option<DpRank>,
        /// Maximum number of positions dropped per call.
        budget: usize,
    },
    /// Marks all blocks that a source stored as suspect (stale).
    MarkSuspect {
        /// Number of the source.
        source: usize,
    },
    /// Drops the blocks that are still suspect, in slices.
    DropSuspects {
        /// Number of the source.
        source: usize,
        /// Maximum number of positions dropped per call.
        budget: usize,
    },
    /// Begins a dump in a free slot.
    BeginDump {
        /// The slot.
        slot: usize,
        /// A source of the worker to dump.
        source: usize,
        /// One rank; none for all.
        rank: Option<DpRank>,
    },
    /// Reads one chunk of a dump.
    ReadDump {
        /// The slot.
        slot: usize,
        /// Maximum number of records in the chunk.
        records_max: usize,
    },
    /// Reads the rest of a dump and finishes it.
    FinishDump {
        /// The slot.
        slot: usize,
        /// Maximum number of records in a chunk.
        records_max: usize,
    },
    /// Aborts a dump.
    CancelDump {
        /// The slot.
        slot: usize,
    },
}

/// One step of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Number of the step as generated. It determines the queries after the step.
    pub id: u64,
    /// The operation.
    pub action: Action,
}

/// A script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    /// The seed of the script.
    pub seed: u64,
    /// Family of the script.
    pub family: Family,
    /// Limits of the index under test.
    pub limits: ScriptLimits,
    /// Sources that the steps refer to.
    pub sources: Vec<SourceSpec>,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

/// Maximum number of concurrent dumps in a script.
pub const DUMP_SLOTS: usize = 2;

impl Script {
    /// Generates the script of a seed.
    #[must_use]
    pub fn generate(seed: u64) -> Self {
        let mut rng = ScriptRng::seed_from_u64(seed);
        match seed % 64 {
            63 => fleet::generate(seed, 220, &mut rng),
            55..=62 => fleet::generate(seed, 24, &mut rng),
            _ => chaos::generate(seed, &mut rng),
        }
    }

    /// Generates a script of thousands of steps and about ten thousand blocks.
    #[must_use]
    pub fn generate_large(seed: u64) -> Self {
        fleet::generate_large(seed, &mut ScriptRng::seed_from_u64(seed))
    }
}

/// Frequency of each kind of operation in one script. Each script lacks some kinds, so that the others can build up
/// state that those kinds would destroy.
struct Weights {
    stored: u32,
    names: u32,
    removed: u32,
    cleared: u32,
    clear_source: u32,
    suspects: u32,
    sources: u32,
    dumps: u32,
}

impl Weights {
    fn draw(rng: &mut ScriptRng) -> Self {
        fn pick(rng: &mut ScriptRng, choices: [u32; 4]) -> u32 {
            choices[rng.random_range(0..choices.len())]
        }
        Self {
            stored: pick(rng, [20, 40, 40, 80]),
            names: pick(rng, [0, 0, 5, 15]),
            removed: pick(rng, [5, 20, 30, 60]),
            cleared: pick(rng, [0, 0, 2, 4]),
            clear_source: pick(rng, [0, 0, 2, 6]),
            suspects: pick(rng, [0, 0, 6, 12]),
            sources: pick(rng, [0, 0, 2, 6]),
            dumps: pick(rng, [0, 0, 15, 40]),
        }
    }
}

/// The kind of the next operation, before its names and content are chosen.
#[derive(Clone, Copy)]
enum Kind {
    Stored,
    Names,
    Removed,
    Other,
}

/// The parts of a script that both families share.
struct Draft {
    sources: Vec<SourceSpec>,
    ranks: u32,
    tiers: u32,
    weights: Weights,
    steps: Vec<Step>,
    /// Budgets and chunk sizes are below this number.
    piece_max: usize,
}

impl Draft {
    /// `workers` workers, each with 1 to `ranks` ranks and 1 to 3 sources; most sources added.
    fn new(workers: usize, ranks: u32, rng: &mut ScriptRng) -> Self {
        let per_worker_max = rng.random_range(1..=3);
        let modes = [CopyMode::Counted, CopyMode::Set];
        let mut sources = Vec::new();
        for worker in 0..workers {
            let id = WorkerId::new(&format!("w{worker}")).expect("a short name");
            for number in 0..rng.random_range(1..=per_worker_max) {
                sources.push(SourceSpec {
                    worker: id.clone(),
                    name: format!("s{number}"),
                    rank: rng.random_range(0..ranks),
                    copy_mode: *modes.choose(rng).expect("two modes"),
                });
            }
        }
        let mut draft = Self {
            ranks,
            tiers: rng.random_range(1..=3),
            weights: Weights::draw(rng),
            steps: Vec::new(),
            piece_max: if rng.random_bool(0.5) { 4 } else { 64 },
            sources,
        };
        let late = if rng.random_bool(0.3) { 0.3 } else { 0.0 };
        for source in 0..draft.sources.len() {
            if source == 0 || !rng.random_bool(late) {
                draft.push(Action::AddSource { source });
            }
        }
        draft
    }

    fn push(&mut self, action: Action) {
        let id = self.steps.len() as u64;
        self.steps.push(Step { id, action });
    }

    fn source(&self, rng: &mut ScriptRng) -> usize {
        rng.random_range(0..self.sources.len())
    }

    /// A rank for an event: usually the rank with which the source was added.
    fn rank(&self, source: usize, rng: &mut ScriptRng) -> DpRank {
        if rng.random_bool(0.7) {
            self.sources[source].rank
        } else {
            rng.random_range(0..self.ranks)
        }
    }

    fn rank_or_all(&self, source: usize, rng: &mut ScriptRng) -> Option<DpRank> {
        rng.random_bool(0.5).then(|| self.rank(source, rng))
    }

    fn tier(&self, rng: &mut ScriptRng) -> Tier {
        Tier::ALL[rng.random_range(0..self.tiers) as usize]
    }

    fn piece(&self, rng: &mut ScriptRng) -> usize {
        rng.random_range(1..self.piece_max)
    }

    fn event(&mut self, source: usize, event: KvEvent, rng: &mut ScriptRng) {
        let rank = self.rank(source, rng);
        self.push(Action::Event { source, rank, event });
    }

    /// Chooses the next operation. Adds it, unless it needs names or content.
    fn next(&mut self, rng: &mut ScriptRng) -> Kind {
        let Weights { stored, names, removed, cleared, clear_source, suspects, sources, dumps } =
            self.weights;
        let total = stored + names + removed + cleared + clear_source + suspects + sources + dumps;
        let mut roll = rng.random_range(0..total);
        let mut within = |weight: u32| {
            let hit = roll < weight;
            roll = roll.saturating_sub(weight);
            hit
        };
        if within(stored) {
            return Kind::Stored;
        }
        if within(names) {
            return Kind::Names;
        }
        if within(removed) {
            return Kind::Removed;
        }
        let clears = within(cleared);
        let pieces = within(clear_source);
        let marks = within(suspects);
        let moves = within(sources);
        let source = self.source(rng);
        let budget = self.piece(rng);
        if clears {
            let of_tier = rng.random_bool(0.3);
            let event =
                if of_tier { KvEvent::ClearedTier(self.tier(rng)) } else { KvEvent::Cleared };
            self.event(source, event, rng);
        } else if pieces {
            let rank = self.rank_or_all(source, rng);
            self.push(Action::Clear { source, rank, budget });
        } else if marks && rng.random_bool(0.6) {
            self.push(Action::MarkSuspect { source });
        } else if marks {
            self.push(Action::DropSuspects { source, budget });
        } else if moves && rng.random_bool(0.4) {
            self.push(Action::RemoveSource { source, budget });
        } else if moves {
            self.push(Action::AddSource { source });
        } else {
            self.dump_step(source, rng);
        }
        Kind::Other
    }

    fn dump_step(&mut self, source: usize, rng: &mut ScriptRng) {
        let slot = rng.random_range(0..DUMP_SLOTS);
        let records_max = self.piece(rng);
        let rank = self.rank_or_all(source, rng);
        self.push(match rng.random_range(0..12) {
            0..=4 => Action::BeginDump { slot, source, rank },
            5..=8 => Action::ReadDump { slot, records_max },
            9..=10 => Action::FinishDump { slot, records_max },
            _ => Action::CancelDump { slot },
        });
    }

    fn finish(self, seed: u64, family: Family, limits: ScriptLimits) -> Script {
        Script { seed, family, limits, sources: self.sources, steps: self.steps }
    }
}

fn draw_limits(small_chain: usize, rng: &mut ScriptRng) -> ScriptLimits {
    let small = |rng: &mut ScriptRng, range: std::ops::RangeInclusive<usize>, large| {
        if rng.random_bool(0.15) { rng.random_range(range) } else { large }
    };
    ScriptLimits {
        chain_blocks_max: small(rng, 1..=small_chain, 65_536),
        rank_parked_max: small(rng, 0..=4, 65_536),
        dirty_names_max: small(rng, 0..=6, 65_536),
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ScriptLimits { chain_blocks_max, rank_parked_max, dirty_names_max } = self.limits;
        writeln!(
            f,
            "seed {} {:?}, chain_blocks_max {chain_blocks_max}, rank_parked_max \
             {rank_parked_max}, dirty_names_max {dirty_names_max}",
            self.seed, self.family
        )?;
        for step in &self.steps {
            write!(f, "#{} ", step.id)?;
            self.write_action(&step.action, f)?;
            writeln!(f)?;
        }
        Ok(())
    }
}

impl Script {
    fn write_action(&self, action: &Action, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = |number: usize| {
            let spec = &self.sources[number];
            format!("{}/{}", spec.worker, spec.name)
        };
        match action {
            Action::AddSource { source: number } => {
                let SourceSpec { rank, copy_mode, .. } = &self.sources[*number];
                write!(f, "{} add, rank {rank}, {copy_mode:?}", source(*number))
            }
            Action::RemoveSource { source: number, budget } => {
                write!(f, "{} remove, budget {budget}", source(*number))
            }
            Action::Event { source: number, rank, event } => {
                write!(f, "{} rank {rank}: ", source(*number))?;
                write_event(event, f)
            }
            Action::Clear { source: number, rank, budget } => {
                write!(f, "{} clear rank {rank:?}, budget {budget}", source(*number))
            }
            Action::MarkSuspect { source: number } => {
                write!(f, "{} mark suspect", source(*number))
            }
            Action::DropSuspects { source: number, budget } => {
                write!(f, "{} drop suspects, budget {budget}", source(*number))
            }
            Action::BeginDump { slot, source: number, rank } => {
                let worker = &self.sources[*number].worker;
                write!(f, "dump {slot}: begin {worker} rank {rank:?}")
            }
            Action::ReadDump { slot, records_max } => {
                write!(f, "dump {slot}: read {records_max}")
            }
            Action::FinishDump { slot, records_max } => {
                write!(f, "dump {slot}: finish, by {records_max}")
            }
            Action::CancelDump { slot } => write!(f, "dump {slot}: cancel"),
        }
    }
}

fn write_event(event: &KvEvent, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let list = |names: &[BlockName]| {
        names.iter().map(|name| format!("{:x}", name.0)).collect::<Vec<_>>().join(" ")
    };
    match event {
        KvEvent::Stored { parent, tier, blocks } => {
            write!(f, "stored {tier:?} after ")?;
            match parent {
                Some(parent) => write!(f, "{:x}:", parent.0)?,
                None => write!(f, "root:")?,
            }
            blocks.iter().try_for_each(|b| write!(f, " {:x}={:x}", b.name.0, b.local.0))
        }
        KvEvent::StoredNames { tier, names } => write!(f, "names {tier:?}: {}", list(names)),
        KvEvent::Removed { tier, names } => write!(f, "removed {tier:?}: {}", list(names)),
        KvEvent::Gone { tier, names } => write!(f, "gone {tier:?}: {}", list(names)),
        KvEvent::Cleared => write!(f, "cleared"),
        KvEvent::ClearedTier(tier) => write!(f, "cleared {tier:?}"),
    }
}
