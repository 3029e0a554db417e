//! A source of which events were lost, healed by a dump of all it holds.
//!
//! The reference is told every event; the index misses a stretch of them, is told what the
//! reference holds at the end of it, name by name, and must be equal from then on.

use crate::live::{Live, text};
use crate::subject::{Piece, Refusal, Subject};
use kvasir_index::SourceId;
use kvasir_proto::types::{
    BlockName, CopyMode, DpRank, HeldBlock, KvEvent, LocalHash, StoredBlock, Tier, TierSet,
    WorkerId,
};
use kvasir_tests::oracle::{Held, HeldKey, Oracle, OracleLimits, Question, QuestionKey, SourceNo};
use kvasir_tests::script::{Action, Script, ScriptLimits, ScriptRng, SourceSpec};
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;

const SEEDS: u64 = 3_000;
const RANKS: DpRank = 2;
const LIMITS: ScriptLimits =
    ScriptLimits { chain_blocks_max: 1_000, rank_parked_max: 10_000, dirty_names_max: 10_000 };

/// The index and the reference, with one source of each worker.
struct Pair {
    live: Live,
    oracle: Oracle,
    sources: Vec<(SourceId, SourceNo, WorkerId)>,
}

impl Pair {
    fn new(modes: &[CopyMode]) -> Result<Self, String> {
        let limits = OracleLimits {
            chain_blocks_max: LIMITS.chain_blocks_max,
            rank_parked_max: LIMITS.rank_parked_max,
        };
        let mut pair =
            Self { live: Live::new(LIMITS), oracle: Oracle::new(limits), sources: Vec::new() };
        for (number, &copy_mode) in modes.iter().enumerate() {
            let worker = WorkerId::new(&format!("w{number}")).expect("a short name");
            let spec = SourceSpec { worker: worker.clone(), name: "s".into(), rank: 0, copy_mode };
            let id = pair.live.add_source(&spec)?;
            let number = pair.oracle.add_source(&worker, 0, copy_mode);
            pair.sources.push((id, number, worker));
        }
        Ok(pair)
    }

    /// An event that the index misses if it is `lost`.
    fn event(
        &mut self,
        source: usize,
        rank: DpRank,
        event: &KvEvent,
        lost: bool,
    ) -> Result<(), String> {
        let (id, number, _) = &self.sources[source];
        self.oracle.apply(*number, rank, event);
        if !lost {
            self.live.apply(*id, rank, event)?;
        }
        Ok(())
    }

    /// What the reference has of a source, as a dump brings it: in any order, with names that are
    /// gone, and with some held twice.
    fn dump(&self, source: usize, rng: &mut ScriptRng) -> Vec<(DpRank, HeldBlock)> {
        let held = self.oracle.dump(&self.sources[source].2, None);
        let state = |(&(rank, _, name), held): (&HeldKey, &Held)| {
            let Held { parent, local, copies, .. } = *held;
            (rank, HeldBlock { name, parent, local, copies })
        };
        let mut dump: Vec<_> = held.iter().map(state).collect();
        let gone = |name| HeldBlock { name, parent: None, local: None, copies: [0; 3] };
        for _ in 0..rng.random_range(0..4) {
            let rank = rng.random_range(0..RANKS);
            let name = BlockName(rng.random_range(1..40));
            if !held.contains_key(&(rank, self.sources[source].1, name)) {
                dump.push((rank, gone(name)));
            }
        }
        dump.shuffle(rng);
        // What is held later replaces what was held before.
        for _ in 0..rng.random_range(0..4) {
            if let Some(&(rank, held)) = dump.choose(rng) {
                let copies = [rng.random_range(0..3), 0, rng.random_range(0..2)];
                dump.insert(0, (rank, HeldBlock { copies, ..held }));
            }
        }
        dump
    }

    fn heal(&mut self, source: usize, rng: &mut ScriptRng) -> Result<(), String> {
        let dump = self.dump(source, rng);
        let id = self.sources[source].0;
        self.live.mark_suspect(id);
        for (rank, state) in dump {
            self.live.index().set_names(id, rank, &[state]).map_err(text)?;
            self.live.validate()?;
        }
        let budget = rng.random_range(1..20);
        let mut piece = Piece { removed: 0, done: false };
        while !piece.done {
            piece = self.live.drop_suspects(id, budget)?;
        }
        self.live.validate()
    }

    /// The index has the records of the reference. Whether a name is placed may differ: where its
    /// ancestors are gone, only who saw them knows.
    fn compare_records(&mut self) -> Result<(), String> {
        for (id, number, worker) in self.sources.clone() {
            let refused = |refusal: Refusal| refusal.to_string();
            let mut scan = self.live.begin_dump(&worker, None).map_err(refused)?;
            let mut records = Vec::new();
            while self.live.read_dump(&mut scan, 50, &mut records).map_err(refused)? {}
            self.live.cancel_dump(scan);
            let plain = |held: &Held| (held.parent, held.local, held.copies);
            let mine: BTreeMap<_, _> = records
                .iter()
                .filter(|((_, by, _), _)| *by == id)
                .map(|((rank, _, name), held)| ((*rank, number, *name), plain(held)))
                .collect();
            let expected = self.oracle.dump(&worker, None);
            let expected: BTreeMap<_, _> =
                expected.iter().map(|(key, held)| (*key, plain(held))).collect();
            if mine != expected {
                return Err(format!("{worker}:\n  index  {mine:?}\n  oracle {expected:?}"));
            }
        }
        Ok(())
    }

