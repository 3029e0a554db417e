use super::{BlockName, LocalHash, Tier};

/// What one source holds under one name of one rank: the full state, not a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HeldBlock {
    /// The engine's hash of the block.
    pub name: BlockName,
    /// Name of the block before it; none for the first block of a prompt, and if no tokens were
    /// announced.
    pub parent: Option<BlockName>,
    /// Hash of its tokens; none if no tokens were announced.
    pub local: Option<LocalHash>,
    /// Copies by tier, in the order of [`Tier::ALL`]; all 0 if the name is gone.
    pub copies: [u32; Tier::COUNT],
}
