//! Messages of frames. Every field is checked when a message is decoded.

use super::description::{BlockDescription, check_name};
use super::error::WireError;
use super::header::{HEADER_BYTES, Header};
use super::kind::Kind;
use crate::limits::{
    AUTHORIZATION_BYTES_MAX, NIXL_METADATA_BYTES_MAX, REQUEST_BLOCKS_MAX, REQUEST_TIMEOUT_MAX,
    TEXT_BYTES_MAX,
};
use kvasir_blocks::BlockIdentity;
use kvasir_blocks::sets::SERIALIZED_LAYOUT_BYTES_MAX;
use kvasir_proto::hash;
use kvasir_proto::limits::CHAIN_BLOCKS_MAX;
use kvasir_proto::types::{LocalHash, SequenceHash};
use prost::Message as _;
use std::collections::BTreeSet;
use std::fmt;

/// The first message of a caller: its identity, and a description of its blocks.
#[derive(Clone, PartialEq, Eq, prost::Message)]
#[prost(skip_debug)]
pub struct Hello {
    /// Version of the format.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// `Bearer TOKEN`, or empty for a caller that is identified by its certificate, or not at all.
    #[prost(string, tag = "2")]
    pub authorization: String,
    /// The worker that fetches, for logs.
    #[prost(string, tag = "3")]
    pub worker: String,
    /// Description of the caller's blocks.
    #[prost(message, required, tag = "4")]
    pub blocks: BlockDescription,
}

/// Hides the authorization.
impl fmt::Debug for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, authorization: _, worker, blocks } = self;
        let mut shown = f.debug_struct("Hello");
        shown.field("version", version).field("worker", worker).field("blocks", blocks);
        shown.finish_non_exhaustive()
    }
}

/// The owner's answer to [`Hello`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Welcome {
    /// Version of the format.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// The worker that owns the blocks, for logs.
    #[prost(string, tag = "2")]
    pub worker: String,
    /// The owner's blocks as a set, with its fence: a `SerializedBlockLayout`.
    #[prost(bytes = "vec", tag = "3")]
    pub set: Vec<u8>,
    /// Description of the owner's blocks.
    #[prost(message, required, tag = "4")]
    pub blocks: BlockDescription,
    /// Metadata of the owner's NIXL agent; empty if it does not lend blocks.
    #[prost(bytes = "vec", tag = "15")]
    pub nixl: Vec<u8>,
}

/// Why a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum RefusalCode {
    /// Unknown: a code of a later version.
    Unspecified = 0,
    /// The versions of the format differ.
    Version = 1,
    /// The caller has no identity, or lacks the rights.
    Denied = 2,
    /// The caller's blocks are different.
    Description = 3,
    /// A frame or message is invalid.
    Protocol = 4,
    /// The agent is stopping.
    Stopping = 5,
    /// The request timed out.
    Late = 6,
}

/// Why a connection is closed: code and text.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Refusal {
    /// The reason.
    #[prost(enumeration = "RefusalCode", tag = "1")]
    pub code: i32,
    /// Text for humans.
    #[prost(string, tag = "2")]
    pub text: String,
}

/// Requests leading blocks.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Fetch {
    /// Number of the request on its connection, from 0 on.
    #[prost(uint64, tag = "1")]
    pub request: u64,
    /// Epoch of the owner's set (first half of its fence).
    #[prost(fixed64, tag = "2")]
    pub epoch: u64,
    /// Export number of the owner's set within the epoch (second half of its fence).
    #[prost(fixed64, tag = "3")]
    pub export: u64,
    /// Maximum time until the last block, in milliseconds: 1 to 25,000.
    #[prost(uint32, tag = "4")]
    pub timeout_ms: u32,
    /// Requested sequence hashes, in order, each once: 1 to 512.
    #[prost(fixed64, repeated, tag = "5")]
    pub sequences: Vec<u64>,
}

/// Head of a block, or of the part that the caller needs. The bytes follow.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct BlockHead {
    /// Number of the request.
    #[prost(uint64, tag = "1")]
    pub request: u64,
    /// Index among the request's blocks.
    #[prost(uint32, tag = "2")]
    pub index: u32,
    /// Sequence hash of the block.
    #[prost(fixed64, tag = "3")]
    pub sequence: u64,
    /// Sequence hash of the previous block.
    #[prost(fixed64, optional, tag = "4")]
    pub parent: Option<u64>,
    /// Hash of the block's own tokens.
    #[prost(fixed64, tag = "5")]
    pub local: u64,
    /// Number of blocks before this one.
    #[prost(uint32, tag = "6")]
    pub position: u32,
    /// Checksum of the bytes that follow.
    #[prost(fixed64, tag = "7")]
    pub checksum: u64,
}

