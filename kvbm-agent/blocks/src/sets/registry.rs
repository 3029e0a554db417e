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

/// Sets that this process exports, and those of peers that it has imported.
///
/// Whose a set is, its bytes do not say: the connection that they came over does. Clones share everything.
#[derive(Debug, Clone)]
pub struct BlockSetRegistry {
    shared: Arc<Shared>,
}

impl BlockSetRegistry {
    /// An empty registry. `epoch` must be greater than at every earlier start of this owner, as a counter on disk or
    /// the wall clock in nanoseconds is: what was exported before is fenced by it.
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
    /// [`ExportError`] if the description contradicts itself, the id is in use or quarantined, a limit is reached, or
    /// the backend refuses. Nothing stays registered then.
    pub fn export(
        &self,
        description: BlockSetDescription,
        registrar: &Arc<dyn Registrar>,
    ) -> Result<BlockSet, ExportError> {
        let id = description.id;
        self.shared.with(|book, _| book.check_export(id))?;
        // Before the backend sees it. The real fence is known under the lock.
        let unfenced = Fence { epoch: self.shared.epoch, export: 0 };
        BlockSetLayout::new(description.clone(), unfenced)?;
        let mut regions = register(&description.memory, registrar)?;
        let set = self.shared.with(|book, _| book.export(description, &mut regions))?;
        Ok(BlockSet { shared: Arc::clone(&self.shared), set })
    }

    /// A transfer of blocks that are exported here, for a peer that states the fence that it knows. Blocks that one
    /// transfer writes no other one reads or writes meanwhile.
    ///
    /// # Errors
    /// [`AccessError`] if no set with this id and fence is exported, a block does not exist, is named twice or is in
    /// use, or too many transfers are under way.
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

    /// Imports a set that `owner` has sent. A newer fence ends the older set of the same id, a newer epoch all older
    /// sets of the owner, even if the set itself is refused. The same bytes again give the same set.
    ///
    /// # Errors
    /// [`ImportError`] if the bytes are no layout, the set is fenced, an older one is quarantined, or a limit is reached.
    pub fn import_remote_blockset(
        &self,
        owner: &WorkerId,
        serialized: &SerializedBlockLayout,
    ) -> Result<RemoteBlockSet, ImportError> {
        let layout = serialized.deserialize()?;
        let set = self.shared.with(|book, released| book.import(owner, layout, released))?;
        Ok(RemoteBlockSet::new(Arc::clone(&self.shared), set, owner.clone()))
    }

    /// The owner's live set of an id.
    #[must_use]
    pub fn remote_blockset(&self, owner: &WorkerId, id: BlockSetId) -> Option<RemoteBlockSet> {
        let set = self.shared.with(|book, _| book.imported(owner, id))?;
        Some(RemoteBlockSet::new(Arc::clone(&self.shared), set, owner.clone()))
    }

    /// The owner says that its set of this fence is exported no more: it ends, and so does an older one of the id.
    pub fn withdraw(&self, owner: &WorkerId, id: BlockSetId, fence: Fence) {
        self.shared.with(|book, released| book.withdraw(owner, id, fence, released));
    }

    /// The owner is not connected any more: its sets end. When it is back in the same incarnation, its sets may be
    /// imported again.
    pub fn disconnect(&self, owner: &WorkerId) {
        self.shared.with(|book, released| book.disconnect(owner, released));
    }

    /// Forgets the fences of an owner that will not be back. Returns false, and does nothing, while one of its sets is
    /// live or quarantined.
    #[must_use]
    pub fn forget(&self, owner: &WorkerId) -> bool {
        self.shared.with(|book, _| book.forget(owner))
    }

    /// Whether no ended set of this id is quarantined, of a peer or, with none, of this process. If one is, `waker` is
    /// woken when its transfers have stopped, and may be woken before.
    #[must_use]
    pub fn poll_released(&self, owner: Option<&WorkerId>, id: BlockSetId, waker: &Waker) -> bool {
        self.shared.with(|book, released| book.poll(owner, id, waker, released))
    }

    /// Counters and gauges.
    #[must_use]
    pub fn stats(&self) -> BlockSetStats {
        self.shared.with(|book, _| book.stats())
    }

    /// Checks what always holds.
    #[cfg(test)]
    pub(super) fn validate(&self) {
        self.shared.with(|book, _| book.validate());
    }

    /// Whether no block of any set is in use.
    #[cfg(test)]
    pub(super) fn is_unused(&self) -> bool {
        self.shared.with(|book, _| book.is_unused())
    }
}

/// Registers all regions, or none.
fn register(
    memory: &SetMemory,
    registrar: &Arc<dyn Registrar>,
) -> Result<Vec<RegisteredRegion>, ExportError> {
    let register = |region| RegisteredRegion::new(registrar, &region).map_err(ExportError::from);
    memory.regions().map(register).collect()
}

/// A set that this process exports. Dropping it withdraws the set at once. Its memory is deregistered when the last
/// transfer of it has stopped, and its id may be used again then.
#[must_use]
pub struct BlockSet {
    shared: Arc<Shared>,
    set: Arc<Set>,
}

impl BlockSet {
    /// What is exported.
    #[must_use]
    pub fn layout(&self) -> &BlockSetLayout {
        &self.set.layout
    }

    /// What a peer imports.
    #[must_use]
    pub fn serialize(&self) -> SerializedBlockLayout {
        self.layout().serialize()
    }
}

impl Drop for BlockSet {
    fn drop(&mut self) {
        let set = &self.set;
        self.shared.with(|book, released| book.end(set, SetEnd::Withdrawn, released));
    }
}

impl fmt::Debug for BlockSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockSet").field("set", &self.set).finish_non_exhaustive()
    }
}
