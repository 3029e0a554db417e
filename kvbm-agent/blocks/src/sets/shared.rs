use super::book::Book;
use super::state::{Access, Released, Set, below};
use super::{AccessError, BlockDescriptor, BlockSetLayout, BlockSetLimits, Fence, SetEnd};
use crate::identity::SlotId;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;

/// What all handles of a registry's sets share.
pub(super) struct Shared {
    pub(super) limits: BlockSetLimits,
    pub(super) epoch: u64,
    book: Mutex<Book>,
}

impl Shared {
    pub(super) fn new(epoch: u64, limits: BlockSetLimits) -> Arc<Self> {
        Arc::new(Self { limits, epoch, book: Mutex::new(Book::new(epoch, limits)) })
    }

    /// Works under the lock, and afterwards without it does what the work has released.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut Book, &mut Released) -> R) -> R {
        let mut released = Released::default();
        let result = work(&mut self.book.lock(), &mut released);
        released.finish();
        result
    }
}

/// Without its sets: they may be locked.
impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

/// Blocks of a set that somebody uses. Dropping it is the one way to give them back.
#[derive(Debug)]
pub(super) struct Taken {
    shared: Arc<Shared>,
    set: Arc<Set>,
    blocks: Vec<SlotId>,
    access: Access,
}

impl Taken {
    /// Takes all of `blocks`, or none.
    pub(super) fn new(
        shared: &Arc<Shared>,
        set: &Arc<Set>,
        blocks: &[SlotId],
        access: Access,
    ) -> Result<Arc<Self>, AccessError> {
        // One less, as this is one more: at most `handle_blocks_max`.
        below(
            "handle_blocks_max",
            blocks.len().saturating_sub(1),
            shared.limits.handle_blocks_max,
        )?;
        set.check_blocks(blocks)?;
        shared.with(|book, _| book.take(set, blocks, access))?;
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

/// A transfer of a set's blocks that is under way. While there is one, a set that has ended is quarantined: its id
/// names no other set, and its memory stays registered.
///
/// Drop it, or call [`TransferGuard::finish`], when nothing touches the memory any more, and not before.
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

    /// The blocks.
    #[must_use]
    pub fn blocks(&self) -> &[SlotId] {
        self.taken.blocks()
    }

    /// Whether they are read or written.
    #[must_use]
    pub fn access(&self) -> Access {
        self.taken.access
    }

    /// Where they lie.
    #[must_use]
    pub fn layout(&self) -> &BlockSetLayout {
        &self.taken.set.layout
    }

    /// What the peer that holds the memory must find exported still.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.layout().fence()
    }

    /// All regions of the blocks, by block in the order of the handle, layer and outer index.
    pub fn descriptors(&self) -> impl Iterator<Item = BlockDescriptor> + '_ {
        self.layout().descriptors(self.blocks())
    }

    /// Why the set is no more: stop the transfer, its bytes are worth nothing. None while the set is live.
    #[must_use]
    pub fn ended(&self) -> Option<SetEnd> {
        self.taken.set.end.get().copied()
    }

    /// The transfer has stopped. Bytes that it read are those of the set only if it was live to the end.
    ///
    /// # Errors
    /// [`SetEnd`] if the set ended before the transfer: what was read may be anything.
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
