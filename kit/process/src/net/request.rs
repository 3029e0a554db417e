//! Bounds the requests that arrive: their time, and the bytes of incomplete messages.

use super::answer::{Charge, Exceeded};
use super::peer::Peer;
use super::share::{Limit, Reasons};
use http_body::{Body as HttpBody, Frame, SizeHint};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::Status;
use tonic::codegen::Bytes;

/// How long a request may take to arrive, by kind.
#[derive(Debug, Clone)]
pub enum Pace {
    /// A request with one message: from its start to its end.
    Single(Duration),
    /// A stream: from the first to the last byte of each message. Between messages the stream may be idle as long as
    /// its connection lasts.
    Endless(Duration),
    /// Like `Endless`, for a stream that also ends after too long an idle time.
    Idle(Duration, IdleLimit),
}

/// How long a stream may be idle: no request has arrived, and all answers are made.
#[derive(Debug, Clone)]
pub struct IdleLimit {
    /// Approximate limit; up to `crowded` longer.
    pub usual: Duration,
    /// Approximate limit while more than half of `streams` are open; up to twice as long.
    pub crowded: Duration,
    /// All streams of this kind.
    pub streams: Limit,
}

impl Pace {
    fn is_crowded(&self) -> bool {
        matches!(self, Self::Idle(_, limit) if limit.streams.is_half_held())
    }
}

/// A message may take one second longer than its [`Pace`] allows, for each received chunk of this many bytes.
pub const BYTES_PER_SECOND_MIN: usize = 512 << 10;

/// Why reading a request stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unread {
    Slow,
    Idle,
    Bytes(Exceeded),
}

/// Limits of a request's body.
#[derive(Debug, Clone)]
pub struct RequestLimits {
    /// Timeouts of the request.
    pub pace: Pace,
    /// Maximum bytes of incomplete messages, over all connections of a port.
    pub message_bytes: Limit,
    /// Counts requests that the server stops reading, by reason: `message_slow`, `stream_idle`, `message_bytes`,
    /// `message_bytes_of_connection`.
    pub unread: Reasons,
}

/// The body of a gRPC request. It fails with `DEADLINE_EXCEEDED` or `RESOURCE_EXHAUSTED`, and ends when idle too long.
pub struct RequestBody<B> {
    body: B,
    limits: RequestLimits,
    peer: Arc<Peer>,
    messages: Messages,
    /// Bytes received of the incomplete message.
    charge: Option<Charge>,
    /// Start of the wait for the current message.
    since: Option<Instant>,
    /// Bytes received since then.
    came: usize,
    timer: Option<Pin<Box<Sleep>>>,
    over: bool,
    /// Whether a message ended in the bytes that were read last.
    is_whole: bool,
    /// A message that is held back while large answers wait to be read.
    held_back: Option<Frame<Bytes>>,
    /// Time of the next check whether to pass on `held_back`.
    look: Option<Pin<Box<Sleep>>>,
    /// Ready when the connection is old.
    aged: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

/// Interval at which a held-back message is checked again.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Finds the boundaries of messages in the bytes of a request. Each message has a header of five bytes; the last four
/// are its length.
#[derive(Debug, Default)]
struct Messages {
    header: [u8; HEADER_BYTES],
    header_filled: usize,
    /// Bytes of the message still to come.
    left: usize,
    /// Received bytes of the message, including the header; 0 between messages.
    came: usize,
}

const HEADER_BYTES: usize = 5;

impl Messages {
    /// Advances through the headers and bodies of messages, without decoding them. Bytes may end anywhere in a
    /// message.
    fn read_bytes(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.left == 0 {
                let header = self.header.get_mut(self.header_filled..).unwrap_or_default();
                let taken = header.len().min(bytes.len());
                let (now, rest) = bytes.split_at(taken);
                if let Some(header) = header.get_mut(..taken) {
                    header.copy_from_slice(now);
                }
                (self.header_filled, bytes) = (self.header_filled + taken, rest);
                self.came += taken;
                if self.header_filled < HEADER_BYTES {
                    return;
                }
                let [_compressed, length @ ..] = self.header;
                self.left = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
            }
            let taken = self.left.min(bytes.len());
            bytes = bytes.get(taken..).unwrap_or_default();
            (self.left, self.came) = (self.left - taken, self.came + taken);
            if self.left == 0 {
                (self.header_filled, self.came) = (0, 0);
            }
        }
    }
}

impl<B> RequestBody<B> {
    /// Wraps the body of a client's request.
    pub const fn new(body: B, limits: RequestLimits, peer: Arc<Peer>) -> Self {
        Self {
            body,
            limits,
            peer,
            messages: Messages { header: [0; HEADER_BYTES], header_filled: 0, left: 0, came: 0 },
            charge: None,
            since: None,
            came: 0,
            timer: None,
            over: false,
            is_whole: false,
            held_back: None,
            look: None,
            aged: None,
        }
    }

    /// Ready with the held-back message as soon as fewer large answers wait. Computing another answer takes time, and
    /// the answer would be rejected. Answers to publishers are small.
    fn poll_held_back(&mut self, context: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        while self.peer.large_answer_bytes.is_half_held() {
            let look = self.look.get_or_insert_with(|| Box::pin(sleep(LOOK_INTERVAL)));
            ready!(look.as_mut().poll(context));
            look.as_mut().reset(Instant::now() + LOOK_INTERVAL);
        }
        Poll::Ready(self.held_back.take())
    }

