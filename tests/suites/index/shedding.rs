//! What is shed for the byte budget, at any moment, only ever takes from answers. Ranks with a store that contradicts what a
//! name means are left out: the index can't know of a shed name that it meant something else.

use crate::ask::questions;
use crate::live::Live;
use crate::subject::{RankSizes, Refusal, Subject};
use kvasir_index::{Index, Limits, Query, QueryKey, Scratch, Shed};
use kvasir_proto::types::{
    BlockName, CopyMode, DpRank, KvEvent, LocalHash, SourceState, StoredBlock, Tier, TierSet,
    WorkerId,
};
use kvasir_tests::oracle::{Found, Oracle, OracleLimits, Question, SourceNo};
use kvasir_tests::script::{Action, Script, ScriptRng, Step};
use rand::{Rng, SeedableRng};
use std::collections::BTreeSet;

const SEEDS: u64 = 4_000;

/// What the seeds came to, so that the test can tell that it tried something.
#[derive(Debug, Default)]
pub struct Tried {
    pairs: u64,
    parked: u64,
    refused: u64,
    hits: u64,
    less: u64,
    whole_again: u64,
}

impl Tried {
    pub fn merge(&mut self, other: &Self) {
        self.pairs += other.pairs;
        self.parked += other.parked;
        self.refused += other.refused;
        self.hits += other.hits;
        self.less += other.less;
        self.whole_again += other.whole_again;
    }

    /// Fails unless each of it was tried more often than that.
    pub fn assert_above(&self, least: u64) {
        let Self { pairs, parked, refused, hits, less, whole_again } = *self;
        for (what, count) in [
            ("pairs", pairs),
            ("parked", parked),
            ("refused", refused),
            ("hits", hits),
            ("less", less),
            ("whole again", whole_again),
        ] {
            assert!(count > least, "{what}: {count}");
        }
    }
}

/// A subject of whose indexes something may be shed.
pub trait Shedding: Subject {
    /// Shows every index.
    fn each_index(&self, see: impl FnMut(&Index));

    /// Sheds from one of them, one step.
    fn shed_some(&mut self, budget: usize) -> Shed;

    /// Ranks that lack blocks for the byte budget.
    fn shed_ranks(&self) -> BTreeSet<(WorkerId, DpRank)> {
        let mut ranks = BTreeSet::new();
        self.each_index(|index| {
            let holders = index.workers().flat_map(|worker| worker.holders());
            let short = holders.filter(|holder| holder.shed_blocks() > 0);
            ranks.extend(short.map(|holder| (holder.worker().clone(), holder.rank())));
        });
        ranks
    }

    /// Bytes of all indexes.
    fn bytes(&self) -> usize {
        let mut bytes = 0;
        self.each_index(|index| bytes += index.bytes());
        bytes
    }
}

pub struct Play<'a, S: Shedding> {
    pub live: S,
    oracle: Oracle,
    script: &'a Script,
    sources: Vec<Option<(S::Source, SourceNo)>>,
    /// Ranks with contradictions, until they hold nothing.
    contradicted: BTreeSet<(WorkerId, DpRank)>,
    pub tried: Tried,
    rng: ScriptRng,
}

impl<'a, S: Shedding> Play<'a, S> {
    pub fn new(script: &'a Script, live: S) -> Self {
        let limits = OracleLimits {
            chain_blocks_max: script.limits.chain_blocks_max,
            rank_parked_max: script.limits.rank_parked_max,
        };
        Self {
            live,
            oracle: Oracle::new(limits),
            script,
            sources: vec![None; script.sources.len()],
            contradicted: BTreeSet::new(),
            tried: Tried::default(),
            rng: ScriptRng::seed_from_u64(script.seed),
        }
    }

