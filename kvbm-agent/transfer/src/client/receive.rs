use super::connection::{Connection, of_refusal};
use crate::backend::{FetchFault, FetchRequest, Fetched};
use crate::limits::{
    FILL_BLOCKS_MAX, INLINE_BYTES_MAX, RECEIVE_BYTES_MAX, REQUEST_BLOCKS_MAX, REQUEST_TIMEOUT_MAX,
    REQUESTS_AHEAD_MAX,
};
use crate::wire::{BlockHead, End, Fault, Fetch, Message, WireError};
use kvasir_blocks::Priority;
use kvasir_blocks::sets::TransferGuard;
use kvasir_proto::types::SequenceHash;
use kvasir_tiers::Checksum;
use kvasir_tiers::manager::{AllocateError, Commit, CommitError, Filled, Filling};
use std::collections::VecDeque;
use std::slice::Chunks;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

/// Blocks that come over one connection, in order.
pub(super) struct Receiving<'a> {
    connection: &'a mut Connection,
    request: FetchRequest<'a>,
    block_bytes: usize,
    /// Hashes not requested yet.
    parts: Chunks<'a, SequenceHash>,
    /// Requested hashes, by request number.
    asked: VecDeque<(u64, &'a [SequenceHash])>,
    /// Slots for the next blocks.
    slots: Vec<Filling>,
    /// Bytes for slots that are no slices.
    piece: Vec<u8>,
}

impl<'a> Receiving<'a> {
    pub(super) fn new(
        connection: &'a mut Connection,
        request: FetchRequest<'a>,
        block_bytes: usize,
    ) -> Self {
        let parts = request.wanted.chunks(REQUEST_BLOCKS_MAX);
        let (asked, slots, piece) = (VecDeque::new(), Vec::new(), Vec::new());
        Self { connection, request, block_bytes, parts, asked, slots, piece }
    }

    /// Whether the connection may be reused after this result: no part of an answer is still expected on it.
    pub(super) fn is_clean(&self, ended: &Result<(), FetchFault>) -> bool {
        self.asked.is_empty() && matches!(ended, Ok(()) | Err(FetchFault::Missing))
    }

    /// Fetches until all blocks are received, or a fault stops it.
    pub(super) async fn run(&mut self, fetched: &mut Fetched) -> Result<(), FetchFault> {
        // Dropped with this future at the latest: until then the set's id names no other one.
        let handle = self.connection.set.get_remote_blocks(&[]);
        let guard = handle.and_then(|handle| handle.begin_read());
        let guard = guard.map_err(|_ended| FetchFault::Fenced)?;
        self.ask(&guard).await?;
        while let Some((number, part)) = self.asked.front().copied() {
            let answered = self.answer(&guard, number, part, fetched).await;
            if matches!(answered, Ok(()) | Err(FetchFault::Missing)) {
                self.asked.pop_front();
            }
            answered?;
            self.ask(&guard).await?;
        }
        guard.finish().map_err(|_ended| FetchFault::Fenced)
    }

    /// Sends requests up to the pipeline limit.
    async fn ask(&mut self, guard: &TransferGuard) -> Result<(), FetchFault> {
        while self.asked.len() < REQUESTS_AHEAD_MAX {
            let Some(part) = self.parts.next() else { return Ok(()) };
            let left = self.request.deadline.saturating_duration_since(Instant::now());
            let millis = left.min(REQUEST_TIMEOUT_MAX).as_millis();
            let fence = guard.fence();
            let number = self.connection.next_request;
            let fetch = Message::Fetch(Fetch {
                request: number,
                epoch: fence.epoch,
                export: fence.export,
                timeout_ms: u32::try_from(millis).unwrap_or(u32::MAX).max(1),
                sequences: part.iter().map(|sequence| sequence.0).collect(),
            });
            self.connection.next_request += 1;
            self.asked.push_back((number, part));
            self.connection.send(&fetch).await.map_err(of_wire)?;
        }
        Ok(())
    }

    /// All blocks of one request.
    async fn answer(
        &mut self,
        guard: &TransferGuard,
        number: u64,
        part: &[SequenceHash],
        fetched: &mut Fetched,
    ) -> Result<(), FetchFault> {
        let mut wanted = part.iter();
        loop {
            let message = self.connection.reader.frame().await.map_err(of_wire)?;
            match message {
                Some(Message::Block(head)) => {
                    let expected = wanted.next();
                    let index = part.len() - wanted.len();
                    let is_expected = expected.is_some_and(|at| at.0 == head.sequence)
                        && head.request == number
                        && head.index as usize + 1 == index;
                    if !is_expected {
                        let text = "the peer sent another block than the one that is next";
                        return Err(FetchFault::Corrupt(text.to_owned()));
                    }
                    let filled = self.block(guard, &head).await?;
                    fetched.first_at.get_or_insert_with(Instant::now);
                    fetched.bytes += self.block_bytes as u64;
                    fetched.blocks.push(filled);
                }
                Some(Message::End(end)) if end.request == number => {
                    return of_end(&end, part.len() - wanted.len(), part.len());
                }
                Some(Message::Refusal(refusal)) => return Err(of_refusal(refusal)),
                Some(_) => {
                    let text = "the peer sent a frame that is not its turn".to_owned();
                    return Err(FetchFault::Lost(text));
                }
                None => return Err(of_wire(WireError::Closed)),
            }
        }
    }

