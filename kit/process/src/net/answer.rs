//! Bounds the answers that clients have not read yet (backpressure).

use super::peer::{Peer, Progress};
use super::share::{Limit, Reasons, Share};
use super::too_long::Call;
use http_body::{Body as HttpBody, Frame, SizeHint};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tonic::Status;
use tonic::codegen::Bytes;
use tonic::codegen::http::HeaderMap;

/// Maximum size of a piece of an answer for the transport, in bytes. A client that reads less than one piece within its
/// timeout counts as stalled. Answer parts up to this size count as small.
pub const PIECE_BYTES_MAX: usize = 64 << 10;

/// Limits on unread answer bytes, over all connections of a port.
#[derive(Debug, Clone)]
pub struct AnswerLimits {
    /// Limit for parts larger than [`PIECE_BYTES_MAX`].
    pub large: Limit,
    /// Limit for all other parts, so that large answers never delay small ones.
    pub small: Limit,
    /// Counts rejected answers by the exceeded limit: `answer_bytes`, `answer_bytes_of_connection`.
    pub refused: Reasons,
}

/// The limit that is exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exceeded {
    /// The limit of the connection.
    Connection,
    /// The limit of the port.
    Port,
}

/// Bytes that count against the limits of both the port and the connection.
#[derive(Debug)]
pub(crate) struct Charge {
    port: Share,
    own: Share,
}

impl Charge {
    pub(super) fn reserve_bytes(port: &Limit, own: &Limit, bytes: usize) -> Result<Self, Exceeded> {
        let own = own.take(bytes).ok_or(Exceeded::Connection)?;
        let port = port.take(bytes).ok_or(Exceeded::Port)?;
        Ok(Self { port, own })
    }

    /// Adds bytes to the connection's and the port's counts. Fails at the first limit that is exceeded.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<(), Exceeded> {
        if !self.own.grow(bytes) {
            return Err(Exceeded::Connection);
        }
        if !self.port.grow(bytes) {
            return Err(Exceeded::Port);
        }
        Ok(())
    }

    fn split(&mut self, bytes: usize) -> Self {
        Self { port: self.port.split(bytes), own: self.own.split(bytes) }
    }
}

/// The body of an answer. Its bytes count against the limits until the transport has sent them or the connection ends.
/// If a part exceeds a limit, the answer ends with `RESOURCE_EXHAUSTED`. `K` is kept until the transport has received
/// everything.
pub struct AnswerBody<B, K> {
    call: Call,
    body: B,
    limits: AnswerLimits,
    peer: Arc<Peer>,
    progress: Option<Arc<Progress>>,
    /// The rest of a part that the transport has not received yet.
    rest: Option<(Bytes, Charge)>,
    refused: bool,
    _kept: K,
}

impl<B, K> AnswerBody<B, K> {
    /// Wraps the body of an answer to a client.
    pub fn new(body: B, limits: AnswerLimits, peer: Arc<Peer>, call: Call, kept: K) -> Self {
        let progress = None;
        let rest = None;
        let refused = false;
        Self { call, body, limits, peer, progress, rest, refused, _kept: kept }
    }

    /// Returns the next piece of the current part, or `None` if the part is complete.
    fn piece(&mut self) -> Option<Bytes> {
        let (mut bytes, mut charge) = self.rest.take()?;
        let piece = bytes.split_to(bytes.len().min(PIECE_BYTES_MAX));
        let share = charge.split(piece.len());
        if !bytes.is_empty() {
            self.rest = Some((bytes, charge));
        }
        let progress = self.progress.get_or_insert_with(|| {
            let progress = Arc::default();
            self.peer.watch(&progress);
            progress
        });
        let progress = Arc::clone(progress);
        progress.count_passed();
        Some(Bytes::from_owner(Piece { bytes: piece, progress, _charge: share }))
    }

    /// Charges a part to the limits for its size.
    fn charge(&self, bytes: usize) -> Result<Charge, Exceeded> {
        let (port, own) = if bytes > PIECE_BYTES_MAX {
            (&self.limits.large, &self.peer.large_answer_bytes)
        } else {
            (&self.limits.small, &self.peer.small_answer_bytes)
        };
        Charge::reserve_bytes(port, own, bytes)
    }

    /// Ends an answer that exceeds a limit, with `RESOURCE_EXHAUSTED`.
    fn refuse(&mut self, exceeded: Exceeded) -> Result<Frame<Bytes>, Status> {
        self.refused = true;
        let (reason, who) = match exceeded {
            Exceeded::Connection => ("answer_bytes_of_connection", "this client"),
            Exceeded::Port => ("answer_bytes", "other clients"),
        };
        self.limits.refused.count(reason);
        let refusal = format!("{who} must first read earlier answers: retry later");
        let mut trailers = HeaderMap::new();
        Status::resource_exhausted(refusal).add_header(&mut trailers)?;
        Ok(Frame::trailers(trailers))
    }
}

impl<B, K> HttpBody for AnswerBody<B, K>
where
    B: HttpBody<Data = Bytes, Error = Status> + Unpin,
    K: Unpin,
{
    type Data = Bytes;
    type Error = Status;

    /// Passes the answer to the transport in pieces of at most [`PIECE_BYTES_MAX`]. In this order:
    /// 1. A rejected answer has ended.
    /// 2. The rest of the current part is sent first.
    /// 3. Trailers and empty parts pass unchanged.
    /// 4. Any other part is charged to the limits. Beyond a limit, the answer ends with `RESOURCE_EXHAUSTED`.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.refused {
            return Poll::Ready(None);
        }
        if let Some(piece) = self.piece() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let Some(Ok(frame)) = frame else { return Poll::Ready(frame) };
        let bytes = match frame.into_data() {
            Ok(bytes) if bytes.is_empty() => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
            Ok(bytes) => bytes,
            Err(frame) => {
                if let Some(trailers) = frame.trailers_ref() {
                    self.call.look(trailers);
                }
                return Poll::Ready(Some(Ok(frame)));
            }
        };
        match self.charge(bytes.len()) {
            Ok(charge) => {
                self.rest = Some((bytes, charge));
                Poll::Ready(self.piece().map(|piece| Ok(Frame::data(piece))))
            }
            Err(exceeded) => Poll::Ready(Some(self.refuse(exceeded))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.refused || self.rest.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // The body may be rejected, so its size is unknown.
        SizeHint::default()
    }
}

impl<B, K> fmt::Debug for AnswerBody<B, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnswerBody").field("rest", &self.rest).finish_non_exhaustive()
    }
}

/// A piece of an answer. The transport drops it after sending it, or when it can no longer be sent.
struct Piece {
    bytes: Bytes,
    progress: Arc<Progress>,
    _charge: Charge,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.progress.count_sent();
    }
}

#[cfg(test)]
#[path = "answer_test.rs"]
mod tests;
