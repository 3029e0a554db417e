use super::connection::{Connection, of_refusal};
use crate::backend::FetchFault;
use crate::limits::{REQUEST_BLOCKS_MAX, REQUEST_TIMEOUT_MAX};
use crate::wire::{End, Fault, Fetch, Message, WireError};
use kvasir_blocks::sets::TransferGuard;
use kvasir_proto::types::SequenceHash;
use std::collections::VecDeque;
use std::slice::Chunks;
use std::sync::Arc;
use tokio::time::Instant;

/// A type of request, and the maximum number of unanswered requests on one connection.
pub(super) struct RequestKind {
    pub(super) message: fn(Fetch) -> Message,
    pub(super) ahead_max: usize,
}

/// Pipelined requests for blocks on one connection. The owner answers them in order.
pub(super) struct Requests<'a> {
    /// While it exists, the registry does not reuse the set's id. It must be dropped before the connection.
    pub(super) guard: Arc<TransferGuard>,
    pub(super) connection: Connection,
    kind: RequestKind,
    pub(super) deadline: Instant,
    /// Hashes not requested yet.
    pub(super) parts: Chunks<'a, SequenceHash>,
    /// Requests without a complete answer: number and hashes.
    asked: VecDeque<(u64, &'a [SequenceHash])>,
}

impl<'a> Requests<'a> {
    /// Starts to request blocks on a connection that has no other user. Fails if the owner's set has ended.
    pub(super) fn new(
        connection: Connection,
        kind: RequestKind,
        wanted: &'a [SequenceHash],
        deadline: Instant,
    ) -> Result<Self, FetchFault> {
        let handle = connection.set.get_remote_blocks(&[]);
        let guard = handle.and_then(|handle| handle.begin_read());
        let guard = Arc::new(guard.map_err(|_ended| FetchFault::Fenced)?);
        let parts = wanted.chunks(REQUEST_BLOCKS_MAX);
        let asked = VecDeque::new();
        Ok(Self { guard, connection, kind, deadline, parts, asked })
    }

    /// Sends requests until `ahead_max` are unanswered, or all blocks are requested.
    pub(super) async fn send_requests(&mut self) -> Result<(), FetchFault> {
        while self.asked.len() < self.kind.ahead_max {
            let Some(part) = self.parts.next() else { return Ok(()) };
            let left = self.deadline.saturating_duration_since(Instant::now());
            let millis = left.min(REQUEST_TIMEOUT_MAX).as_millis();
            let fence = self.guard.fence();
            let number = self.connection.next_request;
            let request = (self.kind.message)(Fetch {
                request: number,
                epoch: fence.epoch,
                export: fence.export,
                timeout_ms: u32::try_from(millis).unwrap_or(u32::MAX).max(1),
                sequences: part.iter().map(|sequence| sequence.0).collect(),
            });
            self.connection.next_request += 1;
            self.asked.push_back((number, part));
            self.connection.send(&request).await.map_err(of_wire)?;
        }
        Ok(())
    }

    /// The request whose answer comes next: its number and hashes.
    pub(super) fn first(&self) -> Option<(u64, &'a [SequenceHash])> {
        self.asked.front().copied()
    }

    /// Removes the first request, whose answer is complete. Returns the number of its blocks.
    pub(super) fn answered(&mut self) -> usize {
        self.asked.pop_front().map_or(0, |(_, part)| part.len())
    }

    /// Receives the next frame.
    ///
    /// # Errors
    /// If the connection ends, or the owner refuses a request.
    pub(super) async fn frame(&mut self) -> Result<Message, FetchFault> {
        match self.connection.reader.frame().await.map_err(of_wire)? {
            Some(Message::Refusal(refusal)) => Err(of_refusal(refusal)),
            Some(message) => Ok(message),
            None => Err(of_wire(WireError::Closed)),
        }
    }

    /// Number of blocks of all requests without a complete answer.
    pub(super) fn blocks_asked(&self) -> usize {
        self.asked.iter().map(|(_, part)| part.len()).sum()
    }

    /// Whether the owner's set has ended, so that its bytes are invalid.
    pub(super) fn is_fenced(&self) -> bool {
        self.guard.ended().is_some()
    }

    /// Returns the connection if it can be reused: if `is_over`, and every request is answered.
    pub(super) fn into_clean(self, is_over: bool) -> Option<Connection> {
        let is_clean = self.asked.is_empty() && is_over;
        drop(self.guard);
        is_clean.then_some(self.connection)
    }
}

/// The fault of a peer that sent an unexpected frame.
pub(super) fn out_of_turn() -> FetchFault {
    FetchFault::Lost("the peer sent an unexpected frame".to_owned())
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(super) fn of_wire(error: WireError) -> FetchFault {
    let text = error.to_string();
    // The block's hash or position contradicts the rest of its header.
    let is_corrupt = matches!(error, WireError::Field { .. });
    if is_corrupt { FetchFault::Corrupt(text) } else { FetchFault::Lost(text) }
}

/// Returns the result of a request for `wanted` blocks, of which `came` were received.
pub(super) fn of_end(end: &End, came: usize, wanted: usize) -> Result<(), FetchFault> {
    let unavailable = |text: &str| Err(FetchFault::Unavailable(text.to_owned()));
    if end.blocks as usize != came {
        let text = format!("the peer sent {} blocks, and {came} arrived", end.blocks);
        return Err(FetchFault::Lost(text));
    }
    match end.fault() {
        Fault::Unspecified if came == wanted => Ok(()),
        Fault::Unspecified => Err(FetchFault::Lost("the answer is short".to_owned())),
        Fault::Missing => Err(FetchFault::Missing),
        Fault::Corrupt => unavailable("the peer found its copy corrupt and dropped it"),
        Fault::Unreadable => unavailable("the peer can't read the block"),
        Fault::Busy => unavailable("the peer has too many requests"),
        Fault::Fenced => Err(FetchFault::Fenced),
        Fault::Stopping => unavailable("the peer is stopping"),
        Fault::TimedOut => Err(FetchFault::TimedOut),
    }
}
