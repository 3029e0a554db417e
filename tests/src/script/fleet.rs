//! Streams of a fleet of engines that cache overlapping prompts.

use super::{Action, Draft, Family, Kind, Script, ScriptRng, draw_limits};
use kvasir_proto::hash::sequence_hashes;
use kvasir_proto::types::{BlockName, KvEvent, LocalHash, StoredBlock, Tier};
use rand::Rng;
use rand::seq::{IndexedMutRandom, IndexedRandom, SliceRandom};
use std::ops::Range;

/// Prompts of a large script: about 5,000 positions.
const LARGE_PROMPTS: u64 = 1_500;
const LARGE_STEPS: usize = 12_000;

/// A prompt with the names of one kind of engine.
type Named = Vec<StoredBlock>;

struct Fleet {
    /// Prompts by kind of engine: equal contents, different names.
    prompts: Vec<Vec<Named>>,
    /// Kind of engine by source.
    kinds: Vec<usize>,
    /// Probability that several sources perform an operation in turn.
    together: f64,
    /// Probability that a store is out of order.
    disorder: f64,
    /// Probability that a store binds a known name to other content.
    rebind: f64,
}

/// Prompts with shared prefixes, cut at random and near multiples of 64.
fn draw_prompts(count: u64, blocks_max: usize, rng: &mut ScriptRng) -> Vec<Vec<LocalHash>> {
    let mut prompts: Vec<Vec<LocalHash>> = Vec::new();
    let fresh_locals = rng.random_bool(0.7);
    for number in 0..count {
        let mut prompt = prompts.choose(rng).cloned().unwrap_or_default();
        let cut = rng.random_range(0..=prompt.len());
        let near_page = cut.next_multiple_of(64) + rng.random_range(0..3);
        prompt.truncate(if rng.random_bool(0.3) { near_page.saturating_sub(1) } else { cut });
        let room = blocks_max.saturating_sub(prompt.len()).max(1);
        for block in 0..rng.random_range(1..=room) {
            let local = if fresh_locals {
                1_000 * (number + 1) + block as u64
            } else {
                rng.random_range(1..=2)
            };
            prompt.push(LocalHash(local));
        }
        prompt.truncate(blocks_max);
        prompts.push(prompt);
    }
    prompts
}

impl Fleet {
    fn draw(prompts: &[Vec<LocalHash>], sources: usize, rng: &mut ScriptRng) -> Self {
        let kinds = rng.random_range(1..=3);
        let named = |kind: u64, prompt: &Vec<LocalHash>| {
            let names = sequence_hashes(prompt).map(|name| BlockName(name.0 ^ kind));
            let blocks = prompt.iter().zip(names);
            blocks.map(|(&local, name)| StoredBlock { name, local }).collect()
        };
        Self {
            prompts: (0..kinds)
                .map(|kind| prompts.iter().map(|prompt| named(kind as u64, prompt)).collect())
                .collect(),
            kinds: (0..sources).map(|_| rng.random_range(0..kinds)).collect(),
            together: *[0.0, 0.2, 0.6].choose(rng).expect("not empty"),
            disorder: *[0.0, 0.1, 0.4].choose(rng).expect("not empty"),
            rebind: *[0.0, 0.0, 0.1, 0.3].choose(rng).expect("not empty"),
        }
    }

    /// Performs the operation of one source on part of a prompt.
    fn carry_out(&self, draft: &mut Draft, work: &Work, source: usize, rng: &mut ScriptRng) {
        let prompt = &self.prompts[self.kinds[source]][work.prompt];
        let part = &prompt[work.part.clone()];
        let tier = work.tier;
        match work.kind {
            Kind::Stored => self.store(draft, work, source, rng),
            Kind::Names => {
                let names = part.iter().map(|block| block.name).collect();
                draft.event(source, KvEvent::StoredNames { tier, names }, rng);
            }
            Kind::Removed => {
                let mut names: Vec<_> = part.iter().map(|block| block.name).collect();
                match rng.random_range(0..4) {
                    0 => names.shuffle(rng),
                    1 => names.retain(|_| rng.random_bool(0.3)),
                    2 => {}
                    _ => names.reverse(),
                }
                draft.event(source, KvEvent::Removed { tier, names }, rng);
            }
            Kind::Other => {}
        }
    }

