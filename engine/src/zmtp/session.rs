use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::frame::{FrameHeader, FrameKind, put_frame};
use super::handshake::{self, Fitting, GREETING_BYTES};
use super::{Limits, Message, ProtocolError};

/// Maximum bytes per read.
const READ_CHUNK_BYTES: usize = 64 * 1024;
/// Maximum length of a command body. READY with its properties is the longest command in use.
const COMMAND_BYTES_MAX: usize = 4 * 1024;
/// Maximum bytes waiting for the peer; beyond it, the peer counts as not reading. A read chunk full of PINGs
/// causes at most a chunk of PONGs.
const OUTPUT_BYTES_MAX: usize = 4 * READ_CHUNK_BYTES;

const SUBSCRIBE: u8 = 1;
const PING: &[u8] = b"\x04PING";
const PING_TTL_BYTES: usize = 2;
const PONG: &[u8] = b"\x04PONG";

/// The role of our end of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Receives messages whose first frame starts with `topic`.
    Subscriber {
        /// Topic prefix; empty for all topics.
        topic: Bytes,
    },
    /// Exchanges messages with a ROUTER.
    Dealer,
}

/// An event of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// The handshake is complete. The subscription, if any, is in the output.
    Ready {
        /// Whether the peer supports PING (ZMTP 3.1 and later).
        pings: bool,
    },
    /// A complete message.
    Message(Message),
}

/// One ZMTP connection without its socket: bytes in, events and bytes out.
///
/// The owner writes [`Session::output`], reads into [`Session::read_buffer`], and calls
/// [`Session::next_event`] until it returns `None`. After an error the connection must be dropped.
#[derive(Debug)]
pub struct Session {
    role: Role,
    limits: MessageLimits,
    stage: Stage,
    input: BytesMut,
    output: BytesMut,
    /// Frames of an incomplete message.
    partial: Message,
    /// Sum of the lengths in `partial`.
    partial_bytes: usize,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Greeting,
    Handshake { pings: bool },
    Traffic,
}

#[derive(Clone, Copy, Debug)]
struct MessageLimits {
    frame_bytes_max: usize,
    message_frames_max: usize,
    message_bytes_max: usize,
}

/// Result of one look at the input.
enum Step {
    Incomplete,
    Again,
    Event(SessionEvent),
}

// === impl Role ===

impl Role {
    fn socket_type(&self) -> &'static str {
        match self {
            Self::Subscriber { .. } => "SUB",
            Self::Dealer => "DEALER",
        }
    }

    fn fitting(&self) -> Fitting {
        match self {
            Self::Subscriber { .. } => Fitting { types: &["PUB", "XPUB"], text: "PUB or XPUB" },
            Self::Dealer => Fitting { types: &["ROUTER"], text: "ROUTER" },
        }
    }
}

// === impl Session ===

impl Session {
    /// Creates a session, with its greeting in the output.
    #[must_use]
    pub fn new(role: Role, limits: &Limits) -> Self {
        let mut output = BytesMut::new();
        handshake::put_greeting(&mut output);
        Self {
            role,
            limits: MessageLimits {
                frame_bytes_max: limits.frame_bytes_max,
                message_frames_max: limits.message_frames_max,
                message_bytes_max: limits.message_bytes_max,
            },
            stage: Stage::Greeting,
            input: BytesMut::new(),
            output,
            partial: Message::new(),
            partial_bytes: 0,
        }
    }

