use super::answers::{of_end, of_wire};
use super::connection::{Connection, of_refusal};
use super::slots::{Slots, no_slot};
use crate::backend::{FetchFault, FetchRequest, Fetched};
use crate::limits::{
    LOANS_AHEAD_MAX, READ_BLOCKS_MAX, READ_BYTES_MAX, REQUEST_BLOCKS_MAX, REQUEST_TIMEOUT_MAX,
};
use crate::nixl::{Reading, Reads};
use crate::wire::{BlockHead, End, Fetch, Lent, LentBlock, Message, Return, WireError};
use kvasir_blocks::sets::TransferGuard;
use kvasir_memory::nixl::Piece;
use kvasir_proto::types::SequenceHash;
use kvasir_tiers::Checksum;
use std::collections::VecDeque;
use std::slice::Chunks;
use tokio::time::Instant;

/// Blocks that an owner lends over one connection, and that NIXL reads, in order.
pub(super) struct Borrowing<'a> {
    connection: &'a mut Connection,
    request: FetchRequest<'a>,
    slots: Slots<'a>,
    reads: &'a Reads,
    /// Hashes not asked for yet.
    parts: Chunks<'a, SequenceHash>,
    /// Hashes asked for, by request number.
    asked: VecDeque<(u64, &'a [SequenceHash])>,
}

/// Blocks that NIXL reads, with what the owner says of them.
struct Expected {
    heads: Vec<BlockHead>,
    reading: Reading,
}

impl<'a> Borrowing<'a> {
    pub(super) fn new(
        connection: &'a mut Connection,
        request: FetchRequest<'a>,
        slots: Slots<'a>,
        reads: &'a Reads,
    ) -> Self {
        let parts = request.wanted.chunks(REQUEST_BLOCKS_MAX);
        Self { connection, request, slots, reads, parts, asked: VecDeque::new() }
    }

    /// Whether the connection may be reused after this result: nothing is lent, and no answer is expected on it.
    pub(super) fn is_clean(&self, ended: &Result<(), FetchFault>) -> bool {
        let is_over = matches!(ended, Ok(()) | Err(FetchFault::Missing | FetchFault::NoRoom(_)));
        self.asked.is_empty() && is_over
    }

    /// Fetches until all blocks are registered, or a fault stops it.
    pub(super) async fn run(&mut self, fetched: &mut Fetched) -> Result<(), FetchFault> {
        if self.connection.nixl.is_empty() {
            let text = "it lends no blocks: set blocks-peer-backend to nixl there, or to tcp here";
            return Err(FetchFault::Refused(text.to_owned()));
        }
        // Dropped with this future at the latest: until then the set's id names no other one.
        let handle = self.connection.set.get_remote_blocks(&[]);
        let guard = handle.and_then(|handle| handle.begin_read());
        let guard = guard.map_err(|_ended| FetchFault::Fenced)?;
        self.ask(&guard).await?;
        while let Some((number, part)) = self.asked.front().copied() {
            let lent = self.lent(number, part).await?;
            let stopped = self.read(&guard, &lent, fetched).await?;
            self.give_back(&lent).await?;
            let count = lent.blocks.len();
            let blocks = u32::try_from(count).unwrap_or(u32::MAX);
            let end = End { request: number, blocks, fault: lent.fault };
            let ended = stopped.map_or_else(|| of_end(&end, count, part.len()), Err);
            if ended.is_err() {
                // What is lent for later requests is not read: the owner may use it again at once.
                while let Some((number, part)) = self.asked.front().copied() {
                    let lent = self.lent(number, part).await?;
                    self.give_back(&lent).await?;
                }
            }
            ended?;
            self.ask(&guard).await?;
        }
        guard.finish().map_err(|_ended| FetchFault::Fenced)
    }

    /// Sends requests up to the limit.
    async fn ask(&mut self, guard: &TransferGuard) -> Result<(), FetchFault> {
        while self.asked.len() < LOANS_AHEAD_MAX {
            let Some(part) = self.parts.next() else { return Ok(()) };
            let left = self.request.deadline.saturating_duration_since(Instant::now());
            let millis = left.min(REQUEST_TIMEOUT_MAX).as_millis();
            let fence = guard.fence();
            let number = self.connection.next_request;
            let lend = Message::Lend(Fetch {
                request: number,
                epoch: fence.epoch,
                export: fence.export,
                timeout_ms: u32::try_from(millis).unwrap_or(u32::MAX).max(1),
                sequences: part.iter().map(|sequence| sequence.0).collect(),
            });
            self.connection.next_request += 1;
            self.asked.push_back((number, part));
            self.connection.send(&lend).await.map_err(of_wire)?;
        }
        Ok(())
    }

