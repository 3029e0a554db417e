//! Fetching blocks from other agents.

use super::sessions::Open;
use super::shared::BlockManagerService;
use super::status::{no_session, of_session, stopping};
use kvasir_blocks::SlotId;
use kvasir_proto::convert::PeerFetch;
use kvasir_proto::pb;
use kvasir_proto::types::SequenceHash;
use kvasir_tiers::manager::{Filled, Session, SessionError};
use kvasir_transfer::{FetchFault, FetchRequest, Fetched};
use std::time::Duration;
use tokio::select;
use tokio::time::Instant;
use tonic::Status;

/// Blocks that are held while others come, so that they do not give way to these.
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

    /// How many of these are in some tier here, from the first one on.
    fn leading(&self, sequences: &[SequenceHash]) -> usize {
        self.manager.find(sequences).blocks.len()
    }

    async fn fetch_all(&self, open: &Open, fetch: &PeerFetch) -> Result<pb::FetchResponse, Status> {
        let began = Instant::now();
        let deadline = began + fetch.timeout;
        let session = &open.session;
        let mut leading = self.leading(&fetch.sequences);
        let there = fetch.sequences.get(..leading).unwrap_or_default();
        let _kept = Kept::new(session, there).map_err(of_session)?;
        // They stay until the answer is there, so that none gives way to the next.
        let mut blocks: Vec<Filled> = Vec::new();
        let mut response = pb::FetchResponse::default();
        for peer in &fetch.peers {
            let wanted = fetch.sequences.get(leading..).unwrap_or_default();
            if wanted.is_empty() {
                break;
            }
            let request = FetchRequest { peer, wanted, into: session, deadline };
            let Fetched { blocks: came, bytes, stopped, .. } =
                self.peers.backend.fetch(request).await;
            response.bytes += bytes;
            response.peers.push(pb::FetchedFromPeer {
                peer: peer.clone(),
                blocks: u32::try_from(came.len()).unwrap_or(u32::MAX),
                fault: stopped.as_ref().map_or(pb::BlockFault::Unspecified, fault).into(),
                error: stopped.as_ref().map(FetchFault::to_string).unwrap_or_default(),
            });
            leading += came.len();
            blocks.extend(came);
            // What comes next may be here already.
            leading += self.leading(fetch.sequences.get(leading..).unwrap_or_default());
            if stopped.as_ref().is_some_and(is_ours) {
                break;
            }
        }
        if leading < fetch.sequences.len() {
            let missing = pb::BlockFault::Missing.into();
            response.fault = response.peers.last().map_or(missing, |last| last.fault);
        }
        let count = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        response.leading_blocks = count(leading);
        response.fetched_blocks = count(blocks.len());
        response.micros = micros(began.elapsed());
        Ok(response)
    }
}

/// Whether no other peer would help.
const fn is_ours(fault: &FetchFault) -> bool {
    matches!(
        fault,
        FetchFault::TimedOut | FetchFault::NoRoom(_) | FetchFault::Ended | FetchFault::Busy { .. }
    )
}

const fn fault(fault: &FetchFault) -> pb::BlockFault {
    match fault {
        FetchFault::Missing => pb::BlockFault::Missing,
        FetchFault::Corrupt(_) => pb::BlockFault::Corrupt,
        FetchFault::TimedOut => pb::BlockFault::TimedOut,
        FetchFault::NoRoom(_) => pb::BlockFault::Limit,
        FetchFault::Ended => pb::BlockFault::Stopping,
        FetchFault::Busy { .. } => pb::BlockFault::Busy,
        FetchFault::Lost(_)
        | FetchFault::Refused(_)
        | FetchFault::Fenced
        | FetchFault::Unavailable(_) => pb::BlockFault::Peer,
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
