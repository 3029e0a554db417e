use crate::identity::{BlockIdentity, Checksum, Priority, SlotId};
use crate::lifecycle::{Block, RegisteredBlock};
use crate::tier::{BlockTier, Device, Disk, Host, TierMarker, Volume};

/// A registered block of any tier.
#[derive(Debug, Clone)]
#[must_use]
pub enum TierBlock {
    /// A block in the accelerator's memory.
    Device(RegisteredBlock<Device>),
    /// A block in host memory.
    Host(RegisteredBlock<Host>),
    /// A block on disk.
    Disk(RegisteredBlock<Disk>),
    /// A block in a volume.
    Volume(RegisteredBlock<Volume>),
}

impl TierBlock {
    /// The block's tier.
    #[must_use]
    pub const fn tier(&self) -> BlockTier {
        match self {
            Self::Device(_) => BlockTier::Device,
            Self::Host(_) => BlockTier::Host,
            Self::Disk(_) => BlockTier::Disk,
            Self::Volume(_) => BlockTier::Volume,
        }
    }

    /// The block's slot in its tier.
    #[must_use]
    pub fn slot(&self) -> SlotId {
        match self {
            Self::Device(block) => block.slot(),
            Self::Host(block) => block.slot(),
            Self::Disk(block) => block.slot(),
            Self::Volume(block) => block.slot(),
        }
    }

    /// Checksum of the block's bytes, if known.
    #[must_use]
    pub fn checksum(&self) -> Option<Checksum> {
        match self {
            Self::Device(block) => block.checksum(),
            Self::Host(block) => block.checksum(),
            Self::Disk(block) => block.checksum(),
            Self::Volume(block) => block.checksum(),
        }
    }

    /// The block's eviction priority; `None` if it was withdrawn.
    #[must_use]
    pub fn priority(&self) -> Option<Priority> {
        match self {
            Self::Device(block) => block.priority(),
            Self::Host(block) => block.priority(),
            Self::Disk(block) => block.priority(),
            Self::Volume(block) => block.priority(),
        }
    }

    /// Ends the registration immediately, because the bytes are wrong. Returns whether the block was registered.
    pub fn withdraw(&self) -> bool {
        match self {
            Self::Device(block) => block.withdraw(),
            Self::Host(block) => block.withdraw(),
            Self::Disk(block) => block.withdraw(),
            Self::Volume(block) => block.withdraw(),
        }
    }

    /// The block's identity.
    #[must_use]
    pub const fn identity(&self) -> &BlockIdentity {
        match self {
            Self::Device(block) => block.identity(),
            Self::Host(block) => block.identity(),
            Self::Disk(block) => block.identity(),
            Self::Volume(block) => block.identity(),
        }
    }
}

/// A tier whose blocks convert to and from [`TierBlock`].
pub trait AnyTier: TierMarker {
    /// Converts a block of this tier to a [`TierBlock`].
    fn wrap(block: RegisteredBlock<Self>) -> TierBlock
    where
        Self: Sized;

    /// Converts back; `None` if the block is in another tier.
    fn unwrap(block: TierBlock) -> Option<RegisteredBlock<Self>>
    where
        Self: Sized;
}

macro_rules! any_tier {
    ($($tier:ident),*) => {$(
        impl AnyTier for $tier {
            fn wrap(block: RegisteredBlock<Self>) -> TierBlock {
                TierBlock::$tier(block)
            }

            fn unwrap(block: TierBlock) -> Option<RegisteredBlock<Self>> {
                if let TierBlock::$tier(block) = block { Some(block) } else { None }
            }
        }
    )*};
}

any_tier!(Device, Host, Disk, Volume);