    /// Returns a loan. None of its blocks is read any more.
    async fn give_back(&mut self, lent: &Lent) -> Result<(), FetchFault> {
        if !lent.blocks.is_empty() {
            let back = Message::Return(Return { request: lent.request });
            self.connection.send(&back).await.map_err(of_wire)?;
        }
        self.asked.pop_front();
        Ok(())
    }

    /// What the owner lends for a request: the blocks that were asked for, in order.
    async fn lent(&mut self, number: u64, part: &[SequenceHash]) -> Result<Lent, FetchFault> {
        let message = self.connection.reader.frame().await.map_err(of_wire)?;
        let lent = match message {
            Some(Message::Lent(lent)) if lent.request == number => lent,
            Some(Message::Refusal(refusal)) => return Err(of_refusal(refusal)),
            Some(_) => {
                let text = "the peer sent a frame that is not its turn".to_owned();
                return Err(FetchFault::Lost(text));
            }
            None => return Err(of_wire(WireError::Closed)),
        };
        let mut expected = part.iter().zip(0_u32..);
        let is_expected = |block: &LentBlock| {
            let head = &block.head;
            let next = expected.next();
            head.request == number
                && next
                    .is_some_and(|(wanted, index)| (wanted.0, index) == (head.sequence, head.index))
        };
        if lent.blocks.iter().all(is_expected) {
            return Ok(lent);
        }
        let text = "the peer lent another block than the one that is next";
        Err(FetchFault::Corrupt(text.to_owned()))
    }

    /// Reads and registers all blocks that are lent. One transfer is under way while the blocks of the one before it are
    /// summed up. Returns why it stopped before the last block, if nothing is read any more; after an error, something may be.
    async fn read(
        &self,
        guard: &TransferGuard,
        lent: &Lent,
        fetched: &mut Fetched,
    ) -> Result<Option<FetchFault>, FetchFault> {
        let at_once = (READ_BYTES_MAX / self.slots.block_bytes().max(1)).clamp(1, READ_BLOCKS_MAX);
        let (mut rest, mut before) = (lent.blocks.as_slice(), None);
        while !rest.is_empty() {
            let (begun, left) = match self.begin(guard, rest, at_once) {
                Ok(begun) => begun,
                Err(fault) => {
                    // What comes before the fault counts.
                    self.finish(guard, before, fetched).await?;
                    return Ok(Some(fault));
                }
            };
            self.finish(guard, before.replace(begun), fetched).await?;
            rest = left;
        }
        self.finish(guard, before, fetched).await?;
        Ok(None)
    }

    /// Starts to read the first of these blocks. Returns those behind them, too.
    fn begin<'b>(
        &self,
        guard: &TransferGuard,
        blocks: &'b [LentBlock],
        at_once: usize,
    ) -> Result<(Expected, &'b [LentBlock]), FetchFault> {
        let slots = self.slots.some(at_once.min(blocks.len()))?;
        if slots.is_empty() {
            return Err(no_slot());
        }
        let (now, rest) = blocks.split_at(slots.len().min(blocks.len()));
        let mut pieces = Vec::with_capacity(now.len());
        for (block, slot) in now.iter().zip(slots) {
            let bytes = self.slots.block_bytes() as u64;
            let place = guard.layout().addresses(0, block.offset, bytes);
            let place = place.ok_or_else(|| {
                let offset = block.offset;
                FetchFault::Corrupt(format!("offset: {offset} does not lie in the peer's set"))
            })?;
            let (slot, with) = slot.detach().ok_or_else(no_slot)?;
            pieces.push(Piece { slot, at: place.address, with });
        }
        let reading = self.reads.begin(&self.connection.nixl, pieces, self.request.deadline)?;
        let heads = now.iter().map(|block| block.head.clone()).collect();
        Ok((Expected { heads, reading }, rest))
    }

    /// Waits for blocks, verifies and registers them.
    async fn finish(
        &self,
        guard: &TransferGuard,
        expected: Option<Expected>,
        fetched: &mut Fetched,
    ) -> Result<(), FetchFault> {
        let Some(Expected { heads, reading }) = expected else { return Ok(()) };
        let pieces = reading.wait().await?;
        for (piece, head) in pieces.into_iter().zip(&heads) {
            if guard.ended().is_some() {
                return Err(FetchFault::Fenced);
            }
            let Piece { slot, with, .. } = piece;
            let slot = with.attach(slot).ok_or_else(no_slot)?;
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
