use super::book::Book;
use super::state::{Access, Released, Set, below};
use super::{AccessError, BlockDescriptor, BlockSetLayout, BlockSetLimits, Fence, SetEnd};
use crate::identity::SlotId;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;

/// State shared by all handles of a registry's sets.
pub(super) struct Shared {
    pub(super) limits: BlockSetLimits,
    pub(super) epoch: u64,
    book: Mutex<Book>,
}

impl Shared {
    pub(super) fn new(epoch: u64, limits: BlockSetLimits) -> Arc<Self> {
        Arc::new(Self { limits, epoch, book: Mutex::new(Book::new(epoch, limits)) })
    }

    /// Runs `work` under the lock. After unlocking, deregisters and wakes everything that `work` released.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut Book, &mut Released) -> R) -> R {
        let mut released = Released::default();
        let result = work(&mut self.book.lock(), &mut released);
        released.finish();
        result
    }
}

/// Omits the sets, because they may be locked.
impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

/// Blocks of a set that are in use. Only its drop releases them.
#[derive(Debug)]
pub(super) struct Taken {
    shared: Arc<Shared>,
    set: Arc<Set>,
    blocks: Vec<SlotId>,
    access: Access,
}

impl Taken {
    /// Takes all `blocks` of a set. Fails, and takes no block, if one is out of range, listed twice or in use, or there
    /// are too many.
    pub(super) fn new(
        shared: &Arc<Shared>,
        set: &Arc<Set>,
        blocks: &[SlotId],
        access: Access,
    ) -> Result<Arc<Self>, AccessError> {
        // `below` checks the count before one is added, hence one less: at most `handle_blocks_max` blocks.
        below(
            "handle_blocks_max",
            blocks.len().saturating_sub(1),
            shared.limits.handle_blocks_max,
        )?;
        set.check_blocks(blocks)?;
        shared.with(|book, _| book.acquire_blocks(set, blocks, access))?;
        let shared = Arc::clone(shared);
        let set = Arc::clone(set);
        Ok(Arc::new(Self { shared, set, blocks: blocks.to_vec(), access }))
    }

    pub(super) fn blocks(&self) -> &[SlotId] {
        &self.blocks
    }

    pub(super) fn set(&self) -> &Set {
        &self.set
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.shared.with(|book, _| book.give_back(&self.set, &self.blocks));
    }
}

/// A running transfer of a set's blocks. While it exists, an ended set stays quarantined: its id is not reused, and its
/// memory stays registered.
///
/// Drop it, or call [`TransferGuard::finish`], only when nothing accesses the memory any more.
#[derive(Debug)]
#[must_use]
pub struct TransferGuard {
    taken: Arc<Taken>,
}

impl TransferGuard {
    pub(super) fn new(taken: Arc<Taken>) -> Result<Self, AccessError> {
        taken.shared.with(|book, _| book.begin_transfer(&taken.set))?;
        Ok(Self { taken })
    }

    /// The transferred blocks.
    #[must_use]
    pub fn blocks(&self) -> &[SlotId] {
        self.taken.blocks()
    }

    /// Whether the blocks are read or written.
    #[must_use]
    pub fn access(&self) -> Access {
        self.taken.access
    }

    /// Layout of the set.
    #[must_use]
    pub fn layout(&self) -> &BlockSetLayout {
        &self.taken.set.layout
    }

    /// The fence that must still be exported by the peer that owns the memory.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.layout().fence()
    }

    /// All regions of the blocks: in the handle's order of blocks, then by layer and outer index.
    pub fn descriptors(&self) -> impl Iterator<Item = BlockDescriptor> + '_ {
        self.layout().descriptors(self.blocks())
    }

    /// Why the set has ended; `None` while it is live. If it has ended, stop the transfer: its bytes are invalid.
    #[must_use]
    pub fn ended(&self) -> Option<SetEnd> {
        self.taken.set.end.get().copied()
    }

    /// Reports that the transfer has stopped. The bytes read are valid only if the set was live until then.
    ///
    /// # Errors
    /// [`SetEnd`] if the set ended during the transfer: the bytes read are invalid.
    pub fn finish(self) -> Result<(), SetEnd> {
        self.taken.set.check_live()
    }
}

impl Drop for TransferGuard {
    fn drop(&mut self) {
        let taken = &self.taken;
        taken.shared.with(|book, released| book.end_transfer(&taken.set, released));
    }
}
