//! Fetches blocks from other agents.

use super::sessions::Open;
use super::shared::BlockManagerService;
use super::status::{no_session, of_session, stopping};
use kvasir_blocks::SlotId;
use kvasir_proto::convert::PeerFetch;
use kvasir_proto::pb;
use kvasir_proto::types::SequenceHash;
use kvasir_tiers::manager::{Filled, Session, SessionError};
use kvasir_transfer::{FetchFault, FetchRequest, Fetched, FetchedParts, PartsRequest};
use std::time::Duration;
use tokio::select;
use tokio::time::Instant;
use tonic::Status;

/// Local blocks that are held during a fetch, so that fetched blocks do not evict them.
struct Kept<'a> {
    session: &'a Session,
    slots: Vec<SlotId>,
}

impl<'a> Kept<'a> {
    fn new(session: &'a Session, sequences: &[SequenceHash]) -> Result<Self, SessionError> {
        let held = session.hold_prefix(sequences)?;
        Ok(Self { session, slots: held.iter().map(|block| block.slot).collect() })
    }
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        for slot in &self.slots {
            self.session.release(*slot);
        }
    }
}

impl BlockManagerService {
    pub(super) async fn fetch_blocks(&self, fetch: PeerFetch) -> Result<pb::FetchResponse, Status> {
        let open = self.session(fetch.session)?;
        select! {
            fetched = self.fetch_all(&open, &fetch) => fetched,
            () = open.over.cancelled() => Err(no_session()),
            () = self.stop.cancelled() => Err(stopping()),
        }
    }

    /// Number of leading blocks of `sequences` that some local tier has.
    fn leading(&self, sequences: &[SequenceHash]) -> usize {
        self.manager.find(sequences).blocks.len()
    }

    /// Fetches the blocks of a prompt that follow the leading blocks of this agent: first complete blocks from single
    /// peers, then parts from several. Holds the leading blocks meanwhile.
    async fn fetch_all(&self, open: &Open, fetch: &PeerFetch) -> Result<pb::FetchResponse, Status> {
        let began = Instant::now();
        let deadline = began + fetch.timeout;
        let session = &open.session;
        let leading = self.leading(&fetch.sequences);
        let there = fetch.sequences.get(..leading).unwrap_or_default();
        let _kept = Kept::new(session, there).map_err(of_session)?;
        let mut fetching = Fetching {
            service: self,
            fetch,
            session,
            deadline,
            leading,
            blocks: Vec::new(),
            bytes: 0,
            peers: Vec::new(),
            others: Vec::new(),
            stopped: None,
        };
        fetching.whole().await;
        fetching.parts().await;
        Ok(fetching.response(began))
    }
}

/// A fetch in progress.
struct Fetching<'a> {
    service: &'a BlockManagerService,
    fetch: &'a PeerFetch,
    session: &'a Session,
    deadline: Instant,
    /// Number of leading blocks that are local.
    leading: usize,
    /// Fetched blocks, held until the answer is ready, so that they do not evict one another.
    blocks: Vec<Filled>,
    bytes: u64,
    /// Result of each peer, in the order of the requests.
    peers: Vec<pb::FetchedFromPeer>,
    /// Peers with another layout.
    others: Vec<String>,
    /// Why the last fetch stopped.
    stopped: Option<FetchFault>,
}

