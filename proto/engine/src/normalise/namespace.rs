//! Namespaces: which blocks with equal tokens hold different content, and for whom.
//!
//! A block's namespace is its LoRA adapter and its cache salt. Engines state the adapter with every
//! event, but vLLM states the salt with the first block of a prompt only: every later block inherits
//! it from its parent. So the names of all salted blocks of a source are remembered, and nothing
//! else is.
//!
//! A salted block must never answer an unsalted query. Where that could happen, the block goes to
//! a namespace that no query can name:
//! - what is not understood about a block (several strings beside its tokens, digests of
//!   embeddings, …) makes its namespace, and that of the blocks after it, unmatchable;
//! - a name known as salted stays salted when it is announced again without a salt, as by an
//!   offloading connector;
//! - once [`SALTED_NAMES_MAX`] was reached, a block after an unknown parent may be salted.
//!
//! What cannot be seen from here:
//! - vLLM before 0.17 and SGLang before 0.5.18 do not send salts (nor does that vLLM send
//!   multimodal identifiers): their salted blocks look unsalted and are taken as such. Do not
//!   combine them with salts.
//! - A source joined in the middle of a salted chain sends blocks after an unknown parent and states
//!   no salt. They are hashed as unsalted. The index leaves them unplaced until that
//!   parent is announced, with its salt, and then below it: no unsalted query walks through a
//!   salted parent, so the error is a miss, never a false hit.

use kvasir_proto::hash::{Namespace, Seed};
use kvasir_proto::types::{BlockName, DpRank, Tier, TierSet};
use std::collections::{HashMap, hash_map::Entry};

/// Most salted names remembered of one source: 51 MB at most, 14 million tokens in blocks of 16.
pub const SALTED_NAMES_MAX: usize = 900_000;

/// Namespace of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockNamespace {
    /// Seed of the adapter without a salt.
    adapter: Seed,
    /// Seed of the block's tokens.
    pub(super) seed: Seed,
    /// Whether a query can name it.
    pub(super) matchable: bool,
}

impl BlockNamespace {
    /// No salt, and the adapter of this name; "" for none.
    pub(super) fn of_adapter(lora_name: &str) -> Self {
        let seed = Namespace { lora_name, cache_salt: "" }.seed();
        Self { adapter: seed, seed, matchable: true }
    }

    /// The adapter of this number, whose name is not known.
    pub(super) fn of_unnamed_adapter(lora_id: u64) -> Self {
        let seed = Seed::opaque(&lora_id.to_le_bytes());
        Self { adapter: seed, seed, matchable: false }
    }

    /// This adapter with a salt. `lora_name` is the adapter's name.
    pub(super) fn with_salt(self, lora_name: &str, cache_salt: &str) -> Self {
        if !self.matchable {
            return self;
        }
        Self { seed: Namespace { lora_name, cache_salt }.seed(), ..self }
    }

    /// This adapter with something that is not understood, first met in block `name`.
    pub(super) fn with_unknown(self, name: BlockName) -> Self {
        let [a, b, c, d, e, f, g, h] = self.adapter.0.to_le_bytes();
        let [i, j, k, l, m, n, o, p] = name.0.to_le_bytes();
        let seed = Seed::opaque(&[a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]);
        Self { seed, matchable: false, ..self }
    }

    /// Whether blocks after such a one inherit something that their events do not state.
    fn is_inherited(self) -> bool {
        self.seed != self.adapter
    }
}

/// A name with a salt.
#[derive(Debug)]
struct Salted {
    namespace: BlockNamespace,
    /// Tiers it was stored in and not removed from; forgotten with the last.
    tiers: TierSet,
}

/// The names of a source's salted blocks.
#[derive(Debug)]
pub(super) struct SaltedNames {
    names: HashMap<(DpRank, BlockName), Salted>,
    limit: usize,
    overflow: Overflow,
}

/// Whose names could not all be remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Overflow {
    None,
    One(DpRank),
    Several,
}

impl SaltedNames {
    pub(super) fn new(limit: usize) -> Self {
        Self { names: HashMap::new(), limit, overflow: Overflow::None }
    }

    /// Whether events alone decide the namespaces of blocks.
    pub(super) fn is_idle(&self) -> bool {
        self.names.is_empty() && self.overflow == Overflow::None
    }

    /// Namespace of a block known as salted, as seen by an event with this adapter.
    pub(super) fn find(
        &self,
        rank: DpRank,
        name: BlockName,
        adapter: BlockNamespace,
    ) -> Option<BlockNamespace> {
        let known = self.names.get(&(rank, name))?.namespace;
        // The engine's hash of a block covers its adapter: the same name with two is no sense.
        let agrees = known.adapter == adapter.adapter;
        Some(if agrees { known } else { adapter.with_unknown(name) })
    }

    /// Namespace of what follows `parent`, if that is more than the event states.
    pub(super) fn after(
        &self,
        rank: DpRank,
        parent: BlockName,
        adapter: BlockNamespace,
    ) -> Option<BlockNamespace> {
        let known = self.find(rank, parent, adapter);
        let forgotten = match self.overflow {
            Overflow::None => false,
            Overflow::One(of) => of == rank,
            Overflow::Several => true,
        };
        known.or_else(|| forgotten.then(|| adapter.with_unknown(parent)))
    }

    /// Remembers a block's namespace, if there is anything to remember.
    pub(super) fn stored(
        &mut self,
        rank: DpRank,
        name: BlockName,
        namespace: BlockNamespace,
        tier: Tier,
    ) {
        if !namespace.is_inherited() {
            return;
        }
        let full = self.names.len() >= self.limit;
        match self.names.entry((rank, name)) {
            Entry::Occupied(mut known) => {
                let known = known.get_mut();
                known.namespace = namespace;
                known.tiers = known.tiers.with(tier);
            }
            Entry::Vacant(_) if full => {
                let alone = [Overflow::None, Overflow::One(rank)].contains(&self.overflow);
                self.overflow = if alone { Overflow::One(rank) } else { Overflow::Several };
            }
            Entry::Vacant(unknown) => {
                unknown.insert(Salted { namespace, tiers: TierSet::EMPTY.with(tier) });
            }
        }
        debug_assert!(self.names.len() <= self.limit, "names are limited");
    }

    /// A name of which no tokens were sent lies in a tier more.
    pub(super) fn stored_name(&mut self, rank: DpRank, name: BlockName, tier: Tier) {
        if let Some(known) = self.names.get_mut(&(rank, name)) {
            known.tiers = known.tiers.with(tier);
        }
    }

    /// Forgets a name with its last tier. Copies within a tier are not counted: where an engine
    /// removes one of two, later blocks are taken as unsalted, and miss (see the module).
    pub(super) fn removed(&mut self, rank: DpRank, name: BlockName, tier: Tier) {
        if let Entry::Occupied(mut known) = self.names.entry((rank, name)) {
            let tiers = known.get().tiers;
            let left: TierSet =
                Tier::ALL.into_iter().filter(|&t| t != tier && tiers.contains(t)).collect();
            if left.is_empty() {
                known.remove();
            } else {
                known.get_mut().tiers = left;
            }
        }
    }

    /// Forgets all names of a rank.
    pub(super) fn cleared(&mut self, rank: DpRank) {
        self.names.retain(|&(of, _), _| of != rank);
        if self.names.is_empty() {
            self.names = HashMap::new();
        }
        if self.overflow == Overflow::One(rank) {
            self.overflow = Overflow::None;
        }
    }
}
