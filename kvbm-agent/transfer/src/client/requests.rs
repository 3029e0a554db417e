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

/// One kind of request, and how many of them may be under way on a connection.
pub(super) struct RequestKind {
    pub(super) message: fn(Fetch) -> Message,
    pub(super) ahead_max: usize,
}

/// Requests for blocks on one connection, sent ahead of their answers, which come in the same order.
pub(super) struct Requests<'a> {
    /// Until it is dropped, the set's id names no other one. It goes before the connection.
    pub(super) guard: Arc<TransferGuard>,
    pub(super) connection: Connection,
    kind: RequestKind,
    pub(super) deadline: Instant,
    /// Hashes not asked for yet.
    pub(super) parts: Chunks<'a, SequenceHash>,
    /// Hashes asked for, by request number.
    asked: VecDeque<(u64, &'a [SequenceHash])>,
}

impl<'a> Requests<'a> {
    /// On a connection that nobody else uses, for these blocks.
    pub(super) fn new(
        connection: Connection,
        kind: RequestKind,
        wanted: &'a [SequenceHash],
        deadline: Instant,
    ) -> Result<Self, FetchFault> {
        let handle = connection.set.get_remote_blocks(&[]);
        let guard = handle.and_then(|handle| handle.begin_read());
        let guard = Arc::new(guard.map_err(|_ended| FetchFault::Fenced)?);
        let (parts, asked) = (wanted.chunks(REQUEST_BLOCKS_MAX), VecDeque::new());
        Ok(Self { guard, connection, kind, deadline, parts, asked })
    }

    /// Sends requests up to the limit.
    pub(super) async fn ask(&mut self) -> Result<(), FetchFault> {
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

    /// The request that is answered next: its number, and the blocks that it asked for.
    pub(super) fn first(&self) -> Option<(u64, &'a [SequenceHash])> {
        self.asked.front().copied()
    }

    /// The first request is answered. Returns for how many blocks it asked.
    pub(super) fn answered(&mut self) -> usize {
        self.asked.pop_front().map_or(0, |(_, part)| part.len())
    }

    /// The next frame of the answers.
    ///
    /// # Errors
    /// If the connection ends, or the owner refuses.
    pub(super) async fn frame(&mut self) -> Result<Message, FetchFault> {
        match self.connection.reader.frame().await.map_err(of_wire)? {
            Some(Message::Refusal(refusal)) => Err(of_refusal(refusal)),
            Some(message) => Ok(message),
            None => Err(of_wire(WireError::Closed)),
        }
    }

    /// Blocks that were asked for by requests that are not answered.
    pub(super) fn blocks_asked(&self) -> usize {
        self.asked.iter().map(|(_, part)| part.len()).sum()
    }

    /// Whether the owner's set has ended: its bytes are worth nothing.
    pub(super) fn is_fenced(&self) -> bool {
        self.guard.ended().is_some()
    }

    /// The connection, if it may be used again: the exchange came to its end, and no answer is expected any more.
    pub(super) fn into_clean(self, is_over: bool) -> Option<Connection> {
        let is_clean = self.asked.is_empty() && is_over;
        drop(self.guard);
        is_clean.then_some(self.connection)
    }
}

/// The peer sent a frame that no answer has at this place.
pub(super) fn out_of_turn() -> FetchFault {
    FetchFault::Lost("the peer sent a frame that is not its turn".to_owned())
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(super) fn of_wire(error: WireError) -> FetchFault {
    let text = error.to_string();
    // A name or position that does not fit: not the block that it says.
    let is_corrupt = matches!(error, WireError::Field { .. });
    if is_corrupt { FetchFault::Corrupt(text) } else { FetchFault::Lost(text) }
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
