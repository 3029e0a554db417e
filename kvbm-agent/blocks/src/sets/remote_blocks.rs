use super::shared::{Shared, Taken, TransferGuard};
use super::state::{Access, Set};
use super::{AccessError, BlockDescriptor, BlockSetLayout};
use crate::identity::SlotId;
use kvasir_proto::types::WorkerId;
use std::fmt;
use std::sync::Arc;

/// A view of a peer's set. Cloning or dropping it has no effect on the set.
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

    /// The set's owner.
    #[must_use]
    pub const fn owner(&self) -> &WorkerId {
        &self.owner
    }

    /// Layout of the set's blocks in the owner's memory.
    #[must_use]
    pub fn layout(&self) -> &BlockSetLayout {
        &self.set.layout
    }

    /// Whether the set is valid: not fenced or withdrawn, and its owner is connected.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.set.is_live()
    }

    /// Returns a handle for reading blocks. Any number of handles may read a block, unless it is being written.
    ///
    /// # Errors
    /// [`AccessError`] if the set has ended, or a block does not exist, is listed twice or is being written.
    pub fn get_remote_blocks(&self, blocks: &[SlotId]) -> Result<RemoteBlocks, AccessError> {
        let taken = Taken::new(&self.shared, &self.set, blocks, Access::Read)?;
        Ok(RemoteBlocks { taken })
    }

    /// Returns a handle for writing blocks, exclusive within this process. Other processes are not excluded: their
    /// agents must agree on one writer.
    ///
    /// # Errors
    /// [`AccessError`] if the set has ended, or a block does not exist, is listed twice or is in use.
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

/// A handle for reading blocks of a peer's set. It does not keep the set alive: when the set ends, its methods return
/// errors.
#[derive(Debug)]
pub struct RemoteBlocks {
    taken: Arc<Taken>,
}

/// A handle for writing blocks of a peer's set. It does not keep the set alive: when the set ends, its methods return
/// errors.
#[derive(Debug)]
pub struct RemoteBlocksMut {
    taken: Arc<Taken>,
}

macro_rules! handle {
    ($name:ident, $begin:ident, $what:literal) => {
        impl $name {
            /// The blocks, in the requested order.
            #[must_use]
            pub fn blocks(&self) -> &[SlotId] {
                self.taken.blocks()
            }

            /// Layout of the blocks in the owner's memory.
            ///
            /// # Errors
            /// [`AccessError::Ended`] if the set has ended.
            pub fn layout(&self) -> Result<&BlockSetLayout, AccessError> {
                self.taken.set().check_live()?;
                Ok(&self.taken.set().layout)
            }

            /// All regions of the blocks, by block, layer and outer index. They are valid while the set is live. A
            /// transfer gets them from its [`TransferGuard`].
            ///
            /// # Errors
            /// [`AccessError::Ended`] if the set has ended.
            pub fn descriptors(
                &self,
            ) -> Result<impl Iterator<Item = BlockDescriptor> + '_, AccessError> {
                Ok(self.layout()?.descriptors(self.blocks()))
            }

            #[doc = $what]
            /// Begins a transfer. The blocks stay in use until it has ended, even if this handle is dropped earlier.
            ///
            /// # Errors
            /// [`AccessError`] if the set has ended, or too many transfers are running.
            pub fn $begin(&self) -> Result<TransferGuard, AccessError> {
                TransferGuard::new(Arc::clone(&self.taken))
            }
        }
    };
}

handle!(RemoteBlocks, begin_read, "Begins a transfer from the peer.");
handle!(RemoteBlocksMut, begin_write, "Begins a transfer to the peer.");
