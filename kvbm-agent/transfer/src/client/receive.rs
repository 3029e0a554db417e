use super::answers::Answers;
use super::requests::of_wire;
use super::slots::Slots;
use crate::backend::{FetchFault, Fetched};
use crate::limits::RECEIVE_BYTES_MAX;
use crate::wire::{BlockHead, WireError};
use kvasir_tiers::Checksum;
use kvasir_tiers::manager::{Filled, Filling};
use tokio::time::Instant;

/// Receives complete blocks over one connection, in order.
pub(super) struct Receiving<'a, 'b> {
    answers: &'b mut Answers<'a>,
    slots: Slots<'a>,
    block_bytes: usize,
    /// Buffer for slots that are not accessible as slices.
    piece: Vec<u8>,
}

impl<'a, 'b> Receiving<'a, 'b> {
    pub(super) const fn new(
        answers: &'b mut Answers<'a>,
        slots: Slots<'a>,
        block_bytes: usize,
    ) -> Self {
        Self { answers, slots, block_bytes, piece: Vec::new() }
    }

    /// Fetches until all blocks are received, or a fault occurs.
    pub(super) async fn run(&mut self, fetched: &mut Fetched) -> Result<(), FetchFault> {
        while let Some(head) = self.answers.next().await? {
            let filled = self.block(&head).await?;
            fetched.first_at.get_or_insert_with(Instant::now);
            fetched.bytes += self.block_bytes as u64;
            fetched.blocks.push(filled);
        }
        if self.answers.is_fenced() { Err(FetchFault::Fenced) } else { Ok(()) }
    }

    /// Receives one block into a slot, and registers it.
    async fn block(&mut self, head: &BlockHead) -> Result<Filled, FetchFault> {
        let identity = head.identity().map_err(of_wire)?;
        // Includes the current block.
        let mut slot = self.slots.next(self.answers.missing_blocks() + 1)?;
        self.receive(&mut slot).await.map_err(of_wire)?;
        if self.answers.is_fenced() {
            return Err(FetchFault::Fenced);
        }
        self.slots.commit(slot, identity, Some(Checksum(head.checksum))).await
    }

    /// Reads one block from the connection: directly into the slot if its memory is accessible, else through a buffer.
    async fn receive(&mut self, slot: &mut Filling) -> Result<(), WireError> {
        let reader = self.answers.reader();
        if let Some(mut block) = slot.as_mut_slice(self.block_bytes) {
            while !block.is_empty() {
                let count = reader.payload(block).await?;
                block = block.get_mut(count..).unwrap_or_default();
            }
            return Ok(());
        }
        self.piece.resize(self.block_bytes.min(RECEIVE_BYTES_MAX), 0);
        let mut offset = 0;
        while offset < self.block_bytes {
            let lacks = self.piece.len().min(self.block_bytes - offset);
            let room = self.piece.get_mut(..lacks).unwrap_or_default();
            let count = reader.payload(room).await?;
            let piece = room.get(..count).unwrap_or_default();
            // Written in order, so the checksum is computed here and the slot is not read again.
            let written = slot.write(offset, piece);
            written.map_err(|error| WireError::field("payload", error.to_string()))?;
            offset += count;
        }
        Ok(())
    }
}
