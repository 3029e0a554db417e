//! Checked requests to `BlockManager`, as an agent reads them.

use super::shared::{check_count, check_name, check_range, check_text};
use super::{ConvertError, Problem};
use crate::limits::{
    BLOCK_CHECKS_MAX, BLOCK_SLOTS_MAX, BLOCK_WRITE_BYTES_MAX, CHAIN_BLOCKS_MAX, NAME_BYTES_MAX,
    ONBOARD_TIMEOUT_MS_DEFAULT, ONBOARD_TIMEOUT_MS_MAX, QUERY_BLOCKS_MAX,
};
use crate::types::{LocalHash, PartitionKey, SequenceHash, WorkerId};
use crate::{hash, pb};
use prost::bytes::Bytes;
use std::collections::BTreeSet;
use std::time::Duration;

/// Secret id of a session: 16 unguessable bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub [u8; 16]);

/// Hides the id, so that logs do not contain it: the id is sufficient to use the session.
impl std::fmt::Debug for SessionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SessionId(***)")
    }
}

impl SessionId {
    /// The id as bytes on the wire.
    #[must_use]
    pub fn message(&self) -> Bytes {
        Bytes::copy_from_slice(&self.0)
    }
}

/// A checked `OpenSessionRequest`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSession {
    /// The model and tenant of the session's blocks.
    pub partition: PartitionKey,
    /// The worker; none for whichever worker the agent serves.
    pub worker: Option<WorkerId>,
    /// Name of the session in logs.
    pub name: String,
    /// Required size of a block in bytes; none to accept any.
    pub block_bytes: Option<u64>,
    /// Required element type; none to accept any.
    pub dtype: Option<String>,
}

/// Identity of a block: a checked `BlockIdentity`. Its hashes are consistent with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockKey {
    /// Hash of the block and its complete prefix.
    pub sequence: SequenceHash,
    /// Hash of the preceding block; none for the first block.
    pub parent: Option<SequenceHash>,
    /// Hash of the block's own tokens.
    pub local: LocalHash,
    /// Number of preceding blocks, below [`CHAIN_BLOCKS_MAX`].
    pub position: u32,
}

/// A checked `AllocateRequest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotLease {
    /// The session that leases the slots.
    pub session: SessionId,
    /// Number of slots, 1 to [`BLOCK_SLOTS_MAX`].
    pub count: usize,
    /// Duration of the lease, more than 0.
    pub lease: Duration,
}

/// A checked `WriteRequest`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockWrite {
    /// The session that leases the slot.
    pub session: SessionId,
    /// The slot to write to.
    pub slot: u32,
    /// Offset of the bytes in the slot.
    pub offset_bytes: usize,
    /// The bytes, at most [`BLOCK_WRITE_BYTES_MAX`].
    pub data: Bytes,
}

/// A checked `CommitBlock`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCommit {
    /// The slot with the block's bytes.
    pub slot: u32,
    /// Identity of the block.
    pub key: BlockKey,
    /// Checksum of the bytes, as the engine computed it.
    pub checksum: Option<u64>,
    /// Retention priority of the block.
    pub priority: u8,
}

/// A checked `CommitRequest`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commits {
    /// The session that leases the slots.
    pub session: SessionId,
    /// 1 to [`BLOCK_CHECKS_MAX`] blocks, each slot once.
    pub blocks: Vec<BlockCommit>,
}

/// Slots of a session: a checked `AbortRequest`, `ReadRequest`, `VerifyRequest` or `ReleaseRequest`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotList {
    /// The session that leased or holds the slots.
    pub session: SessionId,
    /// The slots, at least one.
    pub slots: Vec<u32>,
}

/// An engine's question whether loading a prefix is faster than computing it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadQuestion {
    /// Prefill speed of the engine; finite and above 0.
    pub prefill_tokens_per_second: f64,
    /// Time until a prefill could begin.
    pub prefill_wait: Duration,
}

/// A checked `MatchPrefixRequest`.
#[derive(Debug, Clone, PartialEq)]
pub struct PrefixQuery {
    /// Session that holds the found blocks until it releases them; none for a lookup only.
    pub hold: Option<SessionId>,
    /// Hashes of the prefix's blocks: 1 to [`QUERY_BLOCKS_MAX`].
    pub sequences: Vec<SequenceHash>,
    /// Set to also ask whether to load or to compute.
    pub question: Option<LoadQuestion>,
}

