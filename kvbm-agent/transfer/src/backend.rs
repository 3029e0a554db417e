//! The common trait of all transfer backends, with its requests and results.

use futures::future::BoxFuture;
use kvasir_proto::types::SequenceHash;
use kvasir_tiers::manager::{Filled, Session};
use std::fmt;
use tokio::time::Instant;

/// A backend that copies blocks from another agent's memory into this one's.
pub trait TransferBackend: fmt::Debug + Send + Sync {
    /// Name of the backend.
    fn name(&self) -> &'static str;

    /// Fetches the leading blocks that a peer has. Returns the blocks received so far, at the latest at the deadline.
    /// Dropping the future cancels the transfer. Each returned block is verified and registered.
    fn fetch<'a>(&'a self, request: FetchRequest<'a>) -> BoxFuture<'a, Fetched>;

    /// Fetches the leading blocks in parts from several peers with another split of heads or another layout. Peers with
    /// different parts are all needed. Of peers with the same part, one is queried, and the next one if it fails.
    /// Otherwise like [`fetch`](Self::fetch).
    fn fetch_parts<'a>(&'a self, request: PartsRequest<'a>) -> BoxFuture<'a, FetchedParts>;

    /// Closes idle connections.
    fn close_idle(&self);
}

/// Parameters of a fetch from one peer.
#[derive(Debug, Clone, Copy)]
pub struct FetchRequest<'a> {
    /// The peer's address: `host:port`, `http://host:port` or, over TLS, `https://host:port`.
    pub peer: &'a str,
    /// Requested sequence hashes, in order, each once.
    pub wanted: &'a [SequenceHash],
    /// The session whose slots receive the blocks.
    pub into: &'a Session,
    /// When the fetch ends at the latest.
    pub deadline: Instant,
}

/// Result of a fetch from one peer.
#[derive(Debug, Default)]
pub struct Fetched {
    /// The leading blocks. A block is not evicted while its entry exists.
    pub blocks: Vec<Filled>,
    /// Bytes of the blocks.
    pub bytes: u64,
    /// When the first block was registered.
    pub first_at: Option<Instant>,
    /// Why the fetch stopped; it concerns the block after the last of `blocks`.
    pub stopped: Option<FetchFault>,
}

/// Parameters of a fetch in parts.
#[derive(Debug, Clone, Copy)]
pub struct PartsRequest<'a> {
    /// The peers' addresses, as in [`FetchRequest`], each once.
    pub peers: &'a [String],
    /// Requested sequence hashes, in order, each once.
    pub wanted: &'a [SequenceHash],
    /// The session whose slots receive the blocks.
    pub into: &'a Session,
    /// When the fetch ends at the latest.
    pub deadline: Instant,
}

/// Result of a fetch in parts.
#[derive(Debug, Default)]
pub struct FetchedParts {
    /// The leading blocks, each with all its parts. A block is not evicted while its entry exists.
    pub blocks: Vec<Filled>,
    /// Bytes of all received parts, including parts of incomplete blocks.
    pub bytes: u64,
    /// When the first block was registered.
    pub first_at: Option<Instant>,
    /// Result of each peer, in the order of the request.
    pub peers: Vec<PeerParts>,
    /// Why the fetch stopped; it concerns the block after the last of `blocks`.
    pub stopped: Option<FetchFault>,
}

/// Result of one peer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeerParts {
    /// Number of blocks of which the peer sent a part.
    pub blocks: usize,
    /// Why the peer stopped sending, or sent no blocks.
    pub stopped: Option<FetchFault>,
    /// Whether the peer was queried for blocks.
    is_asked: bool,
}

impl FetchedParts {
    /// An empty result for this number of peers.
    pub(crate) fn for_peers(peers: usize) -> Self {
        Self { peers: vec![PeerParts::default(); peers], ..Self::default() }
    }

    pub(crate) fn mark_asked(&mut self, peer: usize) {
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.is_asked = true;
        }
    }

    pub(crate) fn stop(&mut self, peer: usize, fault: FetchFault) {
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.stopped = Some(fault);
        }
    }

    /// Records how the fetch ended. A peer that was asked and has no fault yet gets the fault of the whole fetch, or
    /// `OtherPart` if another peer caused it.
    pub(crate) fn record_end(&mut self, ended: Result<(), FetchFault>) {
        self.stopped = ended.err();
        let Some(fault) = &self.stopped else { return };
        let is_shared = fault.is_ours() || matches!(fault, FetchFault::Refused(_));
        let others = if is_shared { fault.clone() } else { FetchFault::OtherPart };
        for peer in self.peers.iter_mut().filter(|peer| peer.is_asked && peer.stopped.is_none()) {
            peer.stopped = Some(others.clone());
        }
    }
}

/// Why a block was not received.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FetchFault {
    /// The peer does not have the block.
    #[error("the peer does not have the block")]
    Missing,
    /// The bytes or a hash are wrong.
    #[error("wrong bytes: {0}")]
    Corrupt(String),
    /// The deadline has passed.
    #[error("timed out")]
    TimedOut,
    /// No slot is free at this agent.
    #[error("no free slot: {0}")]
    NoRoom(String),
    /// This agent's session has ended.
    #[error("the session has ended")]
    Ended,
    /// The peer can't be reached, or the connection was lost.
    #[error("the connection to the peer failed: {0}")]
    Lost(String),
    /// The peer refuses: missing rights, different blocks, or another version.
    #[error("the peer refused: {0}")]
    Refused(String),
    /// The peer was restarted during the fetch.
    #[error("the peer was restarted: fetch again")]
    Fenced,
    /// The peer can't serve the block now.
    #[error("the peer can't serve the block now: {0}")]
    Unavailable(String),
    /// The peer has another layout or another part of the heads. Its blocks must be fetched in parts.
    #[error("the peer has another layout or another part of the heads: its blocks come in parts")]
    OtherLayout,
    /// The peer's heads do not occur in this agent's blocks.
    #[error(
        "the peer holds part {number} of {count} of the heads, counted from 0, which is not needed here"
    )]
    NotNeeded {
        /// Number of the peer's part.
        number: u32,
        /// Number of parts.
        count: u32,
    },
    /// No listed peer has a part of the heads.
    #[error(
        "no peer was reached that holds part {number} of {count} of the heads, counted from 0: name an agent that has it, too"
    )]
    NoOwner {
        /// Number of the missing part.
        number: u32,
        /// Number of parts.
        count: u32,
    },
    /// Another peer did not send its part of the block.
    #[error("another peer did not send its part of the block")]
    OtherPart,
    /// Too many fetches are running.
    #[error("{max} connections to peers are in use, the limit: retry later")]
    Busy {
        /// Maximum connections to peers.
        max: usize,
    },
}

impl FetchFault {
    /// The fault as a metric label.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Corrupt(_) => "corrupt",
            Self::TimedOut => "timed_out",
            Self::NoRoom(_) => "no_room",
            Self::Ended => "session_ended",
            Self::Lost(_) => "lost",
            Self::Refused(_) => "refused",
            Self::Fenced => "fenced",
            Self::Unavailable(_) => "unavailable",
            Self::OtherLayout => "other_layout",
            Self::NotNeeded { .. } => "not_needed",
            Self::NoOwner { .. } => "no_owner",
            Self::OtherPart => "other_part",
            Self::Busy { .. } => "busy",
        }
    }

    /// Whether the fault is on this side, so that another peer would not help.
    #[must_use]
    pub const fn is_ours(&self) -> bool {
        matches!(self, Self::TimedOut | Self::NoRoom(_) | Self::Ended | Self::Busy { .. })
    }
}
