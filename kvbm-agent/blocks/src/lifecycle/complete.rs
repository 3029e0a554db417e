use super::state::in_state;
use super::{Block, BlockRefused, RegisteredBlock};
use crate::identity::{BlockIdentity, Checksum, Priority};
use crate::store::{BlockInfo, Held, RegisterError, Registered};
use crate::tier::TierMarker;
use std::marker::PhantomData;
use std::sync::Arc;

/// A block in Complete: full, and only its owner sees it. Dropped, it is free again.
#[derive(Debug)]
#[must_use]
pub struct CompleteBlock<T> {
    pub(super) held: Held,
    identity: BlockIdentity,
    checksum: Option<Checksum>,
    priority: Priority,
    tier: PhantomData<fn() -> T>,
}

in_state!(CompleteBlock, Complete);

/// What became of a block that was registered.
#[derive(Debug)]
#[must_use]
pub enum Registration<T> {
    /// It is the first of its content.
    New(RegisteredBlock<T>),
    /// It keeps its slot, beside the first of its content, which queries find.
    Duplicate(RegisteredBlock<T>),
    /// Its slot is free again; this is the first of its content, in another slot.
    Existing(RegisteredBlock<T>),
}

impl<T> Registration<T> {
    /// The registered block.
    pub fn into_block(self) -> RegisteredBlock<T> {
        match self {
            Self::New(block) | Self::Duplicate(block) | Self::Existing(block) => block,
        }
    }
}

impl<T: TierMarker> CompleteBlock<T> {
    pub(super) const fn new(held: Held, identity: BlockIdentity) -> Self {
        Self { held, identity, checksum: None, priority: Priority(0), tier: PhantomData }
    }

    /// What it is.
    #[must_use]
    pub const fn identity(&self) -> &BlockIdentity {
        &self.identity
    }

    /// States the checksum of its bytes. It goes with the block to every tier.
    pub const fn with_checksum(mut self, checksum: Option<Checksum>) -> Self {
        self.checksum = checksum;
        self
    }

    /// States how much it is worth keeping; 0 if nobody does.
    pub const fn with_priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Complete → Registered: everyone finds it, and the event is published. Every byte must be in its slot.
    ///
    /// # Errors
    /// [`RegisterError`] with the block.
    pub fn register(self) -> Result<Registration<T>, BlockRefused<Self, RegisterError>> {
        let Self { identity, checksum, priority, .. } = self;
        let block = BlockInfo { slot: self.slot(), identity, checksum, priority };
        let registered = self.held.shared().lock().register(block);
        match registered {
            Ok(Registered::New) => Ok(Registration::New(RegisteredBlock::new(self.held, identity))),
            Ok(Registered::Duplicate) => {
                Ok(Registration::Duplicate(RegisteredBlock::new(self.held, identity)))
            }
            Ok(Registered::Existing(first)) => {
                let held = Held::new(Arc::clone(self.held.shared()), first.slot);
                Ok(Registration::Existing(RegisteredBlock::new(held, identity)))
            }
            Err(reason) => Err(BlockRefused { reason, block: self }),
        }
    }
}