    /// Receives one block into a slot, and registers it.
    async fn block(
        &mut self,
        guard: &TransferGuard,
        head: &BlockHead,
    ) -> Result<Filled, FetchFault> {
        let identity = head.identity().map_err(of_wire)?;
        let mut slot = self.slot()?;
        self.receive(&mut slot).await.map_err(of_wire)?;
        if guard.ended().is_some() {
            return Err(FetchFault::Fenced);
        }
        let checksum = Some(Checksum(head.checksum));
        let commit = Commit { identity, checksum, priority: Priority::default() };
        let committed = if self.block_bytes > INLINE_BYTES_MAX {
            let committed = spawn_blocking(move || slot.commit(&commit)).await;
            // A panic is in the log.
            committed.map_err(|_panic| FetchFault::Lost("the agent failed".to_owned()))?
        } else {
            slot.commit(&commit)
        };
        committed.map_err(|error| of_commit(&error))
    }

    /// The next slot.
    fn slot(&mut self) -> Result<Filling, FetchFault> {
        if let Some(slot) = self.slots.pop() {
            return Ok(slot);
        }
        let ahead: usize = self.asked.iter().map(|(_, part)| part.len()).sum();
        let fits = RECEIVE_BYTES_MAX / self.block_bytes.max(1);
        let count = fits.clamp(1, FILL_BLOCKS_MAX).min(ahead.max(1));
        let session = self.request.into;
        let slots = session.fill(count).or_else(|_too_many| session.fill(1));
        self.slots = slots.map_err(|error| match error {
            AllocateError::Session(_) => FetchFault::Ended,
            AllocateError::Nothing
            | AllocateError::Lease { .. }
            | AllocateError::Limit { .. }
            | AllocateError::Exhausted(_) => FetchFault::NoRoom(error.to_string()),
        })?;
        self.slots.pop().ok_or_else(|| FetchFault::NoRoom("no slot is free".to_owned()))
    }

    async fn receive(&mut self, slot: &mut Filling) -> Result<(), WireError> {
        let reader = &mut self.connection.reader;
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
            let written = slot.write(offset, piece);
            written.map_err(|error| WireError::field("payload", error.to_string()))?;
            offset += count;
        }
        Ok(())
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(super) fn of_wire(error: WireError) -> FetchFault {
    let text = error.to_string();
    // A name or position that does not fit: not the block that it says.
    let is_corrupt = matches!(error, WireError::Field { .. });
    if is_corrupt { FetchFault::Corrupt(text) } else { FetchFault::Lost(text) }
}

pub(super) fn of_commit(error: &CommitError) -> FetchFault {
    match error {
        CommitError::Session(_) => FetchFault::Ended,
        CommitError::Checksum { .. } | CommitError::Identity | CommitError::Register(_) => {
            FetchFault::Corrupt(error.to_string())
        }
        CommitError::NotLeased { .. }
        | CommitError::LeaseOver { .. }
        | CommitError::Limit { .. }
        | CommitError::Unreadable { .. } => FetchFault::NoRoom(error.to_string()),
    }
}

/// How a request ended, of which so many blocks came.
pub(super) fn of_end(end: &End, came: usize, wanted: usize) -> Result<(), FetchFault> {
    let unavailable = |text: &str| Err(FetchFault::Unavailable(text.to_owned()));
    if end.blocks as usize != came {
        let text = format!("{} blocks were sent, and {came} have arrived", end.blocks);
        return Err(FetchFault::Lost(text));
    }
    match end.fault() {
        Fault::Unspecified if came == wanted => Ok(()),
        Fault::Unspecified => Err(FetchFault::Lost("the answer is short".to_owned())),
        Fault::Missing => Err(FetchFault::Missing),
        Fault::Corrupt => unavailable("its copy was wrong, and is withdrawn"),
        Fault::Unreadable => unavailable("it can't be read"),
        Fault::Busy => unavailable("too much is under way"),
        Fault::Fenced => Err(FetchFault::Fenced),
        Fault::Stopping => unavailable("it stops"),
        Fault::TimedOut => Err(FetchFault::TimedOut),
    }
}
