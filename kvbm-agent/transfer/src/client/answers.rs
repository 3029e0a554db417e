use super::connection::Connection;
use super::requests::{RequestKind, Requests, of_end, out_of_turn};
use crate::backend::FetchFault;
use crate::limits::REQUESTS_AHEAD_MAX;
use crate::wire::{BlockHead, FrameReader, Message};
use kvasir_proto::types::SequenceHash;
use kvasir_tls::Stream;
use tokio::time::Instant;

/// Receives the blocks that an owner sends over one connection, in the order of their requests.
pub(super) struct Answers<'a> {
    requests: Requests<'a>,
    /// Number of blocks received for the first request.
    came: usize,
}

impl<'a> Answers<'a> {
    /// Requests these blocks on a connection that nothing else uses.
    pub(super) fn new(
        connection: Connection,
        wanted: &'a [SequenceHash],
        deadline: Instant,
    ) -> Result<Self, FetchFault> {
        let kind = RequestKind { message: Message::Fetch, ahead_max: REQUESTS_AHEAD_MAX };
        Ok(Self { requests: Requests::new(connection, kind, wanted, deadline)?, came: 0 })
    }

    /// Receives the head of the next block, or `None` after the last one. The caller must have read all bytes of the
    /// previous block.
    pub(super) async fn next(&mut self) -> Result<Option<BlockHead>, FetchFault> {
        loop {
            self.send_requests().await?;
            let Some((number, part)) = self.requests.first() else { return Ok(None) };
            let message = self.requests.frame().await?;
            if let Message::End(end) = &message
                && end.request == number
            {
                let ended = of_end(end, self.came, part.len());
                if matches!(ended, Ok(()) | Err(FetchFault::Missing)) {
                    self.requests.answered();
                    self.came = 0;
                }
                ended?;
                continue;
            }
            let Message::Block(head) = message else { return Err(out_of_turn()) };
            let is_expected = part.get(self.came).is_some_and(|at| at.0 == head.sequence)
                && head.request == number
                && head.index as usize == self.came;
            if !is_expected {
                let text = "the peer sent another block than the one that is next";
                return Err(FetchFault::Corrupt(text.to_owned()));
            }
            self.came += 1;
            return Ok(Some(head));
        }
    }

    /// Sends requests up to the pipeline limit.
    pub(super) async fn send_requests(&mut self) -> Result<(), FetchFault> {
        self.requests.send_requests().await
    }

    /// Reader for the bytes of the block whose head was received last.
    pub(super) const fn reader(&mut self) -> &mut FrameReader<Stream> {
        &mut self.requests.connection.reader
    }

    /// Whether the owner's set has ended, so that its bytes are invalid.
    pub(super) fn is_fenced(&self) -> bool {
        self.requests.is_fenced()
    }

    /// Number of requested blocks not received yet.
    pub(super) fn missing_blocks(&self) -> usize {
        self.requests.blocks_asked().saturating_sub(self.came)
    }

    /// Returns the connection if it can be reused after this result: no more answers are expected on it.
    pub(super) fn into_clean(self, ended: &Result<(), FetchFault>) -> Option<Connection> {
        self.requests.into_clean(matches!(ended, Ok(()) | Err(FetchFault::Missing)))
    }
}
