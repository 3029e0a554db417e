//! The tier that engines read and write: the nearest configured one.

use crate::checksum::{Checksum, Summing};
use kvasir_blocks::lifecycle::{Block, BlockRefused};
use kvasir_blocks::plan::AnyTier;
use kvasir_blocks::{
    BlockIdentity, BlockPool, BlockTier, Device, Exhausted, Host, KvBlockManagerState,
    MutableBlock, Priority, RegisterError, Registration, SlotId, TierBlock,
};
use kvasir_memory::{AccessError, Arena, ReadSlot, WriteSlot};
use kvasir_proto::types::SequenceHash;
use std::ops::Range;
use std::sync::Arc;

/// Bytes copied at a time if a slot is not accessible as a slice.
const PIECE_BYTES: usize = 16 << 10;
const ZEROS: [u8; PIECE_BYTES] = [0; PIECE_BYTES];

/// The result of committing a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CommitKind {
    /// The block is the first with its content, in its own slot.
    New,
    /// Another block has the same content. This one keeps its slot as a duplicate; others find the first one.
    Duplicate,
    /// Another block has the same content. This one's slot was freed, and the first block is used.
    Existing,
}

/// A slot of the engines' tier that its owner fills.
#[derive(Debug)]
pub(super) enum Fresh {
    Device(MutableBlock<Device>),
    Host(MutableBlock<Host>),
}

/// Why a block was not registered.
#[derive(Debug)]
pub(super) enum Refused {
    Identity,
    Register(RegisterError),
}

#[derive(Debug)]
enum Pool {
    Device(BlockPool<Device>),
    Host(BlockPool<Host>),
}

/// The engines' tier: pool and memory.
#[derive(Debug)]
pub(super) struct EngineMemory {
    pool: Pool,
    pub(super) arena: Arc<Arena>,
    /// Ranges of a slot that belong to no region of a block.
    padding: Vec<Range<usize>>,
}

impl EngineMemory {
    /// Returns the memory that engines use: device memory if configured, else host memory, or `None` if neither is.
    pub(super) fn new(
        state: &KvBlockManagerState,
        device: Option<&Arc<Arena>>,
        host: Option<&Arc<Arena>>,
    ) -> Option<Self> {
        let (pool, arena) = match (state.device(), state.host()) {
            (Some(pool), _) => (Pool::Device(pool.clone()), device?),
            (None, Some(pool)) => (Pool::Host(pool.clone()), host?),
            (None, None) => return None,
        };
        let index = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
        let padding = state.block().padding().into_iter();
        let padding = padding.map(|at| index(at.start)..index(at.end)).collect();
        Some(Self { pool, arena: Arc::clone(arena), padding })
    }

    pub(super) const fn tier(&self) -> BlockTier {
        match self.pool {
            Pool::Device(_) => BlockTier::Device,
            Pool::Host(_) => BlockTier::Host,
        }
    }

    /// Whether slots have padding.
    pub(super) const fn has_padding(&self) -> bool {
        !self.padding.is_empty()
    }

    /// Zeroes a slot's padding, so that equal blocks have equal bytes.
    pub(super) fn clear_padding(&self, slot: &mut WriteSlot) -> Result<(), AccessError> {
        for range in &self.padding {
            for at in range.clone().step_by(PIECE_BYTES) {
                let bytes = PIECE_BYTES.min(range.end - at);
                slot.write(at, ZEROS.get(..bytes).unwrap_or_default())?;
            }
        }
        Ok(())
    }

    /// Allocates `count` free slots for engines.
    pub(super) fn allocate(&self, count: usize) -> Result<Vec<Fresh>, Exhausted> {
        Ok(match &self.pool {
            Pool::Device(pool) => {
                pool.get_mutable_blocks(count)?.blocks.into_iter().map(Fresh::Device).collect()
            }
            Pool::Host(pool) => {
                pool.get_mutable_blocks(count)?.blocks.into_iter().map(Fresh::Host).collect()
            }
        })
    }