    fn store(&self, draft: &mut Draft, work: &Work, source: usize, rng: &mut ScriptRng) {
        let prompt = &self.prompts[self.kinds[source]][work.prompt];
        let rank = draft.rank(source, rng);
        let mut events = Vec::new();
        let mut start = work.part.start;
        while start < work.part.end {
            let full = rng.random_bool(0.6);
            let end =
                if full { work.part.end } else { rng.random_range(start + 1..=work.part.end) };
            let parent = start.checked_sub(1).map(|before| prompt[before].name);
            let mut blocks = prompt[start..end].to_vec();
            if rng.random_bool(self.rebind) {
                let other = self.prompts[self.kinds[source]].choose(rng).expect("not empty");
                let name = other.choose(rng).expect("not empty").name;
                blocks.choose_mut(rng).expect("not empty").name = name;
            }
            events.push(KvEvent::Stored { parent, tier: work.tier, blocks });
            start = end;
        }
        if rng.random_bool(self.disorder) {
            events.shuffle(rng);
        }
        for event in events {
            draft.push(Action::Event { source, rank, event });
        }
    }
}

struct Work {
    kind: Kind,
    prompt: usize,
    part: Range<usize>,
    tier: Tier,
}

impl Work {
    fn draw(kind: Kind, fleet: &Fleet, tier: Tier, rng: &mut ScriptRng) -> Self {
        let prompts = &fleet.prompts[0];
        let prompt = rng.random_range(0..prompts.len());
        let length = prompts[prompt].len();
        let first = rng.random_range(0..length);
        let last = rng.random_range(0..length);
        let part = match rng.random_range(0..5) {
            0 | 1 if matches!(kind, Kind::Stored) => 0..length,
            0 => 0..last + 1,
            1 | 2 => first..length,
            3 => first..first + 1,
            _ => first.min(last)..first.max(last) + 1,
        };
        Self { kind, prompt, part, tier }
    }
}

pub(super) fn generate(seed: u64, prompt_blocks_max: usize, rng: &mut ScriptRng) -> Script {
    let most = if prompt_blocks_max > 100 { 20 } else { 60 };
    let workers = *[1, 3, 8, 20, most].choose(rng).expect("not empty");
    let ranks = rng.random_range(1..=3);
    let mut draft = Draft::new(workers, ranks, rng);
    let prompts = draw_prompts(rng.random_range(1..=6), prompt_blocks_max, rng);
    let fleet = Fleet::draw(&prompts, draft.sources.len(), rng);
    let steps = draft.steps.len() + rng.random_range(15..=60);
    while draft.steps.len() < steps {
        let kind = draft.next(rng);
        let work = Work::draw(kind, &fleet, draft.tier(rng), rng);
        if rng.random_bool(fleet.together) {
            for source in 0..draft.sources.len() {
                fleet.carry_out(&mut draft, &work, source, rng);
            }
        } else {
            let source = draft.source(rng);
            fleet.carry_out(&mut draft, &work, source, rng);
        }
    }
    draft.push(Action::FinishDump { slot: 0, records_max: 50 });
    let limits = draw_limits(prompt_blocks_max, rng);
    draft.finish(seed, Family::Fleet { prompt_blocks_max }, limits)
}

/// Generates many operations of one kind in a row, so that the state grows large and shrinks again.
pub(super) fn generate_large(seed: u64, rng: &mut ScriptRng) -> Script {
    let workers = *[2, 4, 12].choose(rng).expect("not empty");
    let ranks = rng.random_range(1..=2);
    let mut draft = Draft::new(workers, ranks, rng);
    let prompts = draw_prompts(LARGE_PROMPTS, 6, rng);
    let fleet = Fleet::draw(&prompts, draft.sources.len(), rng);
    while draft.steps.len() < LARGE_STEPS {
        let kind = draft.next(rng);
        if matches!(kind, Kind::Other) {
            continue;
        }
        let tier = draft.tier(rng);
        let together = rng.random_bool(fleet.together);
        let source = draft.source(rng);
        for _ in 0..rng.random_range(1..1_000) {
            let work = Work::draw(kind, &fleet, tier, rng);
            if rng.random_bool(0.01) {
                draft.dump_step(source, rng);
            }
            // Some of the sources perform each operation, which creates holder sets of all kinds.
            for at in 0..draft.sources.len() {
                if at != source && !(together && rng.random_bool(0.5)) {
                    continue;
                }
                fleet.carry_out(&mut draft, &work, at, rng);
            }
        }
    }
    let limits = draw_limits(6, rng);
    draft.finish(seed, Family::Large, limits)
}