    /// Bytes to be written to the peer.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        &self.output
    }

    /// Removes the first `count` bytes of the output, which were written.
    pub fn written(&mut self, count: usize) {
        self.output.advance(count.min(self.output.len()));
    }

    /// Space for the next bytes from the peer: one chunk, whatever length a frame header announced.
    pub fn read_buffer(&mut self) -> impl BufMut + '_ {
        self.input.reserve(READ_CHUNK_BYTES);
        (&mut self.input).limit(READ_CHUNK_BYTES)
    }

    /// Frees the input buffer if it is empty. To be called when nothing more can be read for now: a server has a
    /// connection for each engine, most of which are idle at a time.
    pub fn release_buffer(&mut self) {
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
    }

    /// Allocated bytes of the input buffer.
    #[must_use]
    pub fn input_capacity(&self) -> usize {
        self.input.capacity()
    }

    /// Appends a message to the output. Without frames, does nothing.
    pub fn queue_message(&mut self, frames: &[&[u8]]) {
        let Some((last, others)) = frames.split_last() else {
            return;
        };
        for frame in others {
            put_frame(&mut self.output, FrameKind::More, frame);
        }
        put_frame(&mut self.output, FrameKind::Last, last);
    }

    /// Appends a PING. It allows the peer to drop us after receiving no bytes for `ttl` (whole tenths of a
    /// second, at most 6553.5 s).
    pub fn queue_ping(&mut self, ttl: Duration) {
        let tenths = u16::try_from(ttl.as_millis() / 100).unwrap_or(u16::MAX);
        let mut body = BytesMut::from(PING);
        body.put_u16(tenths);
        put_frame(&mut self.output, FrameKind::Command, &body);
    }

    /// The next event in the bytes received so far; `None` if more bytes are needed.
    ///
    /// # Errors
    /// [`ProtocolError`] as soon as the input violates the protocol or the limits.
    pub fn next_event(&mut self) -> Result<Option<SessionEvent>, ProtocolError> {
        loop {
            let step = match self.stage {
                Stage::Greeting => self.read_greeting()?,
                Stage::Handshake { pings } => self.read_ready(pings)?,
                Stage::Traffic => self.read_frame()?,
            };
            match step {
                Step::Incomplete => return Ok(None),
                Step::Again => {}
                Step::Event(event) => return Ok(Some(event)),
            }
        }
    }

    fn read_greeting(&mut self) -> Result<Step, ProtocolError> {
        let Some(pings) = handshake::check_greeting(&self.input)? else {
            return Ok(Step::Incomplete);
        };
        self.input.advance(GREETING_BYTES);
        let ready = handshake::ready_body(self.role.socket_type());
        put_frame(&mut self.output, FrameKind::Command, &ready);
        self.stage = Stage::Handshake { pings };
        Ok(Step::Again)
    }

    /// Reads the READY command that ends the handshake, and checks the peer's socket type. A subscriber then sends
    /// its subscription.
    fn read_ready(&mut self, pings: bool) -> Result<Step, ProtocolError> {
        let Some(header) = FrameHeader::parse(&self.input)? else {
            return Ok(Step::Incomplete);
        };
        if header.kind != FrameKind::Command {
            return Err(ProtocolError::NotReady);
        }
        let Some(body) = self.take_command(header)? else {
            return Ok(Step::Incomplete);
        };
        handshake::check_ready(&body, self.role.fitting())?;
        if let Role::Subscriber { topic } = &self.role {
            let subscription = [&[SUBSCRIBE], topic.as_ref()].concat();
            put_frame(&mut self.output, FrameKind::Last, &subscription);
        }
        self.stage = Stage::Traffic;
        Ok(Step::Event(SessionEvent::Ready { pings }))
    }

    /// Reads one frame, and returns the message with its last frame. A command between two frames is handled
    /// immediately.
    fn read_frame(&mut self) -> Result<Step, ProtocolError> {
        let Some(header) = FrameHeader::parse(&self.input)? else {
            return Ok(Step::Incomplete);
        };
        if header.kind == FrameKind::Command {
            let Some(body) = self.take_command(header)? else {
                return Ok(Step::Incomplete);
            };
            self.handle_command(&body)?;
            return Ok(Step::Again);
        }
        let body_bytes = self.check_message_frame(header)?;
        let Some(body) = self.take_frame(header, body_bytes) else {
            return Ok(Step::Incomplete);
        };
        self.partial_bytes += body.len();
        self.partial.push(body);
        if header.kind == FrameKind::More {
            return Ok(Step::Again);
        }
        self.partial_bytes = 0;
        Ok(Step::Event(SessionEvent::Message(std::mem::take(&mut self.partial))))
    }

    /// Checks a header against the limits of frame and message; returns the body's length.
    fn check_message_frame(&self, header: FrameHeader) -> Result<usize, ProtocolError> {
        let MessageLimits { frame_bytes_max, message_frames_max, message_bytes_max } = self.limits;
        let bytes = header.body_bytes;
        if self.partial.len() >= message_frames_max {
            return Err(ProtocolError::TooManyFrames { max: message_frames_max });
        }
        let body_bytes = within(bytes, frame_bytes_max)
            .ok_or(ProtocolError::FrameTooLong { bytes, max: frame_bytes_max })?;
        let message_bytes = self.partial_bytes.saturating_add(body_bytes);
        if message_bytes > message_bytes_max {
            let bytes = u64::try_from(message_bytes).unwrap_or(u64::MAX);
            return Err(ProtocolError::MessageTooLong { bytes, max: message_bytes_max });
        }
        Ok(body_bytes)
    }

    fn take_command(&mut self, header: FrameHeader) -> Result<Option<Bytes>, ProtocolError> {
        let bytes = header.body_bytes;
        let body_bytes = within(bytes, COMMAND_BYTES_MAX)
            .ok_or(ProtocolError::CommandTooLong { bytes, max: COMMAND_BYTES_MAX })?;
        Ok(self.take_frame(header, body_bytes))
    }

    /// Removes a complete frame from the input and returns its body.
    fn take_frame(&mut self, header: FrameHeader, body_bytes: usize) -> Option<Bytes> {
        if self.input.len() < header.header_bytes + body_bytes {
            return None;
        }
        self.input.advance(header.header_bytes);
        if body_bytes == 0 {
            return Some(Bytes::new());
        }
        let body = self.input.split_to(body_bytes).freeze();
        if body_bytes > READ_CHUNK_BYTES {
            // The frame takes over the grown buffer. Otherwise the connection would keep it for ever.
            self.input = BytesMut::from(self.input.as_ref());
        }
        Some(body)
    }

    /// Handles a command: ERROR fails the session, PING is answered with PONG, and any other command is ignored.
    /// Fails if the peer reads too little, so that unsent answers exceed the limit.
    fn handle_command(&mut self, body: &[u8]) -> Result<(), ProtocolError> {
        handshake::check_error(body)?;
        let Some(ping) = body.strip_prefix(PING) else {
            // PONG only had to arrive. Unknown commands are for newer peers.
            return Ok(());
        };
        let context =
            ping.get(PING_TTL_BYTES..).ok_or(ProtocolError::Malformed { command: "PING" })?;
        put_frame(&mut self.output, FrameKind::Command, &[PONG, context].concat());
        let bytes = self.output.len();
        if bytes > OUTPUT_BYTES_MAX {
            return Err(ProtocolError::NotReading { bytes });
        }
        Ok(())
    }
}

/// Converts `bytes` to a length in memory, if it is at most `max`.
fn within(bytes: u64, max: usize) -> Option<usize> {
    usize::try_from(bytes).ok().filter(|bytes| *bytes <= max)
}
