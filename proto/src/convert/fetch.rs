//! Checked requests to fetch blocks from other agents, as an agent reads them.

use super::blocks::{SessionId, check_filled, read_millis, read_sequences, read_session};
use super::{ConvertError, Problem};
use crate::limits::{
    BLOCK_SLOTS_MAX, FETCH_PEERS_MAX, ONBOARD_TIMEOUT_MS_DEFAULT, ONBOARD_TIMEOUT_MS_MAX,
};
use crate::pb;
use crate::target::read_target;
use crate::types::SequenceHash;
use std::collections::BTreeSet;
use std::time::Duration;

/// A checked `FetchRequest`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerFetch {
    /// The session whose slots receive the blocks.
    pub session: SessionId,
    /// Targets of the peers: 1 to [`FETCH_PEERS_MAX`], each once.
    pub peers: Vec<String>,
    /// Hashes of the blocks: 1 to [`BLOCK_SLOTS_MAX`], each once.
    pub sequences: Vec<SequenceHash>,
    /// Maximum duration, at most [`ONBOARD_TIMEOUT_MS_MAX`].
    pub timeout: Duration,
}

impl TryFrom<pb::FetchRequest> for PeerFetch {
    type Error = ConvertError;

    fn try_from(request: pb::FetchRequest) -> Result<Self, ConvertError> {
        let session = read_session(&request.session_id)?;
        check_filled("peers", request.peers.len(), FETCH_PEERS_MAX)?;
        let mut seen = BTreeSet::new();
        let peers = request.peers.iter().enumerate().map(|(index, peer)| {
            let field = || format!("peers[{index}]");
            let target = read_target(peer).map_err(|error| {
                let actual = error.to_string();
                let expected = "an address".to_owned();
                ConvertError::new(field(), Problem::Mismatch { actual, expected })
            })?;
            if seen.insert(target.clone()) {
                return Ok(target);
            }
            Err(ConvertError::new(field(), Problem::Repeated(target)))
        });
        let peers = peers.collect::<Result<_, _>>()?;
        let sequences = read_sequences(&request.sequence_hashes, BLOCK_SLOTS_MAX)?;
        let mut seen = BTreeSet::new();
        let mut repeated = sequences.iter().enumerate().filter(|(_, at)| !seen.insert(at.0));
        if let Some((index, sequence)) = repeated.next() {
            let field = format!("sequence_hashes[{index}]");
            return Err(ConvertError::new(field, Problem::Repeated(sequence.0.to_string())));
        }
        let millis = request.timeout_ms.unwrap_or(ONBOARD_TIMEOUT_MS_DEFAULT);
        let timeout = read_millis("timeout_ms", millis, ONBOARD_TIMEOUT_MS_MAX)?;
        Ok(Self { session, peers, sequences, timeout })
    }
}
