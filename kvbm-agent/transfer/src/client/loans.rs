use super::answers::{of_end, of_wire};
use super::connection::{Connection, of_refusal};
use crate::backend::FetchFault;
use crate::limits::{LOANS_AHEAD_MAX, REQUEST_BLOCKS_MAX, REQUEST_TIMEOUT_MAX};
use crate::nixl::{Pieces, Reading, Reads};
use crate::wire::{End, Fetch, Lent, LentBlock, Message, Return, WireError};
use kvasir_blocks::sets::TransferGuard;
use kvasir_proto::types::SequenceHash;
use std::collections::VecDeque;
use std::slice::Chunks;
use tokio::time::Instant;

/// Loans on one connection, in the order of their requests.
pub(super) struct Loans<'a> {
    /// Until it is dropped, the set's id names no other one. It goes before the connection.
    guard: TransferGuard,
    connection: Connection,
    deadline: Instant,
    /// Hashes not asked for yet.
    parts: Chunks<'a, SequenceHash>,
    /// Hashes asked for, by request number.
    asked: VecDeque<(u64, &'a [SequenceHash])>,
}

impl<'a> Loans<'a> {
    /// Of a connection that nobody else uses, for these blocks.
    pub(super) fn new(
        connection: Connection,
        wanted: &'a [SequenceHash],
        deadline: Instant,
    ) -> Result<Self, FetchFault> {
        if connection.nixl.is_empty() {
            let text = "it lends no blocks: set blocks-peer-backend to nixl there, or to tcp here";
            return Err(FetchFault::Refused(text.to_owned()));
        }
        let handle = connection.set.get_remote_blocks(&[]);
        let guard = handle.and_then(|handle| handle.begin_read());
        let guard = guard.map_err(|_ended| FetchFault::Fenced)?;
        let (parts, asked) = (wanted.chunks(REQUEST_BLOCKS_MAX), VecDeque::new());
        Ok(Self { guard, connection, deadline, parts, asked })
    }

    /// Sends requests up to the limit.
    pub(super) async fn ask(&mut self) -> Result<(), FetchFault> {
        while self.asked.len() < LOANS_AHEAD_MAX {
            let Some(part) = self.parts.next() else { return Ok(()) };
            let left = self.deadline.saturating_duration_since(Instant::now());
            let millis = left.min(REQUEST_TIMEOUT_MAX).as_millis();
            let fence = self.guard.fence();
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

    /// What the owner lends for the first request that is under way: the blocks that were asked for, in order. None once there
    /// is no request any more. It must be [given back](Self::give_back) before the next call.
    pub(super) async fn next(&mut self) -> Result<Option<Lent>, FetchFault> {
        self.ask().await?;
        self.next_asked().await
    }

    async fn next_asked(&mut self) -> Result<Option<Lent>, FetchFault> {
        let Some((number, part)) = self.asked.front().copied() else { return Ok(None) };
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
            return Ok(Some(lent));
        }
        let text = "the peer lent another block than the one that is next";
        Err(FetchFault::Corrupt(text.to_owned()))
    }

    /// Returns a loan, none of whose blocks is read any more. Returns why it has fewer blocks than were asked for.
    pub(super) async fn give_back(
        &mut self,
        lent: &Lent,
    ) -> Result<Result<(), FetchFault>, FetchFault> {
        if !lent.blocks.is_empty() {
            let back = Message::Return(Return { request: lent.request });
            self.connection.send(&back).await.map_err(of_wire)?;
        }
        let wanted = self.asked.pop_front().map_or(0, |(_, part)| part.len());
        let count = lent.blocks.len();
        let blocks = u32::try_from(count).unwrap_or(u32::MAX);
        let end = End { request: lent.request, blocks, fault: lent.fault };
        Ok(of_end(&end, count, wanted))
    }

    /// Returns what is lent for requests that are under way, unread: the owner may use it again at once.
    pub(super) async fn give_all_back(&mut self) -> Result<(), FetchFault> {
        self.parts = [].chunks(1);
        while let Some(lent) = self.next_asked().await? {
            let _why_short = self.give_back(&lent).await?;
        }
        Ok(())
    }

    /// Where a lent block of so many bytes begins in the owner's memory.
    pub(super) fn place(&self, block: &LentBlock, bytes: usize) -> Result<u64, FetchFault> {
        let place = self.guard.layout().addresses(0, block.offset, bytes as u64);
        place.map(|place| place.address).ok_or_else(|| {
            let offset = block.offset;
            FetchFault::Corrupt(format!("offset: {offset} does not lie in the peer's set"))
        })
    }

    /// Starts to read blocks out of the owner's memory.
    pub(super) fn read(&self, reads: &Reads, pieces: Pieces) -> Result<Reading, FetchFault> {
        reads.begin(&self.connection.nixl, pieces, self.deadline)
    }

    /// Bytes of a block of the owner's.
    pub(super) const fn block_bytes(&self) -> usize {
        self.connection.block_bytes
    }

    /// Whether the owner's set has ended: its bytes are worth nothing.
    pub(super) fn is_fenced(&self) -> bool {
        self.guard.ended().is_some()
    }

    /// The connection, if it may be used again after this result: nothing is lent, and no answer is expected on it.
    pub(super) fn into_clean(self, ended: &Result<(), FetchFault>) -> Option<Connection> {
        let is_over = matches!(ended, Ok(()) | Err(FetchFault::Missing | FetchFault::NoRoom(_)));
        let is_clean = self.asked.is_empty() && is_over;
        drop(self.guard);
        is_clean.then_some(self.connection)
    }
}
