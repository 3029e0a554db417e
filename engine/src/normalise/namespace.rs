//! Namespaces: which blocks with equal tokens hold different content, and for whom.
//!
//! A block's namespace is its LoRA adapter and its cache salt. Engines state the adapter with every
//! event, but vLLM states the salt with the first block of a prompt only: every later block inherits
//! it from its parent (`known.rs`).
//!
//! A salted block must never answer an unsalted query. Where that could happen, the block goes to
//! a namespace that no query can name:
//! - what is not understood about a block (several strings beside its tokens, digests of
//!   embeddings, …) makes its namespace, and that of the blocks after it, unmatchable;
//! - a name keeps its meaning when it is announced again without keys, as by an offloading
//!   connector;
//! - once [`KNOWN_NAMES_MAX`](super::KNOWN_NAMES_MAX) was reached, a block after an unknown parent may be salted.
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
use kvasir_proto::types::{BlockName, NameMeaning};

/// Namespace of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockNamespace {
    /// Seed of the adapter without a salt.
    pub(super) adapter: Seed,
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
    pub(super) fn is_inherited(self) -> bool {
        self.seed != self.adapter
    }

    /// Whether events state more of such a block than its tokens.
    pub(super) fn is_plain(self) -> bool {
        !self.is_inherited() && self.adapter == Namespace::default().seed()
    }

    /// The namespace of a name that is known.
    pub(super) const fn of_meaning(meaning: &NameMeaning) -> Self {
        let NameMeaning { adapter, seed, matchable, .. } = *meaning;
        Self { adapter: Seed(adapter), seed: Seed(seed), matchable }
    }
}