    /// Charges received bytes to the limits until their message is complete. Fails if a limit is exceeded.
    fn check_bytes(&mut self, bytes: &[u8]) -> Result<(), Unread> {
        self.is_whole = false;
        let before = self.messages.came;
        let is_stream = !matches!(self.limits.pace, Pace::Single(_));
        if before == 0 && is_stream {
            // The stream was idle until now.
            (self.since, self.came) = (None, 0);
        }
        self.messages.read_bytes(bytes);
        self.came += bytes.len();
        let came = self.messages.came;
        if came < before + bytes.len() {
            // The bytes contain the end of a message.
            self.charge = None;
            self.is_whole = true;
            if is_stream {
                (self.since, self.came) = (None, came);
            }
        }
        if came == 0 {
            return Ok(());
        }
        let added = if self.charge.is_some() { came - before } else { came };
        let port = &self.limits.message_bytes;
        let own = &self.peer.message_bytes;
        let charged = match &mut self.charge {
            Some(charge) => charge.grow(added),
            None => {
                Charge::reserve_bytes(port, own, added).map(|charge| self.charge = Some(charge))
            }
        };
        charged.map_err(Unread::Bytes)
    }

    /// Whether this is a stream between two messages on an old connection. The client sends further requests on another
    /// connection.
    fn is_aged(&mut self, context: &mut Context<'_>) -> bool {
        if self.messages.came > 0 || matches!(self.limits.pace, Pace::Single(_)) {
            return false;
        }
        let wait = || Box::pin(self.peer.aged.clone().cancelled_owned());
        self.aged.get_or_insert_with(wait).as_mut().poll(context).is_ready()
    }

    /// Ready once the request has taken too long: its message arrives too slowly, or its stream is idle.
    fn poll_late(&mut self, context: &mut Context<'_>) -> Poll<Unread> {
        let message = match &self.limits.pace {
            Pace::Single(message) => *message,
            Pace::Endless(message) | Pace::Idle(message, _) if self.messages.came > 0 => *message,
            Pace::Endless(_) => return Poll::Pending,
            Pace::Idle(_, limit) => {
                let usual = limit.usual;
                let crowded = limit.crowded;
                return self.poll_idle(usual, crowded, context);
            }
        };
        let since = *self.since.get_or_insert_with(Instant::now);
        let allowed = Duration::from_secs((self.came / BYTES_PER_SECOND_MIN) as u64);
        let deadline = since + message + allowed;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(message)));
        if timer.deadline() != deadline {
            timer.as_mut().reset(deadline);
        }
        timer.as_mut().poll(context).map(|()| Unread::Slow)
    }

    /// Ready once the stream was idle for `usual`, or for `crowded` while streams are scarce. Resets the timer when it
    /// elapses, instead of with each message, so that a busy stream has no cost.
    fn poll_idle(
        &mut self,
        usual: Duration,
        crowded: Duration,
        context: &mut Context<'_>,
    ) -> Poll<Unread> {
        let since = *self.since.get_or_insert_with(Instant::now);
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(crowded)));
        while timer.as_mut().poll(context).is_ready() {
            let idle = since.elapsed();
            if idle >= usual || idle >= crowded && self.limits.pace.is_crowded() {
                return Poll::Ready(Unread::Idle);
            }
            timer.as_mut().reset(Instant::now() + crowded);
        }
        Poll::Pending
    }

    /// Ends a request that is not read any further, and counts the reason. An idle stream ends without an error.
    fn end_request(&mut self, why: Unread) -> Option<Result<Frame<Bytes>, Status>> {
        self.over = true;
        let (reason, status) = match why {
            Unread::Idle => ("stream_idle", None),
            Unread::Slow => {
                let error = "the request was sent too slowly";
                ("message_slow", Some(Status::deadline_exceeded(error)))
            }
            Unread::Bytes(Exceeded::Connection) => {
                let error = "too much of this client has arrived in part: retry later";
                ("message_bytes_of_connection", Some(Status::resource_exhausted(error)))
            }
            Unread::Bytes(Exceeded::Port) => {
                let error = "too much of other clients has arrived in part: retry later";
                ("message_bytes", Some(Status::resource_exhausted(error)))
            }
        };
        self.limits.unread.count(reason);
        status.map(Err)
    }
}

impl<B> HttpBody for RequestBody<B>
where
    B: HttpBody<Data = Bytes, Error = Status> + Unpin,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.over {
            return Poll::Ready(None);
        }
        if self.held_back.is_some() {
            return self.poll_held_back(context).map(|frame| frame.map(Ok));
        }
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                let read = frame.data_ref().map_or(Ok(()), |bytes| self.check_bytes(bytes));
                let publishes = matches!(self.limits.pace, Pace::Endless(_));
                match read {
                    Ok(()) if self.is_whole && !publishes => {
                        self.held_back = Some(frame);
                        self.poll_held_back(context).map(|frame| frame.map(Ok))
                    }
                    Ok(()) => Poll::Ready(Some(Ok(frame))),
                    Err(why) => Poll::Ready(self.end_request(why)),
                }
            }
            Poll::Ready(end) => Poll::Ready(end),
            Poll::Pending if self.is_aged(context) => {
                self.over = true;
                Poll::Ready(None)
            }
            Poll::Pending => self.poll_late(context).map(|why| self.end_request(why)),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.over || self.held_back.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> fmt::Debug for RequestBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestBody").field("messages", &self.messages).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "request_test.rs"]
mod tests;
