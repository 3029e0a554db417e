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
            Self::Busy { .. } => "busy",
        }
    }
}
