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

/// What happened to a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Change {
    /// It began.
    Register,
    /// It ended.
    Remove,
}

/// One change. Everything that a KV event of the index needs is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockEvent {
    /// 1 for the first event of an [`crate::EventManager`], and one more for each further one.
    pub number: u64,
    /// What happened.
    pub change: Change,
    /// To what.
    pub registration: Registration,
}

/// Everything that is registered: state, not a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Number of the last event that it contains.
    pub watermark: u64,
    /// All registrations, each once. A block stands after those that are nearer to the root.
    pub registrations: Vec<Registration>,
}
