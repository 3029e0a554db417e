use super::find::check_tokens_le;
use super::shared::{
    age_ms, check_block_size, check_count, check_name, check_required_name, check_sequence,
    check_text, copy_mode, read_copy_mode, read_incarnation, read_sequence, read_state, read_tier,
    state, state_reason, tier,
};
use super::worker::read_local_indexer;
use super::{ConvertError, Problem, WorkerAddress, incarnation};
use crate::hash::{Namespace, local_hashes};
use crate::limits::{
    BATCH_EVENTS_MAX, EVENT_BLOCKS_MAX, HEARTBEAT_REASONS_MAX, REASON_EXAMPLE_BYTES_MAX,
    SALT_BYTES_MAX,
};
use crate::pb;
use crate::pb::published_event::Event;
use crate::types::{
    BlockName, CopyMode, DpRank, Incarnation, KvEvent, LocalHash, PartitionKey, Reason,
    SourceState, StateReason, StoredBlock, Tier, WorkerId,
};
use std::time::Duration;

/// A checked `PublishHello`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The worker that the source feeds.
    pub address: WorkerAddress,
    /// Name of the source.
    pub source: String,
    /// Tokens per block.
    pub block_size: u32,
    /// Incarnation of the source's cache.
    pub incarnation: Incarnation,
    /// How repeated announcements count.
    pub copy_mode: CopyMode,
    /// Number of the first batch of this incarnation, if the publisher states it.
    pub first_sequence: Option<u64>,
    /// Number of the newest batch, if the publisher states it.
    pub head_sequence: Option<u64>,
    /// Address of the worker's agent, if the publisher is an agent.
    pub local_indexer: Option<String>,
}

/// A checked message of a publisher.
#[derive(Debug, Clone, PartialEq)]
pub enum Publication {
    /// The first message of the stream.
    Hello(Hello),
    /// A batch, not decoded yet: decoding needs the block size.
    Batch(pb::PublishBatch),
    /// A heartbeat between batches.
    Heartbeat(Heartbeat),
}

/// A checked `PublishHeartbeat`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    /// Number of the newest batch; none before the first batch.
    pub head_sequence: Option<u64>,
    /// [Digest](crate::digest) of all the source's blocks after that batch, if the source states it.
    pub digest: Option<u64>,
    /// How far the source's events can be trusted.
    pub state: SourceState,
    /// How long ago the stream was last confirmed to contain the engine's newest events.
    pub verified_age: Duration,
    /// Whether an engine of the source is disconnected from it.
    pub engine_away: bool,
    /// Why the state is worse than exact, one entry per reason; `since` is not stated.
    pub reasons: Vec<StateReason>,
}

impl Heartbeat {
    /// A heartbeat with only the head: the state is exact, verified now.
    #[must_use]
    pub const fn at(head_sequence: Option<u64>) -> Self {
        let state = SourceState::Exact;
        let verified_age = Duration::ZERO;
        let reasons = Vec::new();
        Self { head_sequence, digest: None, state, verified_age, engine_away: false, reasons }
    }
}

impl TryFrom<pb::PublishHeartbeat> for Heartbeat {
    type Error = ConvertError;

    fn try_from(heartbeat: pb::PublishHeartbeat) -> Result<Self, ConvertError> {
        let state = match heartbeat.state {
            0 => SourceState::Exact,
            stated => read_state("state", stated)?,
        };
        Ok(Self {
            head_sequence: read_sequence("head_sequence", heartbeat.head_sequence)?,
            digest: heartbeat.digest,
            state,
            verified_age: Duration::from_millis(heartbeat.verified_age_ms.into()),
            engine_away: heartbeat.engine_away,
            reasons: read_reasons(heartbeat.reasons)?,
        })
    }
}