/// A checked `OnboardRequest`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Onboarding {
    /// The blocks and their priority.
    pub list: SequenceList,
    /// Maximum duration, at most [`ONBOARD_TIMEOUT_MS_MAX`].
    pub timeout: Duration,
}

/// Sequence hashes with a priority: a checked `OffloadRequest`, and a part of `OnboardRequest`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SequenceList {
    /// The session that requests the blocks.
    pub session: SessionId,
    /// Hashes of the blocks: 1 to [`BLOCK_SLOTS_MAX`].
    pub sequences: Vec<SequenceHash>,
    /// Scheduling priority of the request.
    pub priority: u8,
}

/// A checked `PinRequest`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinBlocks {
    /// The session that owns the pins.
    pub session: SessionId,
    /// Hashes of the blocks: 1 to [`BLOCK_SLOTS_MAX`].
    pub sequences: Vec<SequenceHash>,
    /// Lifetime of the pins, more than 0.
    pub ttl: Duration,
}

/// A checked `UnpinRequest`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnpinBlocks {
    /// The session that owns the pins.
    pub session: SessionId,
    /// The pins to release.
    pub pins: Vec<NamedPin>,
}

/// A pin as its client names it: a checked `BlockPin`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedPin {
    /// Tier of the pinned block. The agent may lack this tier.
    pub tier: pb::BlockTier,
    /// Expiry of the pin, on the agent's clock.
    pub deadline: Duration,
    /// Number of the pin.
    pub number: u64,
}

/// Reads the session id of a request.
pub(super) fn read_session(id: &[u8]) -> Result<SessionId, ConvertError> {
    let id = <[u8; 16]>::try_from(id).map_err(|_other| {
        let actual = format!("has {} bytes", id.len());
        let expected = "exactly 16".to_owned();
        ConvertError::new("session_id", Problem::Mismatch { actual, expected })
    });
    id.map(SessionId)
}

pub(super) fn check_filled(field: &str, count: usize, limit: usize) -> Result<(), ConvertError> {
    if count == 0 {
        return Err(ConvertError::new(field, Problem::Required));
    }
    check_count(field, count, limit)
}

fn read_priority(priority: u32) -> Result<u8, ConvertError> {
    u8::try_from(priority).map_err(|_large| {
        let value = priority.into();
        let max = u8::MAX.into();
        ConvertError::new("priority", Problem::OutOfRange { value, min: 0, max })
    })
}

pub(super) fn read_sequences(
    hashes: &[u64],
    limit: usize,
) -> Result<Vec<SequenceHash>, ConvertError> {
    check_filled("sequence_hashes", hashes.len(), limit)?;
    Ok(hashes.iter().copied().map(SequenceHash).collect())
}

pub(super) fn read_millis(field: &str, millis: u32, max: u32) -> Result<Duration, ConvertError> {
    check_range(field, millis.into(), 1, max.into())?;
    Ok(Duration::from_millis(millis.into()))
}

fn read_slots(session: &[u8], slots: Vec<u32>, limit: usize) -> Result<SlotList, ConvertError> {
    let session = read_session(session)?;
    check_filled("slots", slots.len(), limit)?;
    Ok(SlotList { session, slots })
}

// === impl NewSession ===

impl TryFrom<pb::OpenSessionRequest> for NewSession {
    type Error = ConvertError;

    fn try_from(request: pb::OpenSessionRequest) -> Result<Self, ConvertError> {
        let pb::OpenSessionRequest { model, tenant, worker_id, name, block_bytes, dtype } = request;
        let partition = PartitionKey::new(&model, &tenant)?;
        let worker =
            Some(&*worker_id).filter(|id| !id.is_empty()).map(WorkerId::new).transpose()?;
        check_name("name", &name)?;
        if let Some(dtype) = &dtype {
            check_text("dtype", dtype, NAME_BYTES_MAX)?;
        }
        Ok(Self { partition, worker, name, block_bytes, dtype })
    }
}

// === impl SessionId ===

impl TryFrom<pb::EndSessionRequest> for SessionId {
    type Error = ConvertError;

    fn try_from(request: pb::EndSessionRequest) -> Result<Self, ConvertError> {
        read_session(&request.session_id)
    }
}

// === impl SlotLease ===

impl TryFrom<pb::AllocateRequest> for SlotLease {
    type Error = ConvertError;

