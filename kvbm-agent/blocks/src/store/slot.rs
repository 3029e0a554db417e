use crate::events::RegistrationHandle;
use crate::identity::{BlockIdentity, Checksum, Priority, SlotId};

/// A block, and where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockInfo {
    /// Its slot.
    pub slot: SlotId,
    /// What it is.
    pub identity: BlockIdentity,
    /// Checksum of its bytes, if it is known.
    pub checksum: Option<Checksum>,
    /// How much it is worth keeping.
    pub priority: Priority,
}

/// A block that was evicted.
pub type Evicted = BlockInfo;

/// What a slot is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SlotState {
    /// For nothing: a block in Reset that nobody owns.
    Free,
    /// One owner fills it: a block in Reset, Partial or Complete.
    Mutable,
    /// A transfer may write it.
    Quarantined,
    /// A registered block that is in use.
    Active,
    /// A registered block in no use: it can be found and evicted.
    Inactive,
    /// A second block of the same content, in use.
    Duplicate,
    /// A block that was withdrawn while in use: it is found no longer.
    Withdrawn,
}

/// What a slot holds.
#[derive(Debug)]
pub(super) enum Content {
    Free,
    Mutable,
    Quarantined,
    Registered { _registration: RegistrationHandle, block: BlockInfo, shares: u32 },
    Duplicate { primary: SlotId, block: BlockInfo, shares: u32 },
    Withdrawn { shares: u32 },
}

/// One slot.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) content: Content,
    /// Goes up whenever a registered block is in it no longer, so that weak handles notice.
    pub(super) generation: u32,
}

impl Slot {
    pub(super) const FREE: Self = Self { content: Content::Free, generation: 0 };

    pub(super) const fn state(&self) -> SlotState {
        match self.content {
            Content::Free => SlotState::Free,
            Content::Mutable => SlotState::Mutable,
            Content::Quarantined => SlotState::Quarantined,
            Content::Registered { shares: 0, .. } => SlotState::Inactive,
            Content::Registered { .. } => SlotState::Active,
            Content::Duplicate { .. } => SlotState::Duplicate,
            Content::Withdrawn { .. } => SlotState::Withdrawn,
        }
    }
}
