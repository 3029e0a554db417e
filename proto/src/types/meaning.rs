use super::{BlockName, DpRank, Group, Tier};

/// Meaning of an engine's block name besides its tokens, as far as later events do not repeat it: vLLM states a cache
/// salt only with the first block of a prompt, and connectors never state keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NameMeaning {
    /// Seed of the block's LoRA adapter without a salt.
    pub adapter: u64,
    /// Seed of the block's tokens: adapter and salt.
    pub seed: u64,
    /// Whether a query can name this seed.
    pub matchable: bool,
    /// Whether the block has its own keys (multimodal content), which following blocks do not inherit.
    pub has_own_keys: bool,
    /// Copies by tier, in the order of [`Tier::ALL`]. At least one copy remains; the name is dropped with the last
    /// copy.
    pub copies: [u32; Tier::COUNT],
}

/// A change of a name's meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NameChange {
    /// The rank of the block.
    pub rank: DpRank,
    /// The engine's hash of the block.
    pub name: BlockName,
    /// The new meaning; none if the name was dropped.
    pub meaning: Option<NameMeaning>,
}

/// Form in which a source states images among a block's keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ImageKeys {
    /// Unknown until the first image.
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

/// Facts that a source has shown in one incarnation and does not repeat. They survive restarts of the index and of the
/// agent. Small, because names are in [`NameMeaning`]s.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is learned by itself")]
pub struct Learned {
    /// The KV-cache group whose blocks count, after the source has stated it.
    pub main_group: Option<u32>,
    /// Whether the engine states `extra_keys` with blocks stored on the device; none before the first stored event.
    pub states_keys: Option<bool>,
    /// Whether the engine's hashes also cover the token after the block.
    pub looks_ahead: bool,
    /// Whether a prompt of the source had a salt, an image or other keys besides its adapter.
    pub has_extra_keys: bool,
    /// Whether a connector has announced chunks under its own hashes.
    pub splits_chunks: bool,
    /// Form in which the source states images.
    pub image_keys: ImageKeys,
    /// Whether meanings of names were dropped: there were too many, or a restart lost them.
    pub forgot_names: bool,
    /// Numbers of named LoRA adapters, at most
    /// [`WORKER_LORA_NAMES_MAX`](crate::limits::WORKER_LORA_NAMES_MAX).
    pub adapters: Vec<AdapterNumber>,
    /// Announced KV-cache groups besides the main group, at most
    /// [`FURTHER_GROUPS_MAX`](crate::limits::FURTHER_GROUPS_MAX).
    pub groups: Vec<Group>,
}