    pub fn step(&mut self, step: &Step) -> Result<(), String> {
        let source = |source: &usize| self.sources[*source];
        match &step.action {
            Action::AddSource { source } if self.sources[*source].is_none() => {
                let spec = &self.script.sources[*source];
                let live = self.live.add_source(spec)?;
                let oracle = self.oracle.add_source(&spec.worker, spec.rank, spec.copy_mode);
                self.sources[*source] = Some((live, oracle));
            }
            Action::RemoveSource { source, budget } => self.remove(*source, *budget)?,
            Action::Event { source: number, rank, event } => {
                if let Some((live, oracle)) = source(number) {
                    if self.oracle.apply(oracle, *rank, event).conflict > 0 {
                        let worker = self.script.sources[*number].worker.clone();
                        self.contradicted.insert((worker, *rank));
                    }
                    let counts = self.live.apply(live, *rank, event)?;
                    let counted = counts.applied + counts.noop + counts.rejected;
                    let counted = counted + counts.conflict + counts.shed;
                    if counted != event.operations() as u64 {
                        return Err(format!("{counts:?} of {event:?}"));
                    }
                    self.tried.refused += counts.shed;
                }
            }
            Action::Clear { source: number, rank, budget } => {
                if let Some((live, oracle)) = source(number) {
                    self.oracle.clear_source(oracle, *rank);
                    while !self.live.clear(live, *rank, *budget)?.done {
                        self.shed_between()?;
                    }
                }
            }
            Action::MarkSuspect { source: number } => {
                if let Some((live, oracle)) = source(number) {
                    self.oracle.mark_suspect(oracle);
                    self.live.mark_suspect(live);
                }
            }
            Action::DropSuspects { source: number, budget } => {
                if let Some((live, oracle)) = source(number) {
                    self.oracle.drop_suspects(oracle);
                    while !self.live.drop_suspects(live, *budget)?.done {
                        self.shed_between()?;
                    }
                }
            }
            _ => {}
        }
        let oracle = &self.oracle;
        self.contradicted.retain(|(worker, rank)| oracle.records(worker).any(|at| at.0 == *rank));
        Ok(())
    }

    fn remove(&mut self, source: usize, budget: usize) -> Result<(), String> {
        let Some((live, oracle)) = self.sources[source].take() else {
            return Ok(());
        };
        self.oracle.clear_source(oracle, None);
        self.oracle.remove_source(oracle);
        while !self.live.clear(live, None, budget)?.done {
            self.shed_between()?;
        }
        self.live.remove_source(live)
    }

    /// Now and then, between two steps of a sweep.
    fn shed_between(&mut self) -> Result<(), String> {
        if self.rng.random_bool(0.2) {
            self.shed(|live| live.shed_some(3))?;
        }
        self.live.validate()
    }

    pub fn shed(&mut self, shed: impl FnOnce(&mut S) -> Shed) -> Result<(), String> {
        let before = self.live.sizes().stats;
        let shed = shed(&mut self.live);
        let after = self.live.sizes().stats;
        if (before.pairs - after.pairs, before.parked - after.parked) != (shed.pairs, shed.parked) {
            return Err(format!("{shed:?} between {before:?} and {after:?}"));
        }
        self.tried.pairs += shed.pairs;
        self.tried.parked += shed.parked;
        Ok(())
    }

    pub fn check(&mut self, rng: &mut ScriptRng) -> Result<(), String> {
        self.live.validate()?;
        for question in questions(&self.oracle, rng) {
            self.ask(&question)?;
        }
        self.check_states()
    }

    /// No rank has more than the reference says; the ranks that lack nothing have all.
    fn ask(&mut self, question: &Question) -> Result<(), String> {
        let expected = self.oracle.find(question);
        let contradicted = |at: &Found| self.contradicted.contains(&(at.worker.clone(), at.rank));
        let live = self.live.find(question)?;
        for found in live.into_iter().filter(|found| !contradicted(found)) {
            let same = |at: &&Found| (&at.worker, at.rank) == (&found.worker, found.rank);
            let most = expected.iter().find(same);
            let by_tier =
                |most: &Found| found.by_tier.iter().zip(most.by_tier).all(|(a, b)| *a <= b);
            if !most.is_some_and(|most| found.blocks <= most.blocks && by_tier(most)) {
                return Err(format!("{question:?}\n  has {found:?}\n  at most {most:?}"));
            }
            self.tried.hits += u64::from(found.blocks > 0);
            self.tried.less += u64::from(most.is_some_and(|most| most.blocks > found.blocks));
        }
        let shed = self.live.shed_ranks();
        let found = self.live.find(question)?;
        let is_whole = |most: &&Found| {
            !shed.contains(&(most.worker.clone(), most.rank)) && !contradicted(most)
        };
        for most in expected.iter().filter(is_whole) {
            if !found.contains(most) {
                return Err(format!("{question:?}\n  lacks {most:?}, of which nothing was shed"));
            }
        }
        Ok(())
    }

