//! What all ways to fetch blocks have in common.

use futures::future::BoxFuture;
use kvasir_proto::types::SequenceHash;
use kvasir_tiers::manager::{Filled, Session};
use std::fmt;
use tokio::time::Instant;

/// A backend that copies blocks from another agent's memory into this one's.
pub trait TransferBackend: fmt::Debug + Send + Sync {
    /// What it is called.
    fn name(&self) -> &'static str;

    /// Fetches the leading blocks that a peer has. It returns the blocks received so far, at the deadline at the latest. Dropping
    /// the future cancels the transfer. Each returned block is verified and registered.
    fn fetch<'a>(&'a self, request: FetchRequest<'a>) -> BoxFuture<'a, Fetched>;

    /// Fetches the leading blocks whose parts several peers have, which split heads or lay out blocks in another way. Peers that
    /// hold different parts are all needed; of those that hold the same, one is asked, and the next one if it fails. Else as
    /// [`fetch`](Self::fetch).
    fn fetch_parts<'a>(&'a self, request: PartsRequest<'a>) -> BoxFuture<'a, FetchedParts>;

    /// Closes idle connections.
    fn close_idle(&self);
}

/// What to fetch.
#[derive(Debug, Clone, Copy)]
pub struct FetchRequest<'a> {
    /// The peer's address: `host:port`, `http://host:port` or, over TLS, `https://host:port`.
    pub peer: &'a str,
    /// Sequence hashes, in order, each once.
    pub wanted: &'a [SequenceHash],
    /// The session whose slots receive the blocks.
    pub into: &'a Session,
    /// The deadline.
    pub deadline: Instant,
}

/// What has arrived.
#[derive(Debug, Default)]
pub struct Fetched {
    /// The leading blocks. A block is not evicted while its entry exists.
    pub blocks: Vec<Filled>,
    /// Their bytes.
    pub bytes: u64,
    /// When the first block was registered.
    pub first_at: Option<Instant>,
    /// Why the fetch stopped; it concerns the block after the last of `blocks`.
    pub stopped: Option<FetchFault>,
}

/// What to fetch in parts.
#[derive(Debug, Clone, Copy)]
pub struct PartsRequest<'a> {
    /// The peers' addresses, as in [`FetchRequest`], each once.
    pub peers: &'a [String],
    /// Sequence hashes, in order, each once.
    pub wanted: &'a [SequenceHash],
    /// The session whose slots receive the blocks.
    pub into: &'a Session,
    /// The deadline.
    pub deadline: Instant,
}

/// What has arrived in parts.
#[derive(Debug, Default)]
pub struct FetchedParts {
    /// The leading blocks, each with all its parts. A block is not evicted while its entry exists.
    pub blocks: Vec<Filled>,
    /// Bytes of all parts that were received, those of blocks that were not completed included.
    pub bytes: u64,
    /// When the first block was registered.
    pub first_at: Option<Instant>,
    /// What came from each peer, in the order of the request.
    pub peers: Vec<PeerParts>,
    /// Why the fetch stopped; it concerns the block after the last of `blocks`.
    pub stopped: Option<FetchFault>,
}

/// What has arrived from one peer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeerParts {
    /// Blocks of which it sent a part.
    pub blocks: usize,
    /// Why it sent no more, or nothing.
    pub stopped: Option<FetchFault>,
    /// Whether it was asked for blocks.
    is_asked: bool,
}

impl FetchedParts {
    /// Nothing yet, of so many peers.
    pub(crate) fn of(peers: usize) -> Self {
        Self { peers: vec![PeerParts::default(); peers], ..Self::default() }
    }

    pub(crate) fn ask(&mut self, peer: usize) {
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.is_asked = true;
        }
    }

    pub(crate) fn stop(&mut self, peer: usize, fault: FetchFault) {
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.stopped = Some(fault);
        }
    }

    /// States how it ended. Peers that have no fault of their own stopped for that reason.
    pub(crate) fn end(&mut self, ended: Result<(), FetchFault>) {
        self.stopped = ended.err();
        let Some(fault) = &self.stopped else { return };
        let is_shared = fault.is_ours() || matches!(fault, FetchFault::Refused(_));
        let others = if is_shared { fault.clone() } else { FetchFault::OtherPart };
        for peer in self.peers.iter_mut().filter(|peer| peer.is_asked && peer.stopped.is_none()) {
            peer.stopped = Some(others.clone());
        }
    }
}

/// Why a block did not come.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FetchFault {
    /// The peer does not have it.
    #[error("the peer does not have the block")]
    Missing,
    /// Wrong bytes, or a wrong hash.
    #[error("wrong bytes: {0}")]
    Corrupt(String),
    /// The deadline has passed.
    #[error("timed out")]
    TimedOut,
    /// There is no slot for it here.
    #[error("no free slot: {0}")]
    NoRoom(String),
    /// The session here has ended.
    #[error("the session has ended")]
    Ended,
    /// The peer can't be reached, or has gone.
    #[error("the connection to the peer failed: {0}")]
    Lost(String),
    /// The peer refuses: rights, other blocks, another version.
    #[error("the peer refused: {0}")]
    Refused(String),
    /// The peer was restarted meanwhile.
    #[error("the peer was restarted: fetch again")]
    Fenced,
    /// The peer can't serve it now.
    #[error("the peer can't serve the block now: {0}")]
    Unavailable(String),
    /// The peer lays out its blocks in another way, or holds another part of the heads: its blocks are fetched in parts.
    #[error("the peer has another layout or another part of the heads: its blocks come in parts")]
    OtherLayout,
    /// The peer holds none of the heads that blocks here have.
    #[error(
        "the peer holds part {number} of {count} of the heads, counted from 0, which is not needed here"
    )]
    NotNeeded {
        /// Its part.
        number: u32,
        /// How many parts there are.
        count: u32,
    },
    /// No peer was named that holds a part of the heads.
    #[error(
        "no peer was reached that holds part {number} of {count} of the heads, counted from 0: name an agent that has it, too"
    )]
    NoOwner {
        /// The part.
        number: u32,
        /// How many parts there are.
        count: u32,
    },
    /// Another peer did not send its part of the block.
    #[error("another part of the block did not come")]
    OtherPart,
    /// Too many fetches are under way.
    #[error("{max} connections to peers are in use, the limit: retry later")]
    Busy {
        /// The limit.
        max: usize,
    },
}

impl FetchFault {
    /// As a label.
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

    /// Whether no other peer would help.
    #[must_use]
    pub const fn is_ours(&self) -> bool {
        matches!(self, Self::TimedOut | Self::NoRoom(_) | Self::Ended | Self::Busy { .. })
    }
}