impl From<Heartbeat> for pb::PublishHeartbeat {
    fn from(heartbeat: Heartbeat) -> Self {
        Self {
            head_sequence: heartbeat.head_sequence,
            digest: heartbeat.digest,
            state: state(heartbeat.state).into(),
            verified_age_ms: age_ms(heartbeat.verified_age).try_into().unwrap_or(u32::MAX),
            engine_away: heartbeat.engine_away,
            reasons: heartbeat.reasons.iter().map(|seen| state_reason(seen, None)).collect(),
        }
    }
}

/// Reads reasons. For reasons of a newer agent that this version does not know, only the direction counts.
pub(super) fn read_reasons(stated: Vec<pb::StateReason>) -> Result<Vec<StateReason>, ConvertError> {
    check_count("reasons", stated.len(), HEARTBEAT_REASONS_MAX)?;
    let mut reasons = Vec::new();
    for pb::StateReason { reason, count, mut example, may_be_high, .. } in stated {
        let known = Reason::ALL.iter().find(|known| **known as i32 == reason);
        let reason = match known {
            Some(known) => *known,
            None if may_be_high => Reason::UnknownEvent,
            None => continue,
        };
        example.truncate(example.floor_char_boundary(REASON_EXAMPLE_BYTES_MAX));
        let count = count.max(1);
        let example = example.into();
        let since = Duration::ZERO;
        StateReason::note(&mut reasons, StateReason { reason, count, example, since });
    }
    Ok(reasons)
}

/// A checked `PublishBatch`. Its tokens are replaced by hashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedBatch {
    /// Number within the incarnation, at most [`SEQUENCE_MAX`](crate::limits::SEQUENCE_MAX).
    pub sequence: u64,
    /// Rank of the blocks.
    pub rank: DpRank,
    /// The events, at most [`BATCH_EVENTS_MAX`].
    pub events: Vec<KvEvent>,
}

impl TryFrom<pb::PublishEventsRequest> for Publication {
    type Error = ConvertError;

    fn try_from(request: pb::PublishEventsRequest) -> Result<Self, ConvertError> {
        match request.message {
            Some(pb::publish_events_request::Message::Hello(hello)) => {
                let hello = Hello::try_from(hello).map_err(|error| error.within("hello"))?;
                Ok(Self::Hello(hello))
            }
            Some(pb::publish_events_request::Message::Batch(batch)) => Ok(Self::Batch(batch)),
            Some(pb::publish_events_request::Message::Heartbeat(heartbeat)) => {
                let heartbeat = Heartbeat::try_from(heartbeat);
                heartbeat.map(Self::Heartbeat).map_err(|error| error.within("heartbeat"))
            }
            None => Err(ConvertError::new("hello, batch or heartbeat", Problem::Required)),
        }
    }
}

impl TryFrom<pb::PublishHello> for Hello {
    type Error = ConvertError;

    fn try_from(hello: pb::PublishHello) -> Result<Self, ConvertError> {
        check_required_name("source", &hello.source)?;
        let copy_mode = read_copy_mode("copy_mode", hello.copy_mode)?;
        Ok(Self {
            address: WorkerAddress {
                partition: PartitionKey::new(&hello.model, &hello.tenant)?,
                worker: WorkerId::new(&hello.worker_id)?,
            },
            source: hello.source,
            block_size: check_block_size(hello.block_size)?,
            incarnation: read_incarnation("incarnation", &hello.incarnation)?,
            copy_mode: copy_mode.unwrap_or(CopyMode::Set),
            first_sequence: read_sequence("first_sequence", hello.first_sequence)?,
            head_sequence: read_sequence("head_sequence", hello.head_sequence)?,
            local_indexer: read_local_indexer(hello.local_indexer_endpoint)?,
        })
    }
}

