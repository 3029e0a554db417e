//! Namespaces separate blocks with equal tokens but different content.
//!
//! A block's namespace consists of its LoRA adapter and its cache salt. Engines state the adapter with every
//! event. vLLM states the salt only with the first block of a prompt, and later blocks inherit it from their
//! parent (`known.rs`).
//!
//! A salted block must never answer an unsalted query. If that could happen, the block gets a namespace that
//! queries cannot name:
//! - An unknown kind of key (several strings beside the tokens, digests of embeddings, …) makes its block,
//!   and the blocks after it, unmatchable.
//! - A name keeps its meaning when it is announced again without keys, as by an offloading connector.
//! - Once [`KNOWN_NAMES_MAX`](super::KNOWN_NAMES_MAX) was reached, a block after an unknown parent may be
//!   salted.
//!
//! Two cases cannot be detected:
//! - vLLM before 0.17 and SGLang before 0.5.18 do not send salts, and these vLLM versions do not send
//!   multimodal identifiers. Their salted blocks count as unsalted. Do not combine these versions with salts.
//! - A source joined in the middle of a salted chain sends blocks after an unknown parent without the salt.
//!   They are hashed as unsalted. The index parks them until the parent is announced with its salt, and then
//!   places them below it. Unsalted queries cannot pass a salted parent, so the error is a miss, never a
//!   false hit.

use kvasir_proto::hash::{Namespace, Seed};
use kvasir_proto::types::{BlockName, NameMeaning};

/// Namespace of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockNamespace {
    /// Seed of the adapter, without a salt.
    pub(super) adapter: Seed,
    /// Seed of the block's local hash.
    pub(super) seed: Seed,
    /// Whether queries can name the namespace.
    pub(super) matchable: bool,
}

impl BlockNamespace {
    /// An adapter by name, without a salt; "" means no adapter.
    pub(super) fn of_adapter(lora_name: &str) -> Self {
        let seed = Namespace { lora_name, cache_salt: "" }.seed();
        Self { adapter: seed, seed, matchable: true }
    }

    /// An adapter of unknown name, by its number.
    pub(super) fn of_unnamed_adapter(lora_id: u64) -> Self {
        let seed = Seed::opaque(&lora_id.to_le_bytes());
        Self { adapter: seed, seed, matchable: false }
    }

    /// Adds a salt. Does nothing if queries cannot name the namespace. The seed covers the adapter and the salt, so the
    /// adapter's name is needed again.
    pub(super) fn with_salt(self, lora_name: &str, cache_salt: &str) -> Self {
        if !self.matchable {
            return self;
        }
        Self { seed: Namespace { lora_name, cache_salt }.seed(), ..self }
    }

    /// Adds a key that is not understood, first seen in block `name`. Queries cannot name the result.
    pub(super) fn with_unknown(self, name: BlockName) -> Self {
        let [a, b, c, d, e, f, g, h] = self.adapter.0.to_le_bytes();
        let [i, j, k, l, m, n, o, p] = name.0.to_le_bytes();
        let seed = Seed::opaque(&[a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]);
        Self { seed, matchable: false, ..self }
    }

    /// Whether the blocks after a block of this namespace inherit keys that their events do not state.
    pub(super) fn is_inherited(self) -> bool {
        self.seed != self.adapter
    }

    /// Whether the namespace is the default: without adapter and salt.
    pub(super) fn is_plain(self) -> bool {
        !self.is_inherited() && self.adapter == Namespace::default().seed()
    }

    /// Namespace of a known name.
    pub(super) const fn of_meaning(meaning: &NameMeaning) -> Self {
        let NameMeaning { adapter, seed, matchable, .. } = *meaning;
        Self { adapter: Seed(adapter), seed: Seed(seed), matchable }
    }
}