    /// Sources are partial while a rank may lack blocks of theirs, and every short rank has one.
    fn check_states(&self) -> Result<(), String> {
        let mut outcome = Ok(());
        self.live.each_index(|index| {
            for holder in index.workers().flat_map(|worker| worker.holders()) {
                let mut sources = holder.sources();
                let partial = sources.any(|(_, _, status)| status.state >= SourceState::Partial);
                if holder.shed_blocks() > 0 && !partial {
                    outcome = Err(format!("{}#{} lacks blocks", holder.worker(), holder.rank()));
                }
            }
        });
        outcome
    }

    /// Clears everything: who lacked blocks lacks none, and nothing remains.
    pub fn end(&mut self) -> Result<(), String> {
        let shed = self.live.shed_ranks().len() as u64;
        for (live, oracle) in self.sources.iter().flatten() {
            self.oracle.clear_source(*oracle, None);
            while !self.live.clear(*live, None, 7)?.done {}
            self.live.validate()?;
        }
        if !self.live.shed_ranks().is_empty() {
            return Err("a rank lacks blocks of nobody".into());
        }
        self.tried.whole_again += shed;
        for source in 0..self.sources.len() {
            self.remove(source, 7)?;
        }
        self.live.validate()?;
        let sizes = self.live.sizes();
        let left = self.live.bytes();
        if self.live.ranks() != RankSizes::new()
            || sizes.leftovers.values().any(|n| *n > 0)
            || left > 0
        {
            return Err(format!("{left} bytes and {:?} when all is gone", sizes.leftovers));
        }
        Ok(())
    }
}

fn play(script: &Script) -> Result<Tried, String> {
    let mut rng = ScriptRng::seed_from_u64(!script.seed);
    let often = [0.02, 0.1, 0.5][rng.random_range(0..3)];
    let most = [2, 8, 100][rng.random_range(0..3)];
    let mut play = Play::new(script, Live::new(script.limits));
    for step in &script.steps {
        play.step(step)?;
        if rng.random_bool(often) {
            let budget = rng.random_range(1..=most);
            play.shed(|live| live.index().shed(budget))?;
        }
        play.check(&mut rng).map_err(|message| format!("after #{}: {message}", step.id))?;
    }
    play.end()?;
    Ok(play.tried)
}

#[test]
fn what_is_shed_only_takes_from_answers() {
    let mut all = Tried::default();
    for seed in 0..SEEDS {
        let script = Script::generate(seed);
        match play(&script) {
            Ok(tried) => all.merge(&tried),
            Err(message) => panic!("seed {seed}: {message}\n{script}"),
        }
    }
    println!("seeds 0..{SEEDS}: {all:?}");
    all.assert_above(SEEDS / 10);
}

/// Dumps under way hear of what is shed: what they dumped plus what they add is what is held.
#[test]
fn dumps_hear_of_what_is_shed() {
    let mut compared = 0;
    for seed in 0..SEEDS / 4 {
        let script = Script::generate(seed);
        match dump_over_shedding(&script) {
            Ok(records) => compared += records,
            Err(message) => panic!("seed {seed}: {message}\n{script}"),
        }
    }
    assert!(compared > SEEDS / 4, "{compared} records");
}

