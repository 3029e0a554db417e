use super::connection::{Connection, of_refusal};
use crate::backend::FetchFault;
use crate::limits::{REQUEST_BLOCKS_MAX, REQUEST_TIMEOUT_MAX, REQUESTS_AHEAD_MAX};
use crate::wire::{BlockHead, End, Fault, Fetch, FrameReader, Message, WireError};
use kvasir_blocks::sets::TransferGuard;
use kvasir_proto::types::SequenceHash;
use kvasir_tls::Stream;
use std::collections::VecDeque;
use std::slice::Chunks;
use tokio::time::Instant;

/// Requests on one connection, and their answers, in order.
pub(super) struct Answers<'a> {
    /// Until it is dropped, the set's id names no other one. It goes before the connection.
    guard: TransferGuard,
    connection: Connection,
    deadline: Instant,
    /// Hashes not requested yet.
    parts: Chunks<'a, SequenceHash>,
    /// Requested hashes, by request number.
    asked: VecDeque<(u64, &'a [SequenceHash])>,
    /// Blocks that have come of the first of them.
    came: usize,
}

impl<'a> Answers<'a> {
    /// Of a connection that nobody else uses, for these blocks.
    pub(super) fn new(
        connection: Connection,
        wanted: &'a [SequenceHash],
        deadline: Instant,
    ) -> Result<Self, FetchFault> {
        let handle = connection.set.get_remote_blocks(&[]);
        let guard = handle.and_then(|handle| handle.begin_read());
        let guard = guard.map_err(|_ended| FetchFault::Fenced)?;
        let (parts, asked) = (wanted.chunks(REQUEST_BLOCKS_MAX), VecDeque::new());
        Ok(Self { guard, connection, deadline, parts, asked, came: 0 })
    }

    /// The head of the next block; none once all have come. The bytes of the last one must have been read.
    pub(super) async fn next(&mut self) -> Result<Option<BlockHead>, FetchFault> {
        loop {
            self.ask().await?;
            let Some((number, part)) = self.asked.front().copied() else { return Ok(None) };
            match self.connection.reader.frame().await.map_err(of_wire)? {
                Some(Message::Block(head)) => {
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
                Some(Message::End(end)) if end.request == number => {
                    let ended = of_end(&end, self.came, part.len());
                    if matches!(ended, Ok(()) | Err(FetchFault::Missing)) {
                        self.asked.pop_front();
                        self.came = 0;
                    }
                    ended?;
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

    /// Sends requests up to the pipeline limit.
    pub(super) async fn ask(&mut self) -> Result<(), FetchFault> {
        while self.asked.len() < REQUESTS_AHEAD_MAX {
            let Some(part) = self.parts.next() else { return Ok(()) };
            let left = self.deadline.saturating_duration_since(Instant::now());
            let millis = left.min(REQUEST_TIMEOUT_MAX).as_millis();
            let fence = self.guard.fence();
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

    /// What the bytes of the block are read from whose head came last.
    pub(super) const fn reader(&mut self) -> &mut FrameReader<Stream> {
        &mut self.connection.reader
    }

    /// Whether the owner's set has ended: its bytes are worth nothing.
    pub(super) fn is_fenced(&self) -> bool {
        self.guard.ended().is_some()
    }

    /// Blocks that were requested and have not come.
    pub(super) fn due(&self) -> usize {
        let asked: usize = self.asked.iter().map(|(_, part)| part.len()).sum();
        asked.saturating_sub(self.came)
    }

    /// The connection, if it may be used again after this result: no part of an answer is still expected on it.
    pub(super) fn into_clean(self, ended: &Result<(), FetchFault>) -> Option<Connection> {
        let is_clean = self.asked.is_empty() && matches!(ended, Ok(()) | Err(FetchFault::Missing));
        drop(self.guard);
        is_clean.then_some(self.connection)
    }
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
