//! A file as a storage, accessed by NIXL's plugin POSIX.

use crate::block::{NewBlock, Sealed};
use crate::cancel::Cancel;
use crate::error::TransferError;
use crate::storage::{Place, Storage, StorageKind, check_loaded, check_size, copy_summed, sealed};
use kvasir_memory::nixl::{
    Agent, Direction, Far, FileId, Library, NixlError, Piece, Plugin, Progress,
};
use kvasir_memory::{
    AllocateError, Arena, ArenaError, Claims, ReadSlot, SlotLayout, StorageAllocator,
    SystemAllocator, WriteSlot,
};
use parking_lot::Mutex;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const ALIGNMENT_BYTES: usize = 4096;
/// Interval between two polls of a transfer.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// Configuration of the storage.
#[derive(Debug, Clone)]
pub struct NixlStorageConfig {
    /// Path of `libnixl_capi.so`.
    pub library: PathBuf,
    /// The file, which is created anew.
    pub file: PathBuf,
    /// Maximum bytes of a block.
    pub block_bytes: usize,
    /// Number of slots.
    pub slots: u32,
}

/// Why the storage can't be created.
#[derive(Debug, thiserror::Error)]
pub enum NixlStorageError {
    /// NIXL can't be used.
    #[error(transparent)]
    Nixl(#[from] NixlError),
    /// The file can't be created.
    #[error("{path}: {error}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// The sizes are invalid.
    #[error(transparent)]
    Sizes(#[from] ArenaError),
    /// The memory for the transfer buffer can't be allocated.
    #[error(transparent)]
    Memory(#[from] AllocateError),
}

/// A storage in a file that NIXL reads and writes. It transfers one block at a time, through a private buffer
/// registered with NIXL. Its contents are lost when the process ends.
#[derive(Debug)]
pub struct NixlStorage {
    library: Library,
    file: Arc<File>,
    layout: SlotLayout,
    file_bytes: u64,
    claims: Arc<Claims>,
    lane: Mutex<Lane>,
}

/// The transfer buffer and its agent.
#[derive(Debug)]
struct Lane {
    memory: Arc<Arena>,
    /// `None` after a failure: the agent kept the buffer's slot, so the next transfer creates a new agent.
    agent: Option<(Agent<()>, FileId)>,
}

impl NixlStorage {
    /// Creates the file, and loads the library. Blocks the thread.
    ///
    /// # Errors
    /// [`NixlStorageError`] if the sizes are invalid, or the file, the memory or NIXL is not available.
    pub fn create(config: &NixlStorageConfig) -> Result<Self, NixlStorageError> {
        let layout = SlotLayout::aligned(config.block_bytes, ALIGNMENT_BYTES, config.slots)?;
        let file_bytes = layout.bytes()? as u64;
        let mut options = OpenOptions::new();
        let made = options.read(true).write(true).create(true).truncate(true).open(&config.file);
        let sized = made.and_then(|file| file.set_len(file_bytes).map(|()| file));
        let path = || config.file.clone();
        let file = sized.map_err(|error| NixlStorageError::File { path: path(), error })?;
        let one = SlotLayout { slots: 1, ..layout };
        let memory = SystemAllocator.allocate(one.bytes()?, ALIGNMENT_BYTES)?;
        let lane = Mutex::new(Lane { memory: Arena::new(memory, one)?, agent: None });
        let library = Library::load(&config.library)?;
        let claims = Claims::new(config.slots);
        let storage = Self { library, file: Arc::new(file), layout, file_bytes, claims, lane };
        let mut lane = storage.lane.lock();
        let agent = storage.agent(&lane.memory)?;
        lane.agent = Some(agent);
        drop(lane);
        Ok(storage)
    }

    fn agent(&self, memory: &Arc<Arena>) -> Result<(Agent<()>, FileId), NixlError> {
        // The agent communicates with no other agent.
        let mut agent = Agent::new(&self.library, "storage", &Plugin::new("POSIX"))?;
        agent.register(memory)?;
        let file = agent.register_file(Arc::clone(&self.file), self.file_bytes)?;
        Ok((agent, file))
    }

    /// Moves a block between `block`, a slot of the buffer, and a slot of the file. Returns the buffer's slot once the
    /// block has been moved.
    fn transfer(
        &self,
        lane: &mut Lane,
        direction: Direction,
        slot: u32,
        block: WriteSlot,
        cancel: &Cancel,
    ) -> Result<WriteSlot, TransferError> {
        let (mut agent, file) = match lane.agent.take() {
            Some(agent) => agent,
            None => self.agent(&lane.memory).map_err(failed)?,
        };
        let at = u64::from(slot) * self.layout.stride_bytes as u64;
        let pieces = vec![Piece { slot: block, at, with: () }];
        let id = agent.start(direction, Far::File(file), pieces).map_err(failed)?;
        loop {
            match agent.poll(id) {
                // A system call can't be cancelled either.
                Progress::Running => cancel.wait(POLL_INTERVAL),
                Progress::Done(mut pieces) => {
                    lane.agent = Some((agent, file));
                    let block = pieces.pop().map(|piece| piece.slot);
                    return block.ok_or_else(|| failed(NixlError::Unknown));
                }
                Progress::Failed(error) => return Err(failed(error)),
            }
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn failed(error: NixlError) -> TransferError {
    TransferError::Io(error.to_string())
}

impl Storage for NixlStorage {
    fn kind(&self) -> StorageKind {
        StorageKind::Disk
    }

    fn block_bytes(&self) -> usize {
        self.layout.block_bytes
    }

    fn slots(&self) -> Option<u32> {
        Some(self.layout.slots)
    }

    fn store(
        &self,
        place: Place,
        block: &NewBlock,
        source: &ReadSlot,
        cancel: &Cancel,
    ) -> Result<Sealed, TransferError> {
        check_size(block.bytes, self.block_bytes())?;
        let slot = place.slot()?;
        let _claim = self.claims.write(slot)?;
        let mut lane = self.lane.lock();
        let mut memory = lane.memory.write(0)?;
        let summing = copy_summed(source, &mut memory, block.bytes, cancel)?;
        let sealed = sealed(block, summing.seal(block.identity.sequence_hash))?;
        // Zero the remainder, which may contain bytes of an earlier block.
        let rest = memory.as_mut_slice().and_then(|bytes| bytes.get_mut(block.bytes..));
        rest.unwrap_or_default().fill(0);
        self.transfer(&mut lane, Direction::Write, slot, memory, cancel)?;
        Ok(sealed)
    }

    fn load(
        &self,
        place: Place,
        block: &Sealed,
        target: &mut WriteSlot,
        cancel: &Cancel,
    ) -> Result<(), TransferError> {
        check_size(block.bytes, self.block_bytes())?;
        cancel.check()?;
        let slot = place.slot()?;
        let _claim = self.claims.read(slot)?;
        let mut lane = self.lane.lock();
        let memory = lane.memory.write(0)?;
        let memory = self.transfer(&mut lane, Direction::Read, slot, memory, cancel)?;
        let summing = copy_summed(&memory.into_read(), target, block.bytes, cancel)?;
        check_loaded(block, summing.seal(block.identity.sequence_hash))
    }

    fn erase(&self, place: Place, _: u64, _: &Cancel) -> Result<(), TransferError> {
        // Blocks are lost with the process anyway. The claim only reports an error if the slot is still being read.
        self.claims.write(place.slot()?).map(drop)?;
        Ok(())
    }
}
