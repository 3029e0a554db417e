use super::{BlockName, LocalHash, Tier};

/// The blocks of one source under one name of one rank: the complete state, not a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HeldBlock {
    /// The engine's hash of the block.
    pub name: BlockName,
    /// Name of the preceding block. None for the first block of a prompt, or if the engine announced no tokens.
    pub parent: Option<BlockName>,
    /// Hash of the block's tokens. Absent if the engine announced the block without tokens.
    pub local: Option<LocalHash>,
    /// Copies by tier, in the order of [`Tier::ALL`]; all 0 if the name was removed.
    pub copies: [u32; Tier::COUNT],
}
