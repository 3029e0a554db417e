use super::registrar::RegisteredRegion;
use super::remote_blocks::RemoteBlockSet;
use super::shared::{Shared, Taken, TransferGuard};
use super::state::{Access, Set};
use super::{AccessError, BlockSetDescription, BlockSetId, BlockSetLayout, BlockSetLimits};
use super::{BlockSetStats, ExportError, Fence, ImportError, Registrar, SerializedBlockLayout};
use super::{SetEnd, SetMemory};
use crate::identity::SlotId;
use kvasir_proto::types::WorkerId;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;

/// The sets that this process exports, and the sets that it has imported from peers.
///
/// The serialized bytes do not name a set's owner. The connection determines it. Clones share all state.
#[derive(Debug, Clone)]
pub struct BlockSetRegistry {
    shared: Arc<Shared>,
}

impl BlockSetRegistry {
    /// Creates an empty registry. `epoch` must be greater than at every earlier start of this owner, because it fences
    /// earlier exports. Use a counter on disk or the wall clock in nanoseconds.
    #[must_use]
    pub fn new(epoch: u64, limits: BlockSetLimits) -> Self {
        Self { shared: Shared::new(epoch, limits) }
    }

    /// The epoch of the sets that this process exports.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.shared.epoch
    }

    /// Registers a set's memory with the backend, and exports the set until the handle is dropped.
    ///
    /// # Errors
    /// [`ExportError`] if the description is inconsistent, the id is in use or quarantined, a limit is exceeded, or the
    /// backend refuses. All regions are deregistered in this case.
    pub fn export(
        &self,
        description: BlockSetDescription,
        registrar: &Arc<dyn Registrar>,
    ) -> Result<BlockSet, ExportError> {
        let id = description.id;
        self.shared.with(|book, _| book.check_export(id))?;
        // Checks the description before the backend receives it. The real fence is assigned under the lock.
        let unfenced = Fence { epoch: self.shared.epoch, export: 0 };
        BlockSetLayout::new(description.clone(), unfenced)?;
        let mut regions = register(&description.memory, registrar)?;
        let set = self.shared.with(|book, _| book.export(description, &mut regions))?;
        Ok(BlockSet { shared: Arc::clone(&self.shared), set })
    }

    /// Begins a transfer of exported blocks for a peer, which states the fence of the set. A block that one transfer
    /// writes is not read or written by another transfer at the same time.
    ///
    /// # Errors
    /// [`AccessError`] if no set with this id and fence is exported, or too many transfers are running. Also if a block
    /// does not exist, is listed twice or is in use.
    pub fn serve(
        &self,
        id: BlockSetId,
        fence: Fence,
        blocks: &[SlotId],
        access: Access,
    ) -> Result<TransferGuard, AccessError> {
        let set = self.shared.with(|book, _| book.exported(id, fence))?;
        TransferGuard::new(Taken::new(&self.shared, &set, blocks, access)?)
    }

    /// Imports a set that `owner` has sent. A newer fence ends the older set with the same id. A newer epoch ends all
    /// older sets of the owner. Both apply even if the set itself is refused. Importing the same bytes again returns
    /// the same set.
    ///
    /// # Errors
    /// [`ImportError`] if the bytes are not a valid layout, the set is fenced, an older set is quarantined, or a limit
    /// is exceeded.
    pub fn import_remote_blockset(
        &self,
        owner: &WorkerId,
        serialized: &SerializedBlockLayout,
    ) -> Result<RemoteBlockSet, ImportError> {
        let layout = serialized.deserialize()?;
        let set = self.shared.with(|book, released| book.import(owner, layout, released))?;
        Ok(RemoteBlockSet::new(Arc::clone(&self.shared), set, owner.clone()))
    }

    /// The owner's live set with this id.
    #[must_use]
    pub fn remote_blockset(&self, owner: &WorkerId, id: BlockSetId) -> Option<RemoteBlockSet> {
        let set = self.shared.with(|book, _| book.imported(owner, id))?;
        Some(RemoteBlockSet::new(Arc::clone(&self.shared), set, owner.clone()))
    }

    /// Ends the set with this id and fence, and older sets with this id: the owner no longer exports them.
    pub fn withdraw(&self, owner: &WorkerId, id: BlockSetId, fence: Fence) {
        self.shared.with(|book, released| book.withdraw(owner, id, fence, released));
    }

    /// Ends all sets of a disconnected owner. If the owner reconnects in the same incarnation, its sets can be imported
    /// again.
    pub fn disconnect(&self, owner: &WorkerId) {
        self.shared.with(|book, released| book.disconnect(owner, released));
    }

    /// Removes the fences of an owner that will not return. Returns false, and does nothing, while one of its sets is
    /// live or quarantined.
    #[must_use]
    pub fn forget(&self, owner: &WorkerId) -> bool {
        self.shared.with(|book, _| book.forget(owner))
    }

    /// Whether no ended set with this id is quarantined. `owner` is the peer, or `None` for this process. Otherwise
    /// `waker` is woken when its transfers have stopped, or earlier.
    #[must_use]
    pub fn poll_released(&self, owner: Option<&WorkerId>, id: BlockSetId, waker: &Waker) -> bool {
        self.shared.with(|book, released| book.poll(owner, id, waker, released))
    }

    /// Counters and gauges.
    #[must_use]
    pub fn stats(&self) -> BlockSetStats {
        self.shared.with(|book, _| book.stats())
    }

    /// Checks the invariants.
    #[cfg(test)]
    pub(super) fn validate(&self) {
        self.shared.with(|book, _| book.validate());
    }

    /// Whether no blocks are in use.
    #[cfg(test)]
    pub(super) fn is_unused(&self) -> bool {
        self.shared.with(|book, _| book.is_unused())
    }
}

/// Registers all regions. On an error, no region stays registered.
fn register(
    memory: &SetMemory,
    registrar: &Arc<dyn Registrar>,
) -> Result<Vec<RegisteredRegion>, ExportError> {
    let register = |region| RegisteredRegion::new(registrar, &region).map_err(ExportError::from);
    memory.regions().map(register).collect()
}

/// A set that this process exports. Dropping it withdraws the set immediately. When its last transfer has stopped, its
/// memory is deregistered and its id can be used again.
#[must_use]
pub struct BlockSet {
    shared: Arc<Shared>,
    set: Arc<Set>,
}

impl BlockSet {
    /// The layout of the set.
    #[must_use]
    pub fn layout(&self) -> &BlockSetLayout {
        &self.set.layout
    }

    /// The description that a peer imports.
    #[must_use]
    pub fn serialize(&self) -> SerializedBlockLayout {
        self.layout().serialize()
    }
}

impl Drop for BlockSet {
    fn drop(&mut self) {
        let set = &self.set;
        self.shared.with(|book, released| book.end_set(set, SetEnd::Withdrawn, released));
    }
}

impl fmt::Debug for BlockSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockSet").field("set", &self.set).finish_non_exhaustive()
    }
}