impl From<Hello> for pb::PublishHello {
    fn from(hello: Hello) -> Self {
        Self {
            model: hello.address.partition.model().to_owned(),
            tenant: hello.address.partition.tenant().to_owned(),
            worker_id: hello.address.worker.as_str().to_owned(),
            source: hello.source,
            block_size: hello.block_size,
            incarnation: incarnation(hello.incarnation),
            copy_mode: copy_mode(hello.copy_mode).into(),
            first_sequence: hello.first_sequence,
            head_sequence: hello.head_sequence,
            local_indexer_endpoint: hello.local_indexer.unwrap_or_default(),
        }
    }
}

/// Encodes a batch with local hashes.
#[must_use]
pub fn publish_batch(sequence: u64, rank: DpRank, events: &[KvEvent]) -> pb::PublishBatch {
    let events = events.iter().map(|event| pb::PublishedEvent { event: Some(published(event)) });
    pb::PublishBatch { sequence, dp_rank: rank, events: events.collect() }
}

fn published(event: &KvEvent) -> Event {
    match event {
        KvEvent::Stored { parent, tier: at, blocks } => Event::Stored(pb::BlocksStored {
            parent_name: parent.map(|name| name.0),
            names: blocks.iter().map(|block| block.name.0).collect(),
            local_hashes: blocks.iter().map(|block| block.local.0).collect(),
            tier: tier(*at).into(),
            ..pb::BlocksStored::default()
        }),
        KvEvent::StoredNames { tier: at, names } => Event::Stored(pb::BlocksStored {
            names: names.iter().map(|name| name.0).collect(),
            tier: tier(*at).into(),
            ..pb::BlocksStored::default()
        }),
        KvEvent::Removed { tier: at, names } => Event::Removed(pb::BlocksRemoved {
            names: names.iter().map(|name| name.0).collect(),
            tier: tier(*at).into(),
            all_copies: false,
        }),
        KvEvent::Gone { tier: at, names } => Event::Removed(pb::BlocksRemoved {
            names: names.iter().map(|name| name.0).collect(),
            tier: tier(*at).into(),
            all_copies: true,
        }),
        KvEvent::Cleared => Event::Cleared(pb::BlocksCleared::default()),
        KvEvent::ClearedTier(at) => {
            Event::Cleared(pb::BlocksCleared { tier: Some(tier(*at).into()) })
        }
    }
}

impl PublishedBatch {
    /// Checks a batch and hashes its tokens, for a partition with `block_size` tokens per block.
    ///
    /// # Errors
    /// If the batch or one of its events breaks the contract.
    pub fn read(batch: pb::PublishBatch, block_size: u32) -> Result<Self, ConvertError> {
        check_sequence("sequence", batch.sequence)?;
        check_count("events", batch.events.len(), BATCH_EVENTS_MAX)?;
        let events = batch.events.into_iter().enumerate().map(|(index, event)| {
            read_event(event, block_size).map_err(|error| error.within(format!("events[{index}]")))
        });
        Ok(Self {
            sequence: batch.sequence,
            rank: batch.dp_rank,
            events: events.collect::<Result<_, _>>()?,
        })
    }
}

fn read_event(event: pb::PublishedEvent, block_size: u32) -> Result<KvEvent, ConvertError> {
    match event.event {
        Some(Event::Stored(stored)) => {
            read_stored(stored, block_size).map_err(|error| error.within("stored"))
        }
        Some(Event::Removed(removed)) => {
            read_removed(removed).map_err(|error| error.within("removed"))
        }
        Some(Event::Cleared(pb::BlocksCleared { tier: None })) => Ok(KvEvent::Cleared),
        Some(Event::Cleared(pb::BlocksCleared { tier: Some(tier) })) => {
            let tier = read_tier("tier", tier, None).map_err(|error| error.within("cleared"))?;
            Ok(KvEvent::ClearedTier(tier))
        }
        None => Err(ConvertError::new("stored, removed or cleared", Problem::Required)),
    }
}

