use super::shared::{Shared, Taken, TransferGuard};
use super::state::{Access, Set};
use super::{AccessError, BlockDescriptor, BlockSetLayout};
use crate::identity::SlotId;
use kvasir_proto::types::WorkerId;
use std::fmt;
use std::sync::Arc;

/// A peer's set. It is a view: cloning and dropping it changes nothing.
#[derive(Clone)]
pub struct RemoteBlockSet {
    shared: Arc<Shared>,
    set: Arc<Set>,
    owner: WorkerId,
}

impl RemoteBlockSet {
    pub(super) const fn new(shared: Arc<Shared>, set: Arc<Set>, owner: WorkerId) -> Self {
        Self { shared, set, owner }
    }

    /// Whose it is.
    #[must_use]
    pub const fn owner(&self) -> &WorkerId {
        &self.owner
    }

    /// Where its blocks lie in the owner's memory.
    #[must_use]
    pub fn layout(&self) -> &BlockSetLayout {
        &self.set.layout
    }

    /// Whether the set is neither fenced nor withdrawn, and its owner is there.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.set.is_live()
    }

    /// Blocks to be read. Any number of handles may have the same blocks, unless one may write them.
    ///
    /// # Errors
    /// [`AccessError`] if the set is no more, or a block does not exist, is named twice or is being written.
    pub fn get_remote_blocks(&self, blocks: &[SlotId]) -> Result<RemoteBlocks, AccessError> {
        let taken = Taken::new(&self.shared, &self.set, blocks, Access::Read)?;
        Ok(RemoteBlocks { taken })
    }

    /// Blocks to be written. No other handle of this process has one of them. Other processes may: their agents agree
    /// by who is told to write, not here.
    ///
    /// # Errors
    /// [`AccessError`] if the set is no more, or a block does not exist, is named twice or is in use.
    pub fn get_remote_blocks_mutable(
        &self,
        blocks: &[SlotId],
    ) -> Result<RemoteBlocksMut, AccessError> {
        let taken = Taken::new(&self.shared, &self.set, blocks, Access::Write)?;
        Ok(RemoteBlocksMut { taken })
    }
}

impl fmt::Debug for RemoteBlockSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("RemoteBlockSet");
        out.field("owner", &self.owner).field("set", &self.set).finish_non_exhaustive()
    }
}

/// A handle to blocks of a peer's set for reading. It does not keep the set alive: when the set ends, its methods return errors.
#[derive(Debug)]
pub struct RemoteBlocks {
    taken: Arc<Taken>,
}

/// A handle to blocks of a peer's set for writing. It does not keep the set alive: when the set ends, its methods return errors.
#[derive(Debug)]
pub struct RemoteBlocksMut {
    taken: Arc<Taken>,
}

macro_rules! handle {
    ($name:ident, $begin:ident, $what:literal) => {
        impl $name {
            /// The blocks, in the order in which they were asked for.
            #[must_use]
            pub fn blocks(&self) -> &[SlotId] {
                self.taken.blocks()
            }

            /// Where they lie in the owner's memory.
            ///
            /// # Errors
            /// [`AccessError::Ended`] if the set is no more.
            pub fn layout(&self) -> Result<&BlockSetLayout, AccessError> {
                self.taken.set().check_live()?;
                Ok(&self.taken.set().layout)
            }

            /// All regions of the blocks, by block, layer and outer index. They hold as long as the set is live: a
            /// transfer takes them from its [`TransferGuard`].
            ///
            /// # Errors
            /// [`AccessError::Ended`] if the set is no more.
            pub fn descriptors(
                &self,
            ) -> Result<impl Iterator<Item = BlockDescriptor> + '_, AccessError> {
                Ok(self.layout()?.descriptors(self.blocks()))
            }

            #[doc = $what]
            /// The blocks stay taken until it has ended, even if the handle is dropped before.
            ///
            /// # Errors
            /// [`AccessError`] if the set is no more, or too many transfers are under way.
            pub fn $begin(&self) -> Result<TransferGuard, AccessError> {
                TransferGuard::new(Arc::clone(&self.taken))
            }
        }
    };
}

handle!(RemoteBlocks, begin_read, "Begins a transfer from the peer.");
handle!(RemoteBlocksMut, begin_write, "Begins a transfer to the peer.");