    fn compare_answers(&mut self, rng: &mut ScriptRng) -> Result<(), String> {
        for _ in 0..4 {
            let locals = (0..rng.random_range(1..9)).map(|_| LocalHash(rng.random_range(1..=2)));
            let question = Question {
                key: QuestionKey::Locals(locals.collect()),
                tiers: if rng.random_bool(0.5) {
                    TierSet::ALL
                } else {
                    TierSet::EMPTY.with(Tier::Device)
                },
                workers: None,
                minimum_overlap: 1,
                shared: false,
            };
            let mine = self.live.find(&question)?;
            let expected = self.oracle.find(&question);
            if mine != expected {
                return Err(format!("{question:?}:\n  index  {mine:?}\n  oracle {expected:?}"));
            }
        }
        Ok(())
    }
}

/// Names that follow from their content, so that a dump says where each stands.
fn path(rng: &mut ScriptRng) -> Vec<StoredBlock> {
    let mut name = 1;
    let locals = (0..rng.random_range(1..9)).map(|_| rng.random_range(1..=2));
    let blocks = locals.map(|local| {
        name = name * 2 + (local - 1);
        StoredBlock { name: BlockName(name), local: LocalHash(local) }
    });
    blocks.collect()
}

fn draw(rng: &mut ScriptRng) -> KvEvent {
    let blocks = path(rng);
    let tier = *Tier::ALL.choose(rng).expect("not empty");
    let from = if rng.random_bool(0.5) { 0 } else { rng.random_range(0..blocks.len()) };
    let parent = from.checked_sub(1).map(|at| blocks[at].name);
    let names = || blocks.iter().skip(from).map(|block| block.name).collect();
    match rng.random_range(0..20) {
        0 => KvEvent::Cleared,
        1 => KvEvent::StoredNames { tier, names: names() },
        2 => KvEvent::Gone { tier, names: names() },
        3..=8 => KvEvent::Removed { tier, names: names() },
        _ => KvEvent::Stored { parent, tier, blocks: blocks[from..].to_vec() },
    }
}

fn heal_a_faithful_stream(seed: u64) -> Result<(), String> {
    let mut rng = ScriptRng::seed_from_u64(seed);
    let mode = |rng: &mut ScriptRng| {
        if rng.random_bool(0.5) { CopyMode::Counted } else { CopyMode::Set }
    };
    let modes = [mode(&mut rng), mode(&mut rng)];
    let mut pair = Pair::new(&modes)?;
    for _ in 0..rng.random_range(1..4) {
        for lost in [false, true] {
            for _ in 0..rng.random_range(0..30) {
                let source = rng.random_range(0..modes.len());
                let event = draw(&mut rng);
                let rank = rng.random_range(0..RANKS);
                pair.event(source, rank, &event, lost && source == 0)?;
            }
        }
        pair.heal(0, &mut rng)?;
        pair.compare_records()?;
        pair.compare_answers(&mut rng)?;
        for _ in 0..20 {
            let source = rng.random_range(0..modes.len());
            let event = draw(&mut rng);
            pair.event(source, rng.random_range(0..RANKS), &event, false)?;
            pair.live.validate()?;
            pair.compare_answers(&mut rng)?;
        }
        pair.compare_records()?;
    }
    Ok(())
}

/// Where names are re-bound all the time a dump does not say where each stands; but which names
/// are held, as what and how often, it does.
fn heal_a_chaotic_stream(seed: u64) -> Result<(), String> {
    let script = Script::generate(seed);
    let mut rng = ScriptRng::seed_from_u64(!seed);
    let mut pair =
        Pair::new(&[if seed.is_multiple_of(2) { CopyMode::Counted } else { CopyMode::Set }])?;
    let events = script.steps.iter().filter_map(|step| match &step.action {
        Action::Event { rank, event, .. } => Some((*rank % RANKS, event)),
        _ => None,
    });
    let from = rng.random_range(0..30);
    for (number, (rank, event)) in events.enumerate() {
        pair.event(0, rank, event, number >= from)?;
    }
    pair.heal(0, &mut rng)?;
    pair.compare_records()
}

#[test]
fn a_dump_heals_what_was_missed() {
    for seed in 0..SEEDS {
        if let Err(message) = heal_a_faithful_stream(seed) {
            panic!("seed {seed}: {message}");
        }
    }
}

#[test]
fn a_dump_says_what_each_name_stands_for() {
    for seed in 0..SEEDS {
        if let Err(message) = heal_a_chaotic_stream(seed) {
            panic!("seed {seed}: {message}\n{}", Script::generate(seed));
        }
    }
}
