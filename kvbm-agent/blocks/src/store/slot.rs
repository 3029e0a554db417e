use crate::events::RegistrationHandle;
use crate::identity::{BlockIdentity, Checksum, Priority, SlotId};

/// A block and its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockInfo {
    /// The block's slot.
    pub slot: SlotId,
    /// The block's identity.
    pub identity: BlockIdentity,
    /// Checksum of the block's bytes, if known.
    pub checksum: Option<Checksum>,
    /// The eviction priority.
    pub priority: Priority,
}

/// A block that was evicted.
pub type Evicted = BlockInfo;

/// The state of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SlotState {
    /// Unused: a block in Reset without an owner.
    Free,
    /// Being filled by one owner: a block in Reset, Partial or Complete.
    Mutable,
    /// Possibly being written by a transfer.
    Quarantined,
    /// A registered block that is in use.
    Active,
    /// A registered block that is not in use: it can be found and evicted.
    Inactive,
    /// A second block of the same content, in use.
    Duplicate,
    /// A block that was withdrawn while in use: it can no longer be found.
    Withdrawn,
}

/// The content of a slot.
#[derive(Debug)]
pub(super) enum Content {
    Free,
    Mutable,
    Quarantined,
    Registered { _registration: RegistrationHandle, block: BlockInfo, shares: u32 },
    Duplicate { primary: SlotId, block: BlockInfo, shares: u32 },
    Withdrawn { shares: u32 },
}

/// A slot and its generation.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) content: Content,
    /// Incremented when a registered block leaves the slot, so that weak handles detect it.
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
