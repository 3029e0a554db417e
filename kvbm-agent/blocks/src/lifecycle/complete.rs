use super::state::in_state;
use super::{Block, BlockRefused, RegisteredBlock};
use crate::identity::{BlockIdentity, Checksum, Priority};
use crate::store::{BlockInfo, Held, RegisterError, Registered};
use crate::tier::TierMarker;
use std::marker::PhantomData;
use std::sync::Arc;

/// A full block that only its owner can access (state Complete). Dropping it frees the slot.
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

/// The result of registering a block.
#[derive(Debug)]
#[must_use]
pub enum Registration<T> {
    /// The block is the first with its content.
    New(RegisteredBlock<T>),
    /// Another block has the same content. This one keeps its slot as a duplicate; queries find the first one.
    Duplicate(RegisteredBlock<T>),
    /// Another block has the same content. This one's slot was freed, and the handle refers to the first block.
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

    /// The block's identity.
    #[must_use]
    pub const fn identity(&self) -> &BlockIdentity {
        &self.identity
    }

    /// Sets the checksum of the block's bytes. Copies into other tiers keep it.
    pub const fn with_checksum(mut self, checksum: Option<Checksum>) -> Self {
        self.checksum = checksum;
        self
    }

    /// Sets the eviction priority; the default is 0.
    pub const fn with_priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Complete → Registered: makes the block findable and publishes the event. All bytes must be in the slot.
    ///
    /// # Errors
    /// [`RegisterError`], together with the block.
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