/// Why a request has no more blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Fault {
    /// No fault: all blocks were sent.
    Unspecified = 0,
    /// The owner does not have the block.
    Missing = 1,
    /// The owner's copy was wrong, and was withdrawn.
    Corrupt = 2,
    /// The owner can't read the block now.
    Unreadable = 3,
    /// The owner is overloaded.
    Busy = 4,
    /// The owner was restarted and has another set.
    Fenced = 5,
    /// The owner is stopping.
    Stopping = 6,
    /// The request timed out.
    TimedOut = 7,
}

/// The end of a request's blocks.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct End {
    /// Number of the request.
    #[prost(uint64, tag = "1")]
    pub request: u64,
    /// Number of blocks sent.
    #[prost(uint32, tag = "2")]
    pub blocks: u32,
    /// Why no more blocks were sent.
    #[prost(enumeration = "Fault", tag = "3")]
    pub fault: i32,
}

/// A lent block, which stays in its slot while a peer reads it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct LentBlock {
    /// Identity and checksum of the block.
    #[prost(message, required, tag = "1")]
    pub head: BlockHead,
    /// Offset of the block in the memory of the owner's set.
    #[prost(uint64, tag = "2")]
    pub offset: u64,
}

/// The leading blocks of a request, lent until they are returned or the request's timeout.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Lent {
    /// Number of the request.
    #[prost(uint64, tag = "1")]
    pub request: u64,
    /// The blocks, in order: up to 512.
    #[prost(message, repeated, tag = "2")]
    pub blocks: Vec<LentBlock>,
    /// Why no more blocks were lent.
    #[prost(enumeration = "Fault", tag = "3")]
    pub fault: i32,
}

/// Ends a loan: the peer no longer reads its blocks.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Return {
    /// Number of the request.
    #[prost(uint64, tag = "1")]
    pub request: u64,
}

/// The validated content of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// See [`Hello`].
    Hello(Hello),
    /// See [`Welcome`].
    Welcome(Welcome),
    /// See [`Refusal`].
    Refusal(Refusal),
    /// See [`Fetch`].
    Fetch(Fetch),
    /// See [`BlockHead`].
    Block(BlockHead),
    /// See [`End`].
    End(End),
    /// Requests loans, with the fields of [`Fetch`].
    Lend(Fetch),
    /// See [`Lent`].
    Lent(Lent),
    /// See [`Return`].
    Return(Return),
}

fn decoded<M: prost::Message + Default>(kind: Kind, bytes: &[u8]) -> Result<M, WireError> {
    M::decode(bytes).map_err(|error| WireError::Protobuf { kind, error })
}

impl Message {
    /// Decodes the message of a frame.
    ///
    /// # Errors
    /// [`WireError`] names the invalid field.
    pub fn decode(kind: Kind, bytes: &[u8]) -> Result<Self, WireError> {
        let message = match kind {
            Kind::Hello => Self::Hello(decoded(kind, bytes)?),
            Kind::Welcome => Self::Welcome(decoded(kind, bytes)?),
            Kind::Refusal => Self::Refusal(decoded(kind, bytes)?),
            Kind::Fetch => Self::Fetch(decoded(kind, bytes)?),
            Kind::Block => Self::Block(decoded(kind, bytes)?),
            Kind::End => Self::End(decoded(kind, bytes)?),
            Kind::Lend => Self::Lend(decoded(kind, bytes)?),
            Kind::Lent => Self::Lent(decoded(kind, bytes)?),
            Kind::Return => Self::Return(decoded(kind, bytes)?),
        };
        match &message {
            Self::Hello(hello) => hello.check()?,
            Self::Welcome(welcome) => welcome.check()?,
            Self::Refusal(refusal) => check_text(&refusal.text)?,
            Self::Fetch(fetch) | Self::Lend(fetch) => fetch.check()?,
            Self::Block(block) => drop(block.identity()?),
            Self::Lent(lent) => lent.check()?,
            Self::End(_) | Self::Return(_) => {}
        }
        Ok(message)
    }

    /// The kind of the frame.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Hello(_) => Kind::Hello,
            Self::Welcome(_) => Kind::Welcome,
            Self::Refusal(_) => Kind::Refusal,
            Self::Fetch(_) => Kind::Fetch,
            Self::Block(_) => Kind::Block,
            Self::End(_) => Kind::End,
            Self::Lend(_) => Kind::Lend,
            Self::Lent(_) => Kind::Lent,
            Self::Return(_) => Kind::Return,
        }
    }

    /// Encodes the frame up to its payload. The caller must write a payload of `payload_bytes` bytes next.
    #[must_use]
    pub fn frame(&self, payload_bytes: u64) -> Vec<u8> {
        let message_bytes = match self {
            Self::Hello(message) => message.encoded_len(),
            Self::Welcome(message) => message.encoded_len(),
            Self::Refusal(message) => message.encoded_len(),
            Self::Fetch(message) | Self::Lend(message) => message.encoded_len(),
            Self::Block(message) => message.encoded_len(),
            Self::End(message) => message.encoded_len(),
            Self::Lent(message) => message.encoded_len(),
            Self::Return(message) => message.encoded_len(),
        };
        let header = Header { kind: self.kind(), message_bytes, payload_bytes };
        let mut frame = Vec::with_capacity(HEADER_BYTES + message_bytes);
        frame.extend(header.encode());
        // A `Vec` grows as needed, so encoding can't fail.
        let encoded = match self {
            Self::Hello(message) => message.encode(&mut frame),
            Self::Welcome(message) => message.encode(&mut frame),
            Self::Refusal(message) => message.encode(&mut frame),
            Self::Fetch(message) | Self::Lend(message) => message.encode(&mut frame),
            Self::Block(message) => message.encode(&mut frame),
            Self::End(message) => message.encode(&mut frame),
            Self::Lent(message) => message.encode(&mut frame),
            Self::Return(message) => message.encode(&mut frame),
        };
        debug_assert!(encoded.is_ok(), "a vector grows");
        frame
    }
}

