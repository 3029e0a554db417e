use super::{BlockName, DpRank, Tier};

/// What an engine's name means besides its tokens, where later events do not repeat it: vLLM states a cache salt with
/// the first block of a prompt only, and connectors state no keys at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NameMeaning {
    /// Seed of the block's LoRA adapter without a salt.
    pub adapter: u64,
    /// Seed of the block's tokens: adapter and salt.
    pub seed: u64,
    /// Whether a query can name that seed.
    pub matchable: bool,
    /// Whether the block has keys of its own (multimodal content), which blocks below do not inherit.
    pub has_own_keys: bool,
    /// Copies by tier, in the order of [`Tier::ALL`], at least one: the name is forgotten with the last copy.
    pub copies: [u32; Tier::COUNT],
}

/// A name's new meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NameChange {
    /// The rank that holds the block.
    pub rank: DpRank,
    /// The engine's hash of the block.
    pub name: BlockName,
    /// What it means now; none once it is forgotten.
    pub meaning: Option<NameMeaning>,
}

/// How a source states images among a block's keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ImageKeys {
    /// No image has shown it yet.
    #[default]
    Unknown,
    /// Bare identifiers: vLLM 0.17.0 to 0.18.1.
    Bare,
    /// Pairs of an identifier and an offset: vLLM from 0.19.0.
    Pairs,
}

/// The number that a source gave a named LoRA adapter at one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AdapterNumber {
    /// The rank.
    pub rank: DpRank,
    /// Seed of the adapter's blocks without a salt.
    pub adapter: u64,
    /// The number.
    pub number: u64,
}

/// What a source has shown of itself in one incarnation and does not repeat. It survives restarts of the index and of the
/// agent. Small: names are in [`NameMeaning`]s.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is learned by itself")]
pub struct Learned {
    /// The KV-cache group whose blocks count, once the source has stated it.
    pub main_group: Option<u32>,
    /// Whether the engine states `extra_keys` with what it stores on the device; none until a stored event has shown it.
    pub states_keys: Option<bool>,
    /// Whether hashes cover the token after the block, too.
    pub looks_ahead: bool,
    /// Whether a prompt of it had a salt, an image or other keys besides its adapter.
    pub has_extra_keys: bool,
    /// Whether a connector has announced chunks under hashes of its own.
    pub splits_chunks: bool,
    /// How it states images.
    pub image_keys: ImageKeys,
    /// Whether meanings of names were forgotten: there were too many, or a restart lost them.
    pub forgot_names: bool,
    /// Numbers of named LoRA adapters, at most
    /// [`WORKER_LORA_NAMES_MAX`](crate::limits::WORKER_LORA_NAMES_MAX).
    pub adapters: Vec<AdapterNumber>,
}