fn dump_over_shedding(script: &Script) -> Result<u64, String> {
    let text = |refusal: Refusal| refusal.to_string();
    let mut play = Play::new(script, Live::new(script.limits));
    script.steps.iter().try_for_each(|step| play.step(step))?;
    let Some(worker) = play.oracle.workers().next().cloned() else {
        return Ok(0);
    };
    let mut scan = play.live.begin_dump(&worker, None).map_err(text)?;
    let mut records = Vec::new();
    play.live.read_dump(&mut scan, 5, &mut records).map_err(text)?;
    (0..4).try_for_each(|_| play.shed(|live| live.index().shed(3)))?;
    let dumped: std::collections::BTreeMap<_, _> = loop {
        match play.live.read_dump(&mut scan, 5, &mut records) {
            Ok(true) => {}
            Ok(false) => match play.live.finish_dump(scan) {
                Ok(tail) => break records.into_iter().chain(tail.records).collect(),
                Err(Refusal::Aborted(_)) => return Ok(0),
                Err(other) => return Err(other.to_string()),
            },
            Err(Refusal::Aborted(_)) => {
                play.live.cancel_dump(scan);
                return Ok(0);
            }
            Err(other) => return Err(other.to_string()),
        }
    };
    let mut scan = play.live.begin_dump(&worker, None).map_err(text)?;
    let mut now = Vec::new();
    while play.live.read_dump(&mut scan, 50, &mut now).map_err(text)? {}
    play.live.cancel_dump(scan);
    let held = dumped.into_iter().filter(|(_, held)| held.copies != [0; 3]);
    let held: std::collections::BTreeMap<_, _> = held.collect();
    let now: std::collections::BTreeMap<_, _> = now.into_iter().collect();
    if held != now {
        return Err(format!("the dump says {held:?}, held is {now:?}"));
    }
    Ok(now.len() as u64)
}

fn chain(first: u64, blocks: u64) -> KvEvent {
    let block = |at| StoredBlock { name: BlockName(at), local: LocalHash(at) };
    let blocks = (first..first + blocks).map(block).collect();
    KvEvent::Stored { parent: None, tier: Tier::Device, blocks }
}

fn overlap(index: &Index, first: u64, blocks: u64) -> u32 {
    let locals: Vec<_> = (first..first + blocks).map(LocalHash).collect();
    let key = QueryKey::Locals(&locals);
    let tiers = TierSet::ALL;
    let mut scratch = Scratch::default();
    index.find(
        Query { key, tiers, workers: None, minimum_overlap: 0, shared: None, prompt: None },
        &mut scratch,
    );
    scratch.matches().first().map_or(0, |best| best.blocks)
}

/// The end of the chain that was not stored for longest goes, its beginning stays.
#[test]
fn the_end_of_the_coldest_chain_goes_first() {
    let mut index = Index::new(Limits::default());
    let worker = WorkerId::new("a").expect("a short name");
    let source = index.add_source(&worker, "s", 0, CopyMode::Set).expect("new");
    for first in [1_000, 2_000, 3_000] {
        index.apply(source, 0, &chain(first, 10)).expect("known");
    }
    for _ in 0..1_000 {
        index.apply(source, 0, &chain(1_000, 10)).expect("known");
        index.apply(source, 0, &chain(3_000, 10)).expect("known");
    }
    assert_eq!(index.shed(4), Shed { pairs: 4, parked: 0 });
    let overlaps = [1_000, 2_000, 3_000].map(|first| overlap(&index, first, 10));
    assert_eq!(overlaps, [10, 6, 10]);
    index.validate().expect("sound");
}

/// A flood of new chains is held within a budget, a little over for a step and a table's growth.
#[test]
fn a_flood_stays_within_its_budget() {
    const BUDGET: usize = 4 << 20;
    let mut index = Index::new(Limits::default());
    let sources: Vec<_> = (0..4)
        .map(|number| {
            let worker = WorkerId::new(&format!("w{number}")).expect("a short name");
            index.add_source(&worker, "s", 0, CopyMode::Set).expect("new")
        })
        .collect();
    let mut most = 0;
    let mut shed = 0;
    for chain_number in 0..20_000_u64 {
        let source = sources[(chain_number % 4) as usize];
        index.apply(source, 0, &chain(chain_number << 16, 64)).expect("known");
        let in_use = |index: &Index| index.bytes() - index.free_bytes();
        while index.bytes() > BUDGET && in_use(&index) > BUDGET / 8 * 7 {
            shed += index.shed(64).pairs;
        }
        most = most.max(index.bytes());
    }
    println!("{most} bytes at most, {shed} pairs shed, {:?}", index.stats());
    assert!(most < BUDGET / 10 * 11, "{most} bytes");
    assert_eq!(index.stats().pairs + shed, 20_000 * 64, "every pair is held or was shed");
    assert_eq!(overlap(&index, 19_999 << 16, 64), 64, "what was stored last is held");
    index.validate().expect("sound");
}