fn check_text(text: &str) -> Result<(), WireError> {
    if text.len() > TEXT_BYTES_MAX || text.chars().any(char::is_control) {
        let why = format!("must have {TEXT_BYTES_MAX} bytes at most, and no control character");
        return Err(WireError::field("text", why));
    }
    Ok(())
}

impl Hello {
    /// Checks the worker's name and the description in a hello.
    fn check(&self) -> Result<(), WireError> {
        if self.authorization.len() > AUTHORIZATION_BYTES_MAX {
            let why = format!("must have {AUTHORIZATION_BYTES_MAX} bytes at most");
            return Err(WireError::field("authorization", why));
        }
        check_name("worker", &self.worker)?;
        self.blocks.check()
    }
}

impl Welcome {
    /// Checks the lengths and the description in a welcome.
    fn check(&self) -> Result<(), WireError> {
        check_name("worker", &self.worker)?;
        if self.set.len() > SERIALIZED_LAYOUT_BYTES_MAX {
            let why = format!("must have {SERIALIZED_LAYOUT_BYTES_MAX} bytes at most");
            return Err(WireError::field("set", why));
        }
        if self.nixl.len() > NIXL_METADATA_BYTES_MAX {
            let why = format!("must have {NIXL_METADATA_BYTES_MAX} bytes at most");
            return Err(WireError::field("nixl", why));
        }
        self.blocks.check()
    }
}

impl Refusal {
    /// Truncates the text to its limit.
    #[must_use]
    pub fn new(code: RefusalCode, text: &str) -> Self {
        let end = text.floor_char_boundary(TEXT_BYTES_MAX);
        let text = text.get(..end).unwrap_or_default().replace(char::is_control, " ");
        Self { code: code.into(), text }
    }
}

impl Fetch {
    /// Checks a request: 1 to [`REQUEST_BLOCKS_MAX`] distinct blocks, and a valid timeout.
    fn check(&self) -> Result<(), WireError> {
        let count = self.sequences.len();
        if !(1..=REQUEST_BLOCKS_MAX).contains(&count) {
            let why = format!("has {count} entries, must have 1 to {REQUEST_BLOCKS_MAX}");
            return Err(WireError::field("sequences", why));
        }
        if self.sequences.iter().collect::<BTreeSet<_>>().len() != count {
            return Err(WireError::field("sequences", "names a block twice"));
        }
        let max = REQUEST_TIMEOUT_MAX.as_millis();
        if self.timeout_ms == 0 || u128::from(self.timeout_ms) > max {
            let why = format!("is {}, must be 1 to {max}", self.timeout_ms);
            return Err(WireError::field("timeout_ms", why));
        }
        Ok(())
    }
}

impl Lent {
    fn check(&self) -> Result<(), WireError> {
        let count = self.blocks.len();
        if count > REQUEST_BLOCKS_MAX {
            let why = format!("has {count} entries, the limit is {REQUEST_BLOCKS_MAX}");
            return Err(WireError::field("blocks", why));
        }
        self.blocks.iter().try_for_each(|block| block.head.identity().map(drop))
    }
}

impl BlockHead {
    /// The block's identity.
    ///
    /// # Errors
    /// [`WireError::Field`] if the hashes contradict each other, or the position is invalid.
    pub fn identity(&self) -> Result<BlockIdentity, WireError> {
        let parent = self.parent.map(SequenceHash);
        let local = LocalHash(self.local);
        let identity = BlockIdentity {
            sequence: SequenceHash(self.sequence),
            parent,
            local,
            position: self.position,
        };
        if self.position as usize >= CHAIN_BLOCKS_MAX || !identity.is_consistent() {
            let why = format!("is {}, which does not fit its parent or the limit", self.position);
            return Err(WireError::field("position", why));
        }
        if hash::sequence_hash(parent, local) != identity.sequence {
            return Err(WireError::field("sequence", "does not follow from parent and local"));
        }
        Ok(identity)
    }
}