fn read_names(names: Vec<u64>) -> Result<Vec<BlockName>, ConvertError> {
    if names.is_empty() {
        return Err(ConvertError::new("names", Problem::Required));
    }
    check_count("names", names.len(), EVENT_BLOCKS_MAX)?;
    Ok(names.into_iter().map(BlockName).collect())
}

fn read_removed(removed: pb::BlocksRemoved) -> Result<KvEvent, ConvertError> {
    let tier = read_tier("tier", removed.tier, Some(Tier::Device))?;
    let names = read_names(removed.names)?;
    Ok(if removed.all_copies {
        KvEvent::Gone { tier, names }
    } else {
        KvEvent::Removed { tier, names }
    })
}

fn read_stored(stored: pb::BlocksStored, block_size: u32) -> Result<KvEvent, ConvertError> {
    let tier = read_tier("tier", stored.tier, Some(Tier::Device))?;
    let names = read_names(stored.names)?;
    let parent = stored.parent_name.map(BlockName);
    let locals = match (stored.local_hashes.is_empty(), stored.token_ids_le.is_empty()) {
        (true, true) => {
            refuse("parent_name", parent.is_some(), "without local_hashes or token_ids_le")?;
            refuse_namespace(&stored.lora_name, &stored.cache_salt)?;
            return Ok(KvEvent::StoredNames { tier, names });
        }
        (false, true) => {
            refuse_namespace(&stored.lora_name, &stored.cache_salt)?;
            let count = stored.local_hashes.len();
            check_equal("local_hashes", "entries", count, names.len())?;
            stored.local_hashes.into_iter().map(LocalHash).collect()
        }
        (true, false) => {
            let namespace =
                Namespace { lora_name: &stored.lora_name, cache_salt: &stored.cache_salt };
            hash_tokens(&stored.token_ids_le, namespace, names.len(), block_size)?
        }
        (false, false) => {
            return Err(ConvertError::new(
                "token_ids_le",
                Problem::Unexpected("together with local_hashes: send one of them"),
            ));
        }
    };
    let blocks = names.into_iter().zip(locals).map(|(name, local)| StoredBlock { name, local });
    Ok(KvEvent::Stored { parent, tier, blocks: blocks.collect() })
}

fn hash_tokens(
    tokens_le: &[u8],
    namespace: Namespace<'_>,
    blocks: usize,
    block_size: u32,
) -> Result<Vec<LocalHash>, ConvertError> {
    check_name("lora_name", namespace.lora_name)?;
    check_text("cache_salt", namespace.cache_salt, SALT_BYTES_MAX)?;
    check_tokens_le("token_ids_le", tokens_le)?;
    let block_size = usize::try_from(block_size).unwrap_or(usize::MAX);
    let tokens = blocks.saturating_mul(block_size);
    check_equal("token_ids_le", "tokens", tokens_le.len() / 4, tokens)?;
    let mut locals = Vec::new();
    local_hashes(tokens_le, block_size, namespace.seed(), &[], &mut locals);
    Ok(locals)
}

fn refuse_namespace(lora_name: &str, cache_salt: &str) -> Result<(), ConvertError> {
    const REASON: &str = "without token_ids_le: local hashes contain it";
    refuse("lora_name", !lora_name.is_empty(), REASON)?;
    refuse("cache_salt", !cache_salt.is_empty(), REASON)
}

fn refuse(field: &str, given: bool, reason: &'static str) -> Result<(), ConvertError> {
    if given {
        return Err(ConvertError::new(field, Problem::Unexpected(reason)));
    }
    Ok(())
}

fn check_equal(
    field: &str,
    unit: &str,
    actual: usize,
    expected: usize,
) -> Result<(), ConvertError> {
    if actual == expected {
        return Ok(());
    }
    let actual = format!("has {actual} {unit}");
    let expected = format!("{expected}, to match the names");
    Err(ConvertError::new(field, Problem::Mismatch { actual, expected }))
}

#[cfg(test)]
#[path = "ingest_test.rs"]
mod tests;
