//! Receives parts of blocks that owners with another layout send.

use super::answers::Answers;
use super::connection::Connection;
use super::requests::of_wire;
use crate::backend::FetchFault;
use crate::convert::PartPlan;
use crate::limits::RECEIVE_BYTES_MAX;
use crate::wire::BlockHead;
use futures::FutureExt;
use futures::future::BoxFuture;
use kvasir_blocks::BlockIdentity;
use kvasir_tiers::manager::Filling;
use kvasir_tiers::{Checksum, Summing};
use std::sync::Arc;

/// The parts of an owner's blocks, in the requested order.
pub(super) trait PartStream: Send {
    /// Sends the request, so that the owner begins. If this fails, receiving the first part fails, too.
    fn send_requests(&mut self) -> BoxFuture<'_, ()>;

    /// Writes the verified part of the next block into its slot, and returns the block's identity. After an error, the
    /// slot may contain some bytes of the part.
    fn next<'b>(
        &'b mut self,
        slot: &'b mut Filling,
        piece: &'b mut Vec<u8>,
    ) -> BoxFuture<'b, Result<BlockIdentity, FetchFault>>;

    /// Whether the owner's set has ended, so that its bytes are invalid.
    fn is_fenced(&self) -> bool;

    /// Returns the connection if it can be reused after this result.
    fn close<'b>(
        self: Box<Self>,
        ended: &'b Result<(), FetchFault>,
    ) -> BoxFuture<'b, Option<Connection>>
    where
        Self: 'b;
}

/// Verifies the bytes against the checksum that the peer stated.
pub(super) fn verify(what: &str, bytes: Summing, head: &BlockHead) -> Result<(), FetchFault> {
    let stated = Checksum(head.checksum);
    let found = bytes.seal(head.sequence);
    if stated == found {
        return Ok(());
    }
    let text = format!("the {what} adds up to {found}, and the peer states {stated}");
    Err(FetchFault::Corrupt(text))
}

/// Parts that the owner sends over the connection.
pub(super) struct Sent<'a> {
    answers: Answers<'a>,
    plan: Arc<PartPlan>,
}

impl<'a> Sent<'a> {
    pub(super) const fn new(answers: Answers<'a>, plan: Arc<PartPlan>) -> Self {
        Self { answers, plan }
    }

    /// Reads one part of a block from the connection, writes its pieces to their places in the slot, and verifies the
    /// part's checksum.
    async fn receive(
        &mut self,
        slot: &mut Filling,
        piece: &mut Vec<u8>,
    ) -> Result<BlockIdentity, FetchFault> {
        let short = || FetchFault::Lost("the answer is short".to_owned());
        let head = self.answers.next().await?.ok_or_else(short)?;
        let identity = head.identity().map_err(of_wire)?;
        let mut scatter = self.plan.scatter();
        let mut summing = Summing::new();
        let mut lacks = self.plan.bytes();
        piece.resize(lacks.min(RECEIVE_BYTES_MAX), 0);
        while lacks > 0 {
            let room = piece.len().min(lacks);
            let room = piece.get_mut(..room).unwrap_or_default();
            let count = self.answers.reader().payload(room).await.map_err(of_wire)?;
            let came = room.get(..count).unwrap_or_default();
            summing.update(came);
            let placed = scatter.place(came, |offset, bytes| slot.write(offset, bytes));
            placed.map_err(|error| FetchFault::Corrupt(error.to_string()))?;
            lacks -= count;
        }
        verify("part", summing, &head)?;
        Ok(identity)
    }
}

impl PartStream for Sent<'_> {
    fn send_requests(&mut self) -> BoxFuture<'_, ()> {
        async { drop(self.answers.send_requests().await) }.boxed()
    }

    fn next<'b>(
        &'b mut self,
        slot: &'b mut Filling,
        piece: &'b mut Vec<u8>,
    ) -> BoxFuture<'b, Result<BlockIdentity, FetchFault>> {
        self.receive(slot, piece).boxed()
    }

    fn is_fenced(&self) -> bool {
        self.answers.is_fenced()
    }

    /// Returns the connection if it can be reused: the answer must have ended.
    fn close<'b>(
        mut self: Box<Self>,
        ended: &'b Result<(), FetchFault>,
    ) -> BoxFuture<'b, Option<Connection>>
    where
        Self: 'b,
    {
        async move {
            // The frame that ends the answer is not read yet.
            if ended.is_ok() && !matches!(self.answers.next().await, Ok(None)) {
                return None;
            }
            self.answers.into_clean(ended)
        }
        .boxed()
    }
}
