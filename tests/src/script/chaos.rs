//! Streams in which names and contents collide often.

use super::{Action, Draft, Family, Kind, Script, ScriptRng, draw_limits};
use kvasir_proto::types::{BlockName, KvEvent, LocalHash, StoredBlock};
use rand::Rng;
use rand::seq::IndexedRandom;

/// Distributions from which one script draws names and contents.
struct Pool {
    /// Names are 1 to this number.
    names: u64,
    /// Local hashes are 1 to this number.
    locals: u64,
    /// Probability that a name keeps the content that its number suggests.
    faithful: f64,
    /// Maximum number of blocks or names in one event.
    event_max: usize,
    /// Probability that a store starts at the root.
    root: f64,
    /// Probability that an earlier event is repeated, perhaps by another source.
    again: f64,
}

impl Pool {
    fn draw(rng: &mut ScriptRng) -> Self {
        Self {
            names: *[8, 8, 8, 8, 4, 24].choose(rng).expect("not empty"),
            locals: rng.random_range(1..=4),
            faithful: *[0.0, 0.5, 0.9, 1.0].choose(rng).expect("not empty"),
            event_max: rng.random_range(1..=8),
            root: *[0.1, 0.3, 0.6].choose(rng).expect("not empty"),
            again: *[0.0, 0.1, 0.4].choose(rng).expect("not empty"),
        }
    }

    fn name(&self, rng: &mut ScriptRng) -> BlockName {
        BlockName(rng.random_range(1..=self.names))
    }

    fn names(&self, rng: &mut ScriptRng) -> Vec<BlockName> {
        (0..rng.random_range(1..=self.event_max)).map(|_| self.name(rng)).collect()
    }

    fn block(&self, rng: &mut ScriptRng) -> StoredBlock {
        let name = self.name(rng);
        let local = if rng.random_bool(self.faithful) {
            name.0 % self.locals + 1
        } else {
            rng.random_range(1..=self.locals)
        };
        StoredBlock { name, local: LocalHash(local) }
    }

    /// Consecutive names: chains that sometimes continue each other.
    fn ascending(&self, rng: &mut ScriptRng) -> Vec<StoredBlock> {
        let first = rng.random_range(1..=self.names);
        let last = self.names.min(first + rng.random_range(0..self.event_max as u64));
        let block =
            |name| StoredBlock { name: BlockName(name), local: LocalHash(name % self.locals + 1) };
        (first..=last).map(block).collect()
    }

    fn stored(&self, draft: &Draft, rng: &mut ScriptRng) -> KvEvent {
        let tier = draft.tier(rng);
        if rng.random_bool(0.4) {
            let blocks = self.ascending(rng);
            let parent = blocks[0].name.0 - 1;
            let parent = (parent > 0).then_some(BlockName(parent));
            return KvEvent::Stored { parent, tier, blocks };
        }
        let parent = (!rng.random_bool(self.root)).then(|| self.name(rng));
        let count = rng.random_range(1..=self.event_max);
        KvEvent::Stored { parent, tier, blocks: (0..count).map(|_| self.block(rng)).collect() }
    }
}

pub(super) fn generate(seed: u64, rng: &mut ScriptRng) -> Script {
    let workers = rng.random_range(1..=4);
    let ranks = rng.random_range(1..=3);
    let mut draft = Draft::new(workers, ranks, rng);
    let pool = Pool::draw(rng);
    let steps = draft.steps.len() + rng.random_range(10..=60);
    let mut past: Vec<KvEvent> = Vec::new();
    while draft.steps.len() < steps {
        let kind = draft.next(rng);
        let event = match kind {
            Kind::Other => continue,
            _ if !past.is_empty() && rng.random_bool(pool.again) => again(&past, &draft, rng),
            Kind::Stored => pool.stored(&draft, rng),
            Kind::Names => KvEvent::StoredNames { tier: draft.tier(rng), names: pool.names(rng) },
            Kind::Removed => {
                let tier = draft.tier(rng);
                let names = pool.names(rng);
                if rng.random_bool(0.2) {
                    KvEvent::Gone { tier, names }
                } else {
                    KvEvent::Removed { tier, names }
                }
            }
        };
        past.push(event.clone());
        let source = draft.source(rng);
        draft.event(source, event, rng);
    }
    draft.push(Action::FinishDump { slot: 0, records_max: 5 });
    let limits = draw_limits(5, rng);
    draft.finish(seed, Family::Chaos, limits)
}

/// Repeats an earlier event: unchanged, in another tier, shortened, or undone.
fn again(past: &[KvEvent], draft: &Draft, rng: &mut ScriptRng) -> KvEvent {
    let mut event = past.choose(rng).expect("not empty").clone();
    if rng.random_bool(0.3) {
        let tier = draft.tier(rng);
        match &mut event {
            KvEvent::Stored { tier: old, .. }
            | KvEvent::StoredNames { tier: old, .. }
            | KvEvent::Removed { tier: old, .. }
            | KvEvent::Gone { tier: old, .. } => *old = tier,
            KvEvent::ClearedTier(old) => *old = tier,
            KvEvent::Cleared => {}
        }
    }
    let KvEvent::Stored { parent, tier, blocks } = &mut event else {
        return event;
    };
    match rng.random_range(0..4) {
        0 => event,
        1 => {
            let names = blocks.iter().map(|block| block.name).collect();
            KvEvent::Removed { tier: *tier, names }
        }
        2 => {
            blocks.truncate(rng.random_range(1..=blocks.len()));
            event
        }
        _ => {
            let cut = rng.random_range(0..blocks.len());
            if cut > 0 {
                *parent = Some(blocks[cut - 1].name);
                blocks.drain(..cut);
            }
            event
        }
    }
}
