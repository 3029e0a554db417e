use crate::identity::BlockIdentity;
use crate::tier::BlockTier;

/// A block that is registered in a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Registration {
    /// The tier.
    pub tier: BlockTier,
    /// The block.
    pub identity: BlockIdentity,
}

/// How a registration changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Change {
    /// The block was registered.
    Register,
    /// The block's registration ended.
    Remove,
}

/// One change of a registration, with all that a KV event of the index needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockEvent {
    /// 1 for the first event of an [`crate::EventManager`], and one more for each further one.
    pub number: u64,
    /// Whether the block was registered or removed.
    pub change: Change,
    /// The block and its tier.
    pub registration: Registration,
}

/// Snapshot of all registrations at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Number of the last event included in the snapshot.
    pub watermark: u64,
    /// All registrations, each once. A block comes after its ancestors.
    pub registrations: Vec<Registration>,
}
