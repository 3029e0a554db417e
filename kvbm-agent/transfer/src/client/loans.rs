use super::connection::Connection;
use super::requests::{RequestKind, Requests, of_end, of_wire, out_of_turn};
use crate::backend::FetchFault;
use crate::limits::LOANS_AHEAD_MAX;
use crate::nixl::{InUse, Pieces, Reading, Reads};
use crate::wire::{End, Lent, LentBlock, Message, Return};
use kvasir_proto::types::SequenceHash;
use std::sync::Arc;
use tokio::time::Instant;

/// Requests loans: blocks that an owner lends on one connection, in the order of the requests.
pub(super) struct Loans<'a> {
    requests: Requests<'a>,
}

impl<'a> Loans<'a> {
    /// Starts to request blocks on a connection that has no other user. Fails if the peer lends no blocks.
    pub(super) fn new(
        connection: Connection,
        wanted: &'a [SequenceHash],
        deadline: Instant,
    ) -> Result<Self, FetchFault> {
        if connection.nixl.is_empty() {
            let text =
                "the peer lends no blocks: set backend=nixl at the peer, or backend=tcp here";
            return Err(FetchFault::Refused(text.to_owned()));
        }
        let kind = RequestKind { message: Message::Lend, ahead_max: LOANS_AHEAD_MAX };
        Ok(Self { requests: Requests::new(connection, kind, wanted, deadline)? })
    }

    /// Sends requests up to the limit.
    pub(super) async fn send_requests(&mut self) -> Result<(), FetchFault> {
        self.requests.send_requests().await
    }

    /// Receives the answer to the first open request: lent blocks, in the order of the request. `None` if no request is
    /// open. [Return them](Self::give_back) before the next call.
    pub(super) async fn next(&mut self) -> Result<Option<Lent>, FetchFault> {
        self.send_requests().await?;
        self.next_asked().await
    }

    /// Receives the next loan, as [`next`](Self::next). Fails unless the answer is for the first open request and its
    /// blocks are in order.
    async fn next_asked(&mut self) -> Result<Option<Lent>, FetchFault> {
        let Some((number, part)) = self.requests.first() else { return Ok(None) };
        let Message::Lent(lent) = self.requests.frame().await? else { return Err(out_of_turn()) };
        if lent.request != number {
            return Err(out_of_turn());
        }
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

    /// Notifies the owner that this agent has stopped reading the lent blocks. The inner result states why the owner
    /// lent fewer blocks than requested. The outer result fails if the connection fails.
    pub(super) async fn give_back(
        &mut self,
        lent: &Lent,
    ) -> Result<Result<(), FetchFault>, FetchFault> {
        if !lent.blocks.is_empty() {
            let back = Message::Return(Return { request: lent.request });
            self.requests.connection.send(&back).await.map_err(of_wire)?;
        }
        let wanted = self.requests.answered();
        let count = lent.blocks.len();
        let blocks = u32::try_from(count).unwrap_or(u32::MAX);
        let end = End { request: lent.request, blocks, fault: lent.fault };
        Ok(of_end(&end, count, wanted))
    }

    /// Returns the blocks of all open requests unread, so that the owner can reuse their slots immediately.
    pub(super) async fn give_all_back(&mut self) -> Result<(), FetchFault> {
        self.requests.parts = [].chunks(1);
        while let Some(lent) = self.next_asked().await? {
            let _why_short = self.give_back(&lent).await?;
        }
        Ok(())
    }

    /// The address of a lent block of `bytes` bytes in the owner's memory.
    pub(super) fn place(&self, block: &LentBlock, bytes: usize) -> Result<u64, FetchFault> {
        let place = self.requests.guard.layout().addresses(0, block.offset, bytes as u64);
        place.map(|place| place.address).ok_or_else(|| {
            let offset = block.offset;
            FetchFault::Corrupt(format!("offset: {offset} does not lie in the peer's set"))
        })
    }

    /// What must live while the owner's memory is read: its set, and its seat, whose drop removes the set.
    pub(super) fn in_use(&self) -> InUse {
        let Requests { guard, connection, .. } = &self.requests;
        Arc::new((Arc::clone(guard), Arc::clone(&connection.seat)))
    }

    /// Starts reading blocks from the owner's memory.
    pub(super) fn start_read(&self, reads: &Reads, pieces: Pieces) -> Result<Reading, FetchFault> {
        reads.start_transfer(&self.requests.connection.nixl, pieces, self.requests.deadline)
    }

    /// Bytes of the owner's blocks.
    pub(super) const fn block_bytes(&self) -> usize {
        self.requests.connection.block_bytes
    }

    /// Whether the owner's set has ended, so that its bytes are invalid.
    pub(super) fn is_fenced(&self) -> bool {
        self.requests.is_fenced()
    }

    /// Returns the connection if it can be reused after this result: all loans are returned, and all answers have
    /// arrived.
    pub(super) fn into_clean(self, ended: &Result<(), FetchFault>) -> Option<Connection> {
        let is_over = matches!(ended, Ok(()) | Err(FetchFault::Missing | FetchFault::NoRoom(_)));
        self.requests.into_clean(is_over)
    }
}