    /// Returns the leading blocks that are in this tier. The handles keep them in use.
    pub(super) fn match_prefix(&self, sequences: &[SequenceHash]) -> Vec<TierBlock> {
        match &self.pool {
            Pool::Device(pool) => {
                pool.match_prefix(sequences).into_iter().map(Device::wrap).collect()
            }
            Pool::Host(pool) => pool.match_prefix(sequences).into_iter().map(Host::wrap).collect(),
        }
    }
}

impl Fresh {
    pub(super) fn slot(&self) -> SlotId {
        match self {
            Self::Device(block) => block.slot(),
            Self::Host(block) => block.slot(),
        }
    }

    /// Registers the block, whose bytes are in its slot. If the registration is refused, the error returns the block.
    pub(super) fn register(
        self,
        identity: BlockIdentity,
        checksum: Checksum,
        priority: Priority,
    ) -> Result<(CommitKind, TierBlock), (Refused, Self)> {
        let checksum = kvasir_blocks::Checksum(checksum.0);
        match self {
            Self::Device(block) => register(block, identity, checksum, priority)
                .map_err(|(refused, block)| (refused, Self::Device(block))),
            Self::Host(block) => register(block, identity, checksum, priority)
                .map_err(|(refused, block)| (refused, Self::Host(block))),
        }
    }
}

/// Completes and registers a block. If it is refused, the error returns the block.
fn register<T: AnyTier>(
    block: MutableBlock<T>,
    identity: BlockIdentity,
    checksum: kvasir_blocks::Checksum,
    priority: Priority,
) -> Result<(CommitKind, TierBlock), (Refused, MutableBlock<T>)> {
    let complete = block.complete(identity);
    let complete = complete.map_err(|BlockRefused { block, .. }| (Refused::Identity, block))?;
    let complete = complete.with_checksum(Some(checksum)).with_priority(priority);
    match complete.register() {
        Ok(Registration::New(block)) => Ok((CommitKind::New, T::wrap(block))),
        Ok(Registration::Duplicate(block)) => Ok((CommitKind::Duplicate, T::wrap(block))),
        Ok(Registration::Existing(block)) => Ok((CommitKind::Existing, T::wrap(block))),
        Err(BlockRefused { reason, block }) => Err((Refused::Register(reason), block.reset())),
    }
}

/// Calls `look` for each piece of the first `bytes` bytes of a slot, in order: once, if the memory can be borrowed.
fn each_piece(
    slot: &ReadSlot,
    bytes: usize,
    mut look: impl FnMut(&[u8]),
) -> Result<(), AccessError> {
    AccessError::check(0, bytes, slot.block_bytes())?;
    if let Some(block) = slot.as_slice() {
        look(block.get(..bytes).unwrap_or_default());
        return Ok(());
    }
    let mut buffer = [0; PIECE_BYTES];
    for at in (0..bytes).step_by(PIECE_BYTES) {
        let piece = buffer.get_mut(..PIECE_BYTES.min(bytes - at)).unwrap_or_default();
        slot.read(at, piece)?;
        look(piece);
    }
    Ok(())
}

/// Computes the checksum of a block in the first `bytes` bytes of a slot.
pub(super) fn sum(
    slot: &ReadSlot,
    bytes: usize,
    sequence: SequenceHash,
) -> Result<Checksum, AccessError> {
    let mut summing = Summing::new();
    each_piece(slot, bytes, |piece| summing.update(piece))?;
    Ok(summing.seal(sequence.0))
}

/// Copies the first `bytes` bytes of a slot. Returns the copy and its checksum.
pub(super) fn copy_out(
    slot: &ReadSlot,
    bytes: usize,
    sequence: SequenceHash,
) -> Result<(Vec<u8>, Checksum), AccessError> {
    let mut copy = Vec::with_capacity(bytes);
    each_piece(slot, bytes, |piece| copy.extend_from_slice(piece))?;
    let checksum = Checksum::of(sequence.0, &copy);
    Ok((copy, checksum))
}
