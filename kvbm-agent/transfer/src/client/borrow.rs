use super::loans::Loans;
use super::requests::of_wire;
use super::slots::{Slots, no_slot};
use crate::backend::{FetchFault, Fetched};
use crate::limits::{READ_BLOCKS_MAX, READ_BYTES_MAX};
use crate::nixl::{Place, Reading, Reads};
use crate::wire::{BlockHead, Lent, LentBlock};
use kvasir_memory::nixl::Piece;
use kvasir_tiers::Checksum;
use tokio::time::Instant;

/// Reads lent blocks into slots by NIXL, in order.
pub(super) struct Borrowing<'a, 'b> {
    loans: &'b mut Loans<'a>,
    slots: Slots<'a>,
    reads: &'a Reads,
}

/// Blocks being read by NIXL, with their heads as the owner stated them.
struct Expected {
    heads: Vec<BlockHead>,
    reading: Reading,
}

impl<'a, 'b> Borrowing<'a, 'b> {
    pub(super) const fn new(loans: &'b mut Loans<'a>, slots: Slots<'a>, reads: &'a Reads) -> Self {
        Self { loans, slots, reads }
    }

    /// Fetches until all blocks are registered, or a fault occurs.
    pub(super) async fn run(&mut self, fetched: &mut Fetched) -> Result<(), FetchFault> {
        while let Some(lent) = self.loans.next().await? {
            let stopped = self.read_lent(&lent, fetched).await?;
            let ended = self.loans.give_back(&lent).await?;
            let ended = stopped.map_or(ended, Err);
            if ended.is_err() {
                self.loans.give_all_back().await?;
            }
            ended?;
        }
        if self.loans.is_fenced() { Err(FetchFault::Fenced) } else { Ok(()) }
    }

    /// Reads and registers all lent blocks. While one transfer is running, computes the checksums of the previous
    /// blocks. Returns the fault if a read could not start; then all reads have ended. After an error, a read may still
    /// be running.
    async fn read_lent(
        &self,
        lent: &Lent,
        fetched: &mut Fetched,
    ) -> Result<Option<FetchFault>, FetchFault> {
        let at_once = (READ_BYTES_MAX / self.slots.block_bytes().max(1)).clamp(1, READ_BLOCKS_MAX);
        let mut rest = lent.blocks.as_slice();
        let mut before = None;
        while !rest.is_empty() {
            let (begun, left) = match self.start_read(rest, at_once) {
                Ok(begun) => begun,
                Err(fault) => {
                    // Blocks before the fault are still registered.
                    self.finish(before, fetched).await?;
                    return Ok(Some(fault));
                }
            };
            self.finish(before.replace(begun), fetched).await?;
            rest = left;
        }
        self.finish(before, fetched).await?;
        Ok(None)
    }

    /// Starts to read at most the first `at_once` blocks. Also returns the remaining blocks.
    fn start_read<'c>(
        &self,
        blocks: &'c [LentBlock],
        at_once: usize,
    ) -> Result<(Expected, &'c [LentBlock]), FetchFault> {
        let slots = self.slots.some(at_once.min(blocks.len()))?;
        if slots.is_empty() {
            return Err(no_slot());
        }
        let (now, rest) = blocks.split_at(slots.len().min(blocks.len()));
        let mut pieces = Vec::with_capacity(now.len());
        let in_use = self.loans.in_use();
        for (block, slot) in now.iter().zip(slots) {
            let at = self.loans.place(block, self.slots.block_bytes())?;
            let (slot, detached) = slot.detach().ok_or_else(no_slot)?;
            let with = Place::of_slot(detached, &in_use);
            pieces.push(Piece { slot, at, with });
        }
        let reading = self.loans.start_read(self.reads, pieces)?;
        let heads = now.iter().map(|block| block.head.clone()).collect();
        Ok((Expected { heads, reading }, rest))
    }

    /// Waits for the blocks of a started read, then verifies and registers them. Returns immediately if `expected` is
    /// `None`.
    async fn finish(
        &self,
        expected: Option<Expected>,
        fetched: &mut Fetched,
    ) -> Result<(), FetchFault> {
        let Some(Expected { heads, reading }) = expected else { return Ok(()) };
        let pieces = reading.wait().await?;
        for (piece, head) in pieces.into_iter().zip(&heads) {
            if self.loans.is_fenced() {
                return Err(FetchFault::Fenced);
            }
            let Piece { slot, with, .. } = piece;
            let slot = with.into_slot().and_then(|at| at.attach(slot)).ok_or_else(no_slot)?;
            let identity = head.identity().map_err(of_wire)?;
            let checksum = Some(Checksum(head.checksum));
            let filled = self.slots.commit(slot, identity, checksum).await?;
            fetched.first_at.get_or_insert_with(Instant::now);
            fetched.bytes += self.slots.block_bytes() as u64;
            fetched.blocks.push(filled);
        }
        Ok(())
    }
}