    fn try_from(request: pb::AllocateRequest) -> Result<Self, ConvertError> {
        let session = read_session(&request.session_id)?;
        check_range("count", request.count.into(), 1, BLOCK_SLOTS_MAX as u64)?;
        let lease = read_millis("lease_ms", request.lease_ms, u32::MAX)?;
        Ok(Self { session, count: request.count as usize, lease })
    }
}

// === impl BlockWrite ===

impl TryFrom<pb::WriteRequest> for BlockWrite {
    type Error = ConvertError;

    fn try_from(request: pb::WriteRequest) -> Result<Self, ConvertError> {
        let session = read_session(&request.session_id)?;
        let bytes = request.data.len();
        let limit = BLOCK_WRITE_BYTES_MAX;
        if bytes > limit {
            return Err(ConvertError::new("data", Problem::TooLong { bytes, limit }));
        }
        let offset_bytes = usize::try_from(request.offset_bytes).unwrap_or(usize::MAX);
        Ok(Self { session, slot: request.slot, offset_bytes, data: request.data })
    }
}

// === impl Commits ===

impl TryFrom<pb::BlockIdentity> for BlockKey {
    type Error = ConvertError;

    fn try_from(identity: pb::BlockIdentity) -> Result<Self, ConvertError> {
        let sequence = SequenceHash(identity.sequence_hash);
        let local = LocalHash(identity.local_hash);
        let parent = identity.parent.map(SequenceHash);
        let position = identity.position;
        check_range("position", position.into(), 0, CHAIN_BLOCKS_MAX as u64 - 1)?;
        let mismatch = |field: &str, actual: String, expected: String| {
            ConvertError::new(field, Problem::Mismatch { actual, expected })
        };
        if parent.is_some() != (position > 0) {
            let actual = if parent.is_some() { "is set" } else { "is not set" };
            let expected = format!("the block before, if there is one: position is {position}");
            return Err(mismatch("parent", actual.to_owned(), expected));
        }
        let expected = hash::sequence_hash(parent, local);
        if sequence != expected {
            let expected = format!("{} for this parent and local_hash", expected.0);
            return Err(mismatch("sequence_hash", format!("is {}", sequence.0), expected));
        }
        Ok(Self { sequence, parent, local, position })
    }
}

impl TryFrom<pb::CommitBlock> for BlockCommit {
    type Error = ConvertError;

    fn try_from(block: pb::CommitBlock) -> Result<Self, ConvertError> {
        let identity =
            block.identity.ok_or_else(|| ConvertError::new("identity", Problem::Required))?;
        let key = BlockKey::try_from(identity).map_err(|error| error.within("identity"))?;
        let priority = read_priority(block.priority)?;
        Ok(Self { slot: block.slot, key, checksum: block.checksum, priority })
    }
}

impl TryFrom<pb::CommitRequest> for Commits {
    type Error = ConvertError;

    fn try_from(request: pb::CommitRequest) -> Result<Self, ConvertError> {
        let session = read_session(&request.session_id)?;
        check_filled("blocks", request.blocks.len(), BLOCK_CHECKS_MAX)?;
        let mut seen = BTreeSet::new();
        let blocks = request.blocks.into_iter().enumerate().map(|(index, block)| {
            let within = |error: ConvertError| error.within(format_args!("blocks[{index}]"));
            let block = BlockCommit::try_from(block).map_err(within)?;
            if seen.insert(block.slot) {
                return Ok(block);
            }
            let twice = Problem::Repeated(format!("slot {}", block.slot));
            Err(within(ConvertError::new("slot", twice)))
        });
        Ok(Self { session, blocks: blocks.collect::<Result<_, _>>()? })
    }
}

// === impl SlotList ===

impl TryFrom<pb::AbortRequest> for SlotList {
    type Error = ConvertError;

    fn try_from(request: pb::AbortRequest) -> Result<Self, ConvertError> {
        read_slots(&request.session_id, request.slots, BLOCK_SLOTS_MAX)
    }
}

impl TryFrom<pb::ReleaseRequest> for SlotList {
    type Error = ConvertError;

    fn try_from(request: pb::ReleaseRequest) -> Result<Self, ConvertError> {
        read_slots(&request.session_id, request.slots, BLOCK_SLOTS_MAX)
    }
}

impl TryFrom<pb::ReadRequest> for SlotList {
    type Error = ConvertError;

    fn try_from(request: pb::ReadRequest) -> Result<Self, ConvertError> {
        read_slots(&request.session_id, request.slots, BLOCK_CHECKS_MAX)
    }
}

