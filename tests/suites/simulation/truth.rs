//! What a source really holds: every batch of every life, and the reference index after it.

use kvasir_proto::hash::sequence_hashes;
use kvasir_proto::types::{
    BlockName, CopyMode, DpRank, HeldBlock, Incarnation, KvEvent, LocalHash, StoredBlock, Tier,
    WorkerId,
};
use kvasir_tests::oracle::{Held, Oracle, OracleLimits, SourceNo};
use kvasir_tests::script::ScriptRng;
use rand::Rng;
use rand::seq::IndexedRandom;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Blocks of the longest prompt.
const PROMPT_BLOCKS_MAX: usize = 8;
/// Bounds that no run reaches.
pub const LIMITS: OracleLimits = OracleLimits { chain_blocks_max: 1_000, rank_parked_max: 10_000 };

/// What is held, but for where it stands: a dump does not say that where ancestors are gone.
pub type Content = BTreeMap<(DpRank, BlockName), HeldBlock>;

pub fn digest(content: &Content) -> u64 {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    hasher.finish()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    pub rank: DpRank,
    pub events: Vec<KvEvent>,
}

/// One life of a source's cache.
#[derive(Debug)]
pub struct Life {
    pub incarnation: Incarnation,
    pub first: u64,
    pub batches: Vec<Batch>,
    /// Of what is held after each batch.
    digests: Vec<u64>,
}

impl Life {
    pub const fn next(&self) -> u64 {
        self.first + self.batches.len() as u64
    }

    pub fn newest(&self) -> Option<u64> {
        (!self.batches.is_empty()).then(|| self.next() - 1)
    }

    fn place(&self, sequence: u64) -> Option<usize> {
        usize::try_from(sequence.checked_sub(self.first)?).ok()
    }

    pub fn batch(&self, sequence: u64) -> &Batch {
        self.place(sequence).and_then(|at| self.batches.get(at)).expect("it was published")
    }

    /// Of what is held after a batch, or before the first; none if there is no such batch.
    pub fn digest(&self, after: Option<u64>) -> Option<u64> {
        match after {
            Some(sequence) => self.digests.get(self.place(sequence)?).copied(),
            None => Some(digest(&Content::new())),
        }
    }
}

/// One source.
pub struct Truth {
    pub worker: WorkerId,
    pub name: String,
    pub mode: CopyMode,
    ranks: Vec<DpRank>,
    /// Sources of one kind name the same content alike.
    kind: u64,
    pub lives: Vec<Life>,
    oracle: Oracle,
    source: SourceNo,
}

impl Truth {
    pub fn new(worker: &str, name: &str, ranks: Vec<DpRank>, rng: &mut ScriptRng) -> Self {
        let worker = WorkerId::new(worker).expect("a short name");
        let mode = if rng.random_bool(0.5) { CopyMode::Counted } else { CopyMode::Set };
        let mut oracle = Oracle::new(LIMITS);
        let source = oracle.add_source(&worker, ranks[0], mode);
        let name = name.to_owned();
        let kind = rng.random_range(0..2);
        Self { worker, name, mode, ranks, kind, lives: Vec::new(), oracle, source }
    }

    pub fn begin_incarnation(&mut self, incarnation: Incarnation, first: u64) {
        self.oracle = Oracle::new(LIMITS);
        self.source = self.oracle.add_source(&self.worker, self.ranks[0], self.mode);
        let batches = Vec::new();
        let digests = Vec::new();
        self.lives.push(Life { incarnation, first, batches, digests });
    }

    pub fn life(&self) -> &Life {
        self.lives.last().expect("it lives")
    }

    pub fn life_of(&self, incarnation: Incarnation) -> &Life {
        let found = self.lives.iter().find(|life| life.incarnation == incarnation);
        found.expect("an incarnation that it lived")
    }

    /// The engine does something, and says so.
    pub fn act(&mut self, rng: &mut ScriptRng) -> Batch {
        let rank = *self.ranks.choose(rng).expect("one at least");
        let events = (0..rng.random_range(1..4)).map(|_| self.draw(rng)).collect();
        self.publish(Batch { rank, events })
    }

    /// The cache is emptied, and filled a little again.
    pub fn clear(&mut self, rng: &mut ScriptRng) -> Batch {
        let rank = self.ranks[0];
        self.publish(Batch { rank, events: vec![KvEvent::Cleared, self.draw(rng)] })
    }

    fn publish(&mut self, batch: Batch) -> Batch {
        for event in &batch.events {
            self.oracle.apply(self.source, batch.rank, event);
        }
        let digest = digest(&self.content());
        let life = self.lives.last_mut().expect("it lives");
        life.digests.push(digest);
        life.batches.push(batch.clone());
        batch
    }

    /// A name follows from the content of a block and of all before it, as engines' names do.
    fn draw(&self, rng: &mut ScriptRng) -> KvEvent {
        let length = rng.random_range(1..=PROMPT_BLOCKS_MAX);
        let locals: Vec<_> = (0..length).map(|_| LocalHash(rng.random_range(1..=2))).collect();
        let names = sequence_hashes(&locals).map(|name| BlockName(name.0 ^ self.kind));
        let blocks = locals.iter().zip(names).map(|(&local, name)| StoredBlock { name, local });
        let blocks: Vec<_> = blocks.collect();
        let tier = *Tier::ALL.choose(rng).expect("not empty");
        let from = if rng.random_bool(0.5) { 0 } else { rng.random_range(0..length) };
        let parent = from.checked_sub(1).map(|at| blocks[at].name);
        let names = || blocks[from..].iter().map(|block| block.name).collect();
        match rng.random_range(0..40) {
            0 => KvEvent::Cleared,
            1 | 2 => KvEvent::StoredNames { tier, names: names() },
            3 | 4 => KvEvent::Gone { tier, names: names() },
            5..=16 => KvEvent::Removed { tier, names: names() },
            _ => KvEvent::Stored { parent, tier, blocks: blocks[from..].to_vec() },
        }
    }

    /// What it holds now.
    pub fn content(&self) -> Content {
        let held = self.oracle.dump(&self.worker, None).into_iter();
        let plain = held.map(|((rank, _, name), held)| {
            let Held { parent, local, copies, .. } = held;
            ((rank, name), HeldBlock { name, parent, local, copies })
        });
        plain.collect()
    }

    /// Tells a reference index all of the present life.
    pub fn tell(&self, oracle: &mut Oracle) {
        let source = oracle.add_source(&self.worker, self.ranks[0], self.mode);
        for batch in &self.life().batches {
            for event in &batch.events {
                oracle.apply(source, batch.rank, event);
            }
        }
    }
}
