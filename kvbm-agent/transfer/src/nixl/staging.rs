use crate::backend::FetchFault;
use crate::limits::{
    READ_BLOCKS_MAX, READ_BYTES_MAX, STAGED_BLOCK_BYTES_MAX, STAGED_SIZES_MAX, STAGING_ALIGNMENT,
};
use kvasir_memory::nixl::Piece;
use kvasir_memory::{Arena, SlotLayout, StorageAllocator, SystemAllocator};
use kvasir_tiers::manager::Detached;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub(crate) type Pieces = Vec<Piece<Place>>;

/// Owner of a slot that NIXL reads into, until its transfer has ended.
#[derive(Debug)]
pub(crate) struct Place {
    kind: PlaceKind,
    _in_use: InUse,
}

/// Objects that must not be dropped while a transfer reads the owner's memory.
pub(crate) type InUse = Arc<dyn fmt::Debug + Send + Sync>;

#[derive(Debug)]
enum PlaceKind {
    /// A slot of the arena whose blocks sessions register.
    Slot(Box<Detached>),
    /// A slot of [`Staging`]. All slots of one transfer have the same size.
    Staged {
        /// The memory of the slot.
        arena: Arc<Arena>,
        /// Counts the slot as used.
        _permit: OwnedSemaphorePermit,
    },
}

impl Place {
    /// A slot of the arena whose blocks sessions register.
    pub(crate) fn of_slot(slot: Detached, in_use: &InUse) -> Self {
        Self { kind: PlaceKind::Slot(Box::new(slot)), _in_use: Arc::clone(in_use) }
    }

    /// Returns the session's slot, or None for a slot of [`Staging`].
    pub(crate) fn into_slot(self) -> Option<Detached> {
        match self.kind {
            PlaceKind::Slot(slot) => Some(*slot),
            PlaceKind::Staged { .. } => None,
        }
    }

    /// The memory of a slot of [`Staging`], or None for a session's slot.
    pub(super) const fn staging(&self) -> Option<&Arc<Arena>> {
        match &self.kind {
            PlaceKind::Slot(_) => None,
            PlaceKind::Staged { arena, .. } => Some(arena),
        }
    }
}

/// Staging memory for blocks of other sizes than this agent's blocks. All fetches share it, and wait if all its slots
/// are in use.
#[derive(Debug, Default)]
pub(super) struct Staging(Mutex<Sizes>);

#[derive(Debug, Default)]
struct Sizes {
    /// Memory by bytes per block.
    sizes: BTreeMap<usize, Size>,
    /// Number of calls of [`Sizes::size`].
    uses: u64,
}

/// Memory for blocks of one size.
#[derive(Debug, Clone)]
struct Size {
    arena: Arc<Arena>,
    /// A permit for each free slot. A permit is returned after its slot.
    free: Arc<Semaphore>,
    last_use: u64,
}

impl Size {
    fn is_idle(&self) -> bool {
        self.free.available_permits() == self.arena.layout().slots as usize
    }
}

impl Staging {
    /// Allocates staging slots for the first blocks at the addresses `at`: at least one slot, and at most half of all
    /// slots of this size, so that two fetches can read concurrently. Waits until enough slots are free.
    pub(super) async fn pieces(
        &self,
        bytes: usize,
        at: &[u64],
        in_use: &InUse,
    ) -> Result<Pieces, FetchFault> {
        let Size { arena, free, .. } = self.0.lock().size(bytes)?;
        let slots = arena.layout().slots;
        let wanted = u32::try_from(at.len()).unwrap_or(u32::MAX).min(slots.div_ceil(2));
        let permits = Arc::clone(&free).acquire_many_owned(wanted).await;
        let mut permits = permits
            .map_err(|_closed| FetchFault::NoRoom("the staging memory is closed".to_owned()))?;
        // The lock lets one fetch at a time take slots, so that each permit stands for a free slot.
        let _taking = self.0.lock();
        let mut pieces = Vec::with_capacity(wanted as usize);
        for (slot, &at) in (0..slots).filter_map(|slot| arena.write(slot).ok()).zip(at) {
            let Some(permit) = permits.split(1) else { break };
            let kind = PlaceKind::Staged { arena: Arc::clone(&arena), _permit: permit };
            let with = Place { kind, _in_use: Arc::clone(in_use) };
            pieces.push(Piece { slot, at, with });
        }
        Ok(pieces)
    }
}

impl Sizes {
    /// Returns the staging memory for blocks of `bytes` bytes, allocated at the first use. At [`STAGED_SIZES_MAX`]
    /// sizes, drops the memory of an idle size, and fails if all are in use.
    fn size(&mut self, bytes: usize) -> Result<Size, FetchFault> {
        if !(1..=STAGED_BLOCK_BYTES_MAX).contains(&bytes) {
            let text = format!(
                "its blocks have {bytes} bytes, and blocks of another layout may have at most {STAGED_BLOCK_BYTES_MAX} over NIXL"
            );
            return Err(FetchFault::Refused(text));
        }
        self.uses += 1;
        if let Some(size) = self.sizes.get_mut(&bytes) {
            size.last_use = self.uses;
            return Ok(size.clone());
        }
        if self.sizes.len() >= STAGED_SIZES_MAX {
            self.drop_idle()?;
        }
        let slots = (READ_BYTES_MAX / bytes).clamp(1, READ_BLOCKS_MAX);
        let arena = arena_of(bytes, slots)?;
        let free = Arc::new(Semaphore::new(slots));
        let size = Size { arena, free, last_use: self.uses };
        self.sizes.insert(bytes, size.clone());
        Ok(size)
    }

    /// Drops the memory that was not used for the longest time. Fails if all memory is in use.
    fn drop_idle(&mut self) -> Result<(), FetchFault> {
        let idle = self.sizes.iter().filter(|(_, size)| size.is_idle());
        let oldest = idle.min_by_key(|(_, size)| size.last_use).map(|(&bytes, _)| bytes);
        let oldest = oldest.ok_or_else(|| {
            let text =
                format!("blocks of {STAGED_SIZES_MAX} other sizes are being read: retry later");
            FetchFault::NoRoom(text)
        })?;
        self.sizes.remove(&oldest);
        Ok(())
    }
}

/// Allocates staging memory, which no other process maps.
fn arena_of(block_bytes: usize, slots: usize) -> Result<Arc<Arena>, FetchFault> {
    let refused = |error: &dyn ToString| FetchFault::NoRoom(error.to_string());
    let slots = u32::try_from(slots).unwrap_or(u32::MAX);
    let layout = SlotLayout::aligned(block_bytes, STAGING_ALIGNMENT, slots);
    let layout = layout.map_err(|error| refused(&error))?;
    let bytes = layout.bytes().map_err(|error| refused(&error))?;
    let region = SystemAllocator.allocate(bytes, STAGING_ALIGNMENT);
    let region = region.map_err(|error| refused(&error))?;
    Arena::new(region, layout).map_err(|error| refused(&error))
}

#[cfg(test)]
#[path = "staging_test.rs"]
mod tests;