impl TryFrom<pb::VerifyRequest> for SlotList {
    type Error = ConvertError;

    fn try_from(request: pb::VerifyRequest) -> Result<Self, ConvertError> {
        read_slots(&request.session_id, request.slots, BLOCK_CHECKS_MAX)
    }
}

// === impl PrefixQuery ===

impl TryFrom<pb::MatchPrefixRequest> for PrefixQuery {
    type Error = ConvertError;

    fn try_from(request: pb::MatchPrefixRequest) -> Result<Self, ConvertError> {
        let hold = request.hold.then(|| read_session(&request.session_id)).transpose()?;
        let sequences = read_sequences(&request.sequence_hashes, QUERY_BLOCKS_MAX)?;
        let prefill_wait = Duration::from_millis(request.prefill_wait_ms.into());
        let question = match request.prefill_tokens_per_second {
            Some(rate) if rate.is_finite() && rate > 0.0 => {
                Some(LoadQuestion { prefill_tokens_per_second: rate, prefill_wait })
            }
            Some(rate) => {
                let actual = format!("is {rate}");
                let expected = "above 0".to_owned();
                let field = "prefill_tokens_per_second";
                return Err(ConvertError::new(field, Problem::Mismatch { actual, expected }));
            }
            None if !prefill_wait.is_zero() => {
                let why = Problem::Unexpected("without prefill_tokens_per_second");
                return Err(ConvertError::new("prefill_wait_ms", why));
            }
            None => None,
        };
        Ok(Self { hold, sequences, question })
    }
}

// === impl Onboarding, SequenceList ===

impl TryFrom<pb::OnboardRequest> for Onboarding {
    type Error = ConvertError;

    fn try_from(request: pb::OnboardRequest) -> Result<Self, ConvertError> {
        let session = read_session(&request.session_id)?;
        let sequences = read_sequences(&request.sequence_hashes, BLOCK_SLOTS_MAX)?;
        let priority = read_priority(request.priority)?;
        let millis = request.timeout_ms.unwrap_or(ONBOARD_TIMEOUT_MS_DEFAULT);
        let timeout = read_millis("timeout_ms", millis, ONBOARD_TIMEOUT_MS_MAX)?;
        Ok(Self { list: SequenceList { session, sequences, priority }, timeout })
    }
}

impl TryFrom<pb::OffloadRequest> for SequenceList {
    type Error = ConvertError;

    fn try_from(request: pb::OffloadRequest) -> Result<Self, ConvertError> {
        let session = read_session(&request.session_id)?;
        let sequences = read_sequences(&request.sequence_hashes, BLOCK_SLOTS_MAX)?;
        Ok(Self { session, sequences, priority: read_priority(request.priority)? })
    }
}

// === impl PinBlocks, UnpinBlocks ===

impl TryFrom<pb::PinRequest> for PinBlocks {
    type Error = ConvertError;

    fn try_from(request: pb::PinRequest) -> Result<Self, ConvertError> {
        let session = read_session(&request.session_id)?;
        let sequences = read_sequences(&request.sequence_hashes, BLOCK_SLOTS_MAX)?;
        Ok(Self { session, sequences, ttl: read_millis("ttl_ms", request.ttl_ms, u32::MAX)? })
    }
}

impl TryFrom<pb::UnpinRequest> for UnpinBlocks {
    type Error = ConvertError;

    fn try_from(request: pb::UnpinRequest) -> Result<Self, ConvertError> {
        let session = read_session(&request.session_id)?;
        check_filled("pins", request.pins.len(), BLOCK_SLOTS_MAX)?;
        let pins = request.pins.iter().enumerate().map(|(index, pin)| {
            let field = || format!("pins[{index}].tier");
            match pb::BlockTier::try_from(pin.tier) {
                Ok(pb::BlockTier::Unspecified) => {
                    Err(ConvertError::new(field(), Problem::Required))
                }
                Ok(tier) => {
                    let deadline = Duration::from_nanos(pin.deadline_ns);
                    Ok(NamedPin { tier, deadline, number: pin.pin_id })
                }
                Err(_) => Err(ConvertError::new(field(), Problem::UnknownValue(pin.tier))),
            }
        });
        Ok(Self { session, pins: pins.collect::<Result<_, _>>()? })
    }
}

#[cfg(test)]
#[path = "blocks_test.rs"]
mod tests;
