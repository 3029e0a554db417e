//! What frames say. All of it is checked when it is read.

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

/// Who connects, and what its blocks are.
#[derive(Clone, PartialEq, Eq, prost::Message)]
#[prost(skip_debug)]
pub struct Hello {
    /// Version of the format.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// `Bearer TOKEN`, or "" for a caller that is known by its certificate, or by nothing.
    #[prost(string, tag = "2")]
    pub authorization: String,
    /// The worker that fetches, for logs.
    #[prost(string, tag = "3")]
    pub worker: String,
    /// What its blocks are.
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

/// Who serves blocks.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Welcome {
    /// Version of the format.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// The worker that owns the blocks, for logs.
    #[prost(string, tag = "2")]
    pub worker: String,
    /// Its blocks as a set, with their fence: a `SerializedBlockLayout`.
    #[prost(bytes = "vec", tag = "3")]
    pub set: Vec<u8>,
    /// What its blocks are.
    #[prost(message, required, tag = "4")]
    pub blocks: BlockDescription,
    /// Metadata of the owner's NIXL agent; empty if it lends no blocks.
    #[prost(bytes = "vec", tag = "15")]
    pub nixl: Vec<u8>,
}

/// Why a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum RefusalCode {
    /// A code of a later version.
    Unspecified = 0,
    /// Another version of the format.
    Version = 1,
    /// The caller has no identity, or lacks the rights.
    Denied = 2,
    /// Its blocks are others.
    Description = 3,
    /// A frame or message is invalid.
    Protocol = 4,
    /// The agent stops.
    Stopping = 5,
    /// The request timed out.
    Late = 6,
}

/// Why a connection ends, in words.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Refusal {
    /// Why.
    #[prost(enumeration = "RefusalCode", tag = "1")]
    pub code: i32,
    /// For people.
    #[prost(string, tag = "2")]
    pub text: String,
}

/// Requests leading blocks.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Fetch {
    /// Number of the request on its connection, from 0 on.
    #[prost(uint64, tag = "1")]
    pub request: u64,
    /// Fence of the owner's set: its epoch,
    #[prost(fixed64, tag = "2")]
    pub epoch: u64,
    /// and its number within that.
    #[prost(fixed64, tag = "3")]
    pub export: u64,
    /// Longest time until the last block, in milliseconds: 1 to 25,000.
    #[prost(uint32, tag = "4")]
    pub timeout_ms: u32,
    /// Sequence hashes, in order, each once: 1 to 512.
    #[prost(fixed64, repeated, tag = "5")]
    pub sequences: Vec<u64>,
}

/// A block, or the part of it that the caller needs; its bytes follow.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct BlockHead {
    /// The request.
    #[prost(uint64, tag = "1")]
    pub request: u64,
    /// Its place among the request's.
    #[prost(uint32, tag = "2")]
    pub index: u32,
    /// Its name.
    #[prost(fixed64, tag = "3")]
    pub sequence: u64,
    /// That of the block before it.
    #[prost(fixed64, optional, tag = "4")]
    pub parent: Option<u64>,
    /// Hash of its own tokens.
    #[prost(fixed64, tag = "5")]
    pub local: u64,
    /// Blocks before it.
    #[prost(uint32, tag = "6")]
    pub position: u32,
    /// What the bytes that follow add up to.
    #[prost(fixed64, tag = "7")]
    pub checksum: u64,
}

/// Why a request has no further block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Fault {
    /// All were sent.
    Unspecified = 0,
    /// The owner does not have it.
    Missing = 1,
    /// The owner's copy was wrong, and is withdrawn.
    Corrupt = 2,
    /// The owner can't read it now.
    Unreadable = 3,
    /// The owner is overloaded.
    Busy = 4,
    /// The owner was restarted and has another set.
    Fenced = 5,
    /// The owner stops.
    Stopping = 6,
    /// The request timed out.
    TimedOut = 7,
}

/// No further block of a request.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct End {
    /// The request.
    #[prost(uint64, tag = "1")]
    pub request: u64,
    /// Blocks that were sent.
    #[prost(uint32, tag = "2")]
    pub blocks: u32,
    /// Why not more.
    #[prost(enumeration = "Fault", tag = "3")]
    pub fault: i32,
}

/// A block that stays in its place while a peer reads it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct LentBlock {
    /// What it is.
    #[prost(message, required, tag = "1")]
    pub head: BlockHead,
    /// Where it begins in the memory of the owner's set.
    #[prost(uint64, tag = "2")]
    pub offset: u64,
}

/// The leading blocks of a request, until they are returned or the request's timeout is over.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Lent {
    /// The request.
    #[prost(uint64, tag = "1")]
    pub request: u64,
    /// The blocks, in order: up to 512.
    #[prost(message, repeated, tag = "2")]
    pub blocks: Vec<LentBlock>,
    /// Why not more.
    #[prost(enumeration = "Fault", tag = "3")]
    pub fault: i32,
}

/// The peer reads the blocks of a request no more.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Return {
    /// The request.
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
    /// Asks as [`Fetch`] does.
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
    /// Reads the message of a frame.
    ///
    /// # Errors
    /// [`WireError`] names the field that can't be.
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

    /// What it is.
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

    /// Encodes the frame without its payload of this many bytes, which must follow.
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
        // A vector has room for everything.
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
    /// What the block is.
    ///
    /// # Errors
    /// [`WireError::Field`] if its hashes do not follow from one another, or its position can't be.
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