impl<'a> Fetching<'a> {
    fn wanted(&self) -> &'a [SequenceHash] {
        self.fetch.sequences.get(self.leading..).unwrap_or_default()
    }

    /// Whether to ask another peer.
    fn goes_on(&self) -> bool {
        !self.wanted().is_empty() && !self.stopped.as_ref().is_some_and(FetchFault::is_ours)
    }

    /// Fetches missing blocks from peers with the same layout, one peer after the other. Collects peers with another
    /// layout in `others`. Stops when no further block can be fetched.
    async fn whole(&mut self) {
        for peer in &self.fetch.peers {
            if !self.goes_on() {
                return;
            }
            let wanted = self.wanted();
            let into = self.session;
            let deadline = self.deadline;
            let request = FetchRequest { peer, wanted, into, deadline };
            let Fetched { blocks, bytes, stopped, .. } =
                self.service.peers.backend.fetch(request).await;
            if stopped == Some(FetchFault::OtherLayout) {
                self.others.push(peer.clone());
                continue;
            }
            self.peers.push(from_peer(peer, blocks.len(), stopped.as_ref()));
            self.record_blocks(blocks, bytes, stopped);
        }
    }

    /// Fetches missing blocks from all peers in `others` together, because one may have parts that another lacks.
    /// Returns immediately if `others` is empty, or if no further block can be fetched.
    async fn parts(&mut self) {
        if self.others.is_empty() || !self.goes_on() {
            return;
        }
        let peers = std::mem::take(&mut self.others);
        let wanted = self.wanted();
        let into = self.session;
        let deadline = self.deadline;
        let request = PartsRequest { peers: &peers, wanted, into, deadline };
        let FetchedParts { blocks, bytes, peers: from, stopped, .. } =
            self.service.peers.backend.fetch_parts(request).await;
        let from = peers.iter().zip(&from);
        let from = from.map(|(peer, from)| from_peer(peer, from.blocks, from.stopped.as_ref()));
        self.peers.extend(from);
        self.record_blocks(blocks, bytes, stopped);
    }

    fn record_blocks(&mut self, blocks: Vec<Filled>, bytes: u64, stopped: Option<FetchFault>) {
        self.bytes += bytes;
        self.leading += blocks.len();
        self.blocks.extend(blocks);
        self.stopped = stopped;
        // The next blocks may be local already.
        self.leading += self.service.leading(self.wanted());
    }

    /// Builds the response: numbers of leading and fetched blocks, and why the next block is missing (`Unspecified` if
    /// none is).
    fn response(self, began: Instant) -> pb::FetchResponse {
        let missing = pb::BlockFault::Missing;
        let why = if self.wanted().is_empty() {
            pb::BlockFault::Unspecified
        } else {
            self.stopped.as_ref().map_or(missing, fault)
        };
        pb::FetchResponse {
            leading_blocks: count(self.leading),
            fetched_blocks: count(self.blocks.len()),
            bytes: self.bytes,
            micros: micros(began.elapsed()),
            fault: why.into(),
            peers: self.peers,
        }
    }
}

fn from_peer(peer: &str, blocks: usize, stopped: Option<&FetchFault>) -> pb::FetchedFromPeer {
    pb::FetchedFromPeer {
        peer: peer.to_owned(),
        blocks: count(blocks),
        fault: stopped.map_or(pb::BlockFault::Unspecified, fault).into(),
        error: stopped.map(FetchFault::to_string).unwrap_or_default(),
    }
}

fn count(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// Converts the reason why a fetch stopped. `NotNeeded` is the normal end and becomes `Unspecified`.
const fn fault(fault: &FetchFault) -> pb::BlockFault {
    match fault {
        FetchFault::Missing | FetchFault::OtherPart | FetchFault::NoOwner { .. } => {
            pb::BlockFault::Missing
        }
        // Not a fault: the peer's blocks were not needed.
        FetchFault::NotNeeded { .. } => pb::BlockFault::Unspecified,
        FetchFault::Corrupt(_) => pb::BlockFault::Corrupt,
        FetchFault::TimedOut => pb::BlockFault::TimedOut,
        FetchFault::NoRoom(_) => pb::BlockFault::Limit,
        FetchFault::Ended => pb::BlockFault::Stopping,
        FetchFault::Busy { .. } => pb::BlockFault::Busy,
        FetchFault::Lost(_)
        | FetchFault::Refused(_)
        | FetchFault::OtherLayout
        | FetchFault::Fenced
        | FetchFault::Unavailable(_) => pb::BlockFault::Peer,
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
