//! Messages between indexes and agents over `LocalIndexer`, in both directions: an index writes requests
//! and reads answers, an agent reads requests and writes answers.

use super::shared::{
    check_block_size, check_count, check_range, check_required_name, copy_mode, read_copy_mode,
    read_incarnation, read_sequence,
};
use super::{ConvertError, Problem, PublishedBatch, WorkerAddress, incarnation, publish_batch};
use crate::digest::DIGEST_BUCKETS;
use crate::limits::{DUMP_CHUNK_RECORDS_DEFAULT, DUMP_CHUNK_RECORDS_MAX, WORKER_SOURCES_MAX};
use crate::pb;
use crate::pb::get_events_response::Part as EventsMessage;
use crate::pb::local_dump_response::Part as DumpMessage;
use crate::types::{
    BlockName, CopyMode, DpRank, HeldBlock, Incarnation, LocalHash, PartitionKey, WorkerId,
};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// A source of an agent, as a request names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalSource {
    /// The worker that the agent must serve.
    pub address: WorkerAddress,
    /// The source's name.
    pub name: String,
}

/// A checked `GetEventsRequest`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventsQuery {
    /// The source.
    pub source: LocalSource,
    /// Incarnation of the source.
    pub incarnation: Incarnation,
    /// First and last batch number to send, never empty; [`u64::MAX`] as the last number requests all.
    pub range: RangeInclusive<u64>,
}

/// A checked `LocalDumpRequest`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalDumpQuery {
    /// The source.
    pub source: LocalSource,
    /// Incarnation of the source; none for the current one.
    pub incarnation: Option<Incarnation>,
    /// Maximum number of records in one chunk, at least 1.
    pub chunk_records: usize,
    /// Only blocks in the listed [buckets](crate::digest), by rank. If not set: all blocks.
    pub buckets: Option<RankBuckets>,
}

/// Buckets by rank, ascending. Each bucket covers all tiers.
pub type RankBuckets = BTreeMap<DpRank, Vec<u16>>;

/// A checked `GetEventsResponse`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventsPart {
    /// The next batch.
    Batch(PublishedBatch),
    /// The range is complete.
    End {
        /// Number of the newest batch.
        head: Option<u64>,
    },
    /// The rest of the range is no longer retained.
    TooOld {
        /// Number of the oldest retained batch.
        oldest: u64,
        /// Number of the newest batch.
        head: u64,
    },
    /// The range begins beyond the newest batch.
    Ahead {
        /// Number of the newest batch.
        head: Option<u64>,
    },
    /// The source has another incarnation.
    WrongIncarnation {
        /// The current incarnation.
        present: Incarnation,
    },
}

/// A checked `LocalDumpEnd`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalDumpEnd {
    /// The incarnation that was dumped.
    pub incarnation: Incarnation,
    /// The last batch that the records include.
    pub watermark: Option<u64>,
    /// Number of records sent.
    pub records: u64,
    /// Whether announced blocks of the source are missing from the dump.
    pub incomplete: bool,
}

/// A checked `LocalDumpResponse`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalDumpPart {
    /// Records of one rank, at most [`DUMP_CHUNK_RECORDS_MAX`].
    Chunk {
        /// The rank.
        rank: DpRank,
        /// The records.
        records: Vec<HeldBlock>,
    },
    /// The dump is complete.
    End(LocalDumpEnd),
    /// The source has another incarnation.
    WrongIncarnation {
        /// The current incarnation.
        present: Incarnation,
    },
}

/// A checked `LocalSourceStatus`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalSourceStatus {
    /// Name of the source.
    pub name: String,
    /// Incarnation of the source.
    pub incarnation: Incarnation,
    /// Number of the first batch of this incarnation.
    pub first: u64,
    /// Number of the oldest batch in the journal.
    pub oldest: Option<u64>,
    /// Number of the newest batch.
    pub head: Option<u64>,
    /// Number of batches in the journal.
    pub journal_batches: u64,
    /// Size of the journal in memory, in bytes.
    pub journal_bytes: u64,
    /// Number of held names, over all ranks.
    pub held_blocks: u64,
    /// Memory of the inventory of held names, in bytes.
    pub inventory_bytes: u64,
    /// How repeated announcements count.
    pub copy_mode: CopyMode,
    /// Whether announced blocks of the source are missing from dumps.
    pub incomplete: bool,
}

/// A checked `GetLocalStatusResponse`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalStatus {
    /// Tokens per block.
    pub block_size: u32,
    /// The agent's sources, at most [`WORKER_SOURCES_MAX`].
    pub sources: Vec<LocalSourceStatus>,
}

// === impl WorkerAddress ===

impl TryFrom<pb::GetLocalStatusRequest> for WorkerAddress {
    type Error = ConvertError;

    fn try_from(request: pb::GetLocalStatusRequest) -> Result<Self, ConvertError> {
        read_address(&request.model, &request.tenant, &request.worker_id)
    }
}

pub(super) fn read_address(
    model: &str,
    tenant: &str,
    worker_id: &str,
) -> Result<WorkerAddress, ConvertError> {
    let partition = PartitionKey::new(model, tenant)?;
    Ok(WorkerAddress { partition, worker: WorkerId::new(worker_id)? })
}

pub(super) fn read_source(
    address: WorkerAddress,
    name: String,
) -> Result<LocalSource, ConvertError> {
    check_required_name("source", &name)?;
    Ok(LocalSource { address, name })
}

// === impl EventsQuery ===

impl TryFrom<pb::GetEventsRequest> for EventsQuery {
    type Error = ConvertError;

    fn try_from(request: pb::GetEventsRequest) -> Result<Self, ConvertError> {
        let address = read_address(&request.model, &request.tenant, &request.worker_id)?;
        let from = request.from_sequence;
        let to = request.to_sequence.unwrap_or(u64::MAX);
        check_range("to_sequence", to, from, u64::MAX)?;
        Ok(Self {
            source: read_source(address, request.source)?,
            incarnation: read_incarnation("incarnation", &request.incarnation)?,
            range: from..=to,
        })
    }
}

impl From<EventsQuery> for pb::GetEventsRequest {
    fn from(query: EventsQuery) -> Self {
        let address = query.source.address;
        let last = *query.range.end();
        Self {
            model: address.partition.model().to_owned(),
            tenant: address.partition.tenant().to_owned(),
            worker_id: address.worker.as_str().to_owned(),
            source: query.source.name,
            incarnation: incarnation(query.incarnation),
            from_sequence: *query.range.start(),
            to_sequence: (last != u64::MAX).then_some(last),
        }
    }
}

// === impl LocalDumpQuery ===

impl TryFrom<pb::LocalDumpRequest> for LocalDumpQuery {
    type Error = ConvertError;

    fn try_from(request: pb::LocalDumpRequest) -> Result<Self, ConvertError> {
        let requested = request.chunk_records.map_or(DUMP_CHUNK_RECORDS_DEFAULT as u64, u64::from);
        check_range("chunk_records", requested, 1, DUMP_CHUNK_RECORDS_MAX as u64)?;
        let address = read_address(&request.model, &request.tenant, &request.worker_id)?;
        let incarnation = match request.incarnation.as_ref() {
            [] => None,
            bytes => Some(read_incarnation("incarnation", bytes)?),
        };
        let ranks = request.buckets.into_iter().enumerate().map(|(index, rank)| {
            let buckets = read_buckets(&rank.buckets)
                .map_err(|error| error.within(format_args!("buckets[{index}]")))?;
            Ok((rank.dp_rank, buckets))
        });
        let buckets: RankBuckets = ranks.collect::<Result<_, ConvertError>>()?;
        Ok(Self {
            source: read_source(address, request.source)?,
            incarnation,
            buckets: Some(buckets).filter(|buckets| !buckets.is_empty()),
            chunk_records: usize::try_from(requested).unwrap_or(DUMP_CHUNK_RECORDS_MAX),
        })
    }
}

/// Reads bucket numbers, ascending.
pub(super) fn read_buckets(numbers: &[u32]) -> Result<Vec<u16>, ConvertError> {
    check_count("buckets", numbers.len(), DIGEST_BUCKETS)?;
    let mut buckets: Vec<u16> = Vec::with_capacity(numbers.len());
    for &number in numbers {
        let least = buckets.last().map_or(0, |before| u64::from(*before) + 1);
        check_range("buckets", number.into(), least, DIGEST_BUCKETS as u64 - 1)?;
        buckets.extend(u16::try_from(number));
    }
    Ok(buckets)
}

impl From<LocalDumpQuery> for pb::LocalDumpRequest {
    fn from(query: LocalDumpQuery) -> Self {
        let address = query.source.address;
        Self {
            model: address.partition.model().to_owned(),
            tenant: address.partition.tenant().to_owned(),
            worker_id: address.worker.as_str().to_owned(),
            source: query.source.name,
            incarnation: query.incarnation.map(incarnation).unwrap_or_default(),
            chunk_records: u32::try_from(query.chunk_records).ok(),
            buckets: query.buckets.into_iter().flatten().map(rank_buckets).collect(),
        }
    }
}

fn rank_buckets((dp_rank, buckets): (DpRank, Vec<u16>)) -> pb::RankBuckets {
    pb::RankBuckets { dp_rank, buckets: buckets.into_iter().map(u32::from).collect() }
}

// === impl EventsPart ===

impl EventsPart {
    /// Checks an agent's answer for a worker with `block_size` tokens per block.
    ///
    /// # Errors
    /// If the answer breaks the contract.
    pub fn read(response: pb::GetEventsResponse, block_size: u32) -> Result<Self, ConvertError> {
        match response.part {
            Some(EventsMessage::Batch(batch)) => {
                let batch = PublishedBatch::read(batch, block_size);
                Ok(Self::Batch(batch.map_err(|error| error.within("batch"))?))
            }
            Some(EventsMessage::End(end)) => {
                let head = read_sequence("end.head_sequence", end.head_sequence)?;
                Ok(Self::End { head })
            }
            Some(EventsMessage::TooOld(answer)) => {
                let oldest = answer.oldest_sequence;
                let head = answer.head_sequence;
                check_range("head_sequence", head, oldest, u64::MAX)
                    .map_err(|error| error.within("too_old"))?;
                Ok(Self::TooOld { oldest, head })
            }
            Some(EventsMessage::Ahead(answer)) => Ok(Self::Ahead { head: answer.head_sequence }),
            Some(EventsMessage::WrongIncarnation(answer)) => {
                Ok(Self::WrongIncarnation { present: read_present(&answer)? })
            }
            None => Err(ConvertError::new("part", Problem::Required)),
        }
    }
}

pub(super) fn read_present(answer: &pb::WrongIncarnation) -> Result<Incarnation, ConvertError> {
    read_incarnation("wrong_incarnation.incarnation", &answer.incarnation)
}

pub(super) fn present(present: Incarnation) -> pb::WrongIncarnation {
    pb::WrongIncarnation { incarnation: incarnation(present) }
}

impl From<EventsPart> for pb::GetEventsResponse {
    fn from(part: EventsPart) -> Self {
        let part = match part {
            EventsPart::Batch(batch) => {
                EventsMessage::Batch(publish_batch(batch.sequence, batch.rank, &batch.events))
            }
            EventsPart::End { head } => EventsMessage::End(pb::EventsEnd { head_sequence: head }),
            EventsPart::TooOld { oldest, head } => EventsMessage::TooOld(pb::EventsTooOld {
                oldest_sequence: oldest,
                head_sequence: head,
            }),
            EventsPart::Ahead { head } => {
                EventsMessage::Ahead(pb::EventsAhead { head_sequence: head })
            }
            EventsPart::WrongIncarnation { present: current } => {
                EventsMessage::WrongIncarnation(present(current))
            }
        };
        Self { part: Some(part) }
    }
}

// === impl LocalDumpPart ===

impl TryFrom<pb::LocalDumpResponse> for LocalDumpPart {
    type Error = ConvertError;

    fn try_from(response: pb::LocalDumpResponse) -> Result<Self, ConvertError> {
        match response.part {
            Some(DumpMessage::Chunk(chunk)) => {
                read_chunk(chunk).map_err(|error| error.within("chunk"))
            }
            Some(DumpMessage::End(end)) => Ok(Self::End(LocalDumpEnd {
                incarnation: read_incarnation("end.incarnation", &end.incarnation)?,
                watermark: read_sequence("end.watermark_sequence", end.watermark_sequence)?,
                records: end.records,
                incomplete: end.incomplete,
            })),
            Some(DumpMessage::WrongIncarnation(answer)) => {
                Ok(Self::WrongIncarnation { present: read_present(&answer)? })
            }
            None => Err(ConvertError::new("part", Problem::Required)),
        }
    }
}

fn read_chunk(chunk: pb::DumpChunk) -> Result<LocalDumpPart, ConvertError> {
    check_count("records", chunk.records.len(), DUMP_CHUNK_RECORDS_MAX)?;
    let records = chunk.records.into_iter().enumerate().map(|(index, record)| {
        read_record(&record).map_err(|error| error.within(format_args!("records[{index}]")))
    });
    let records = records.collect::<Result<_, _>>()?;
    Ok(LocalDumpPart::Chunk { rank: chunk.dp_rank, records })
}

pub(super) fn read_record(record: &pb::BlockRecord) -> Result<HeldBlock, ConvertError> {
    if record.parent_name.is_some() && record.local_hash.is_none() {
        return Err(ConvertError::new("parent_name", Problem::Unexpected("without local_hash")));
    }
    Ok(HeldBlock {
        name: BlockName(record.name),
        parent: record.parent_name.map(BlockName),
        local: record.local_hash.map(LocalHash),
        copies: [record.device_copies, record.host_copies, record.disk_copies],
    })
}

impl From<LocalDumpPart> for pb::LocalDumpResponse {
    fn from(part: LocalDumpPart) -> Self {
        let part = match part {
            LocalDumpPart::Chunk { rank, records } => {
                let records = records.iter().map(record).collect();
                DumpMessage::Chunk(pb::DumpChunk { dp_rank: rank, records })
            }
            LocalDumpPart::End(end) => DumpMessage::End(pb::LocalDumpEnd {
                incarnation: incarnation(end.incarnation),
                watermark_sequence: end.watermark,
                records: end.records,
                incomplete: end.incomplete,
            }),
            LocalDumpPart::WrongIncarnation { present: current } => {
                DumpMessage::WrongIncarnation(present(current))
            }
        };
        Self { part: Some(part) }
    }
}

fn record(held: &HeldBlock) -> pb::BlockRecord {
    let [device_copies, host_copies, disk_copies] = held.copies;
    pb::BlockRecord {
        name: held.name.0,
        parent_name: held.parent.map(|parent| parent.0),
        local_hash: held.local.map(|local| local.0),
        device_copies,
        host_copies,
        disk_copies,
        ..pb::BlockRecord::default()
    }
}

// === impl LocalStatus ===

impl TryFrom<pb::GetLocalStatusResponse> for LocalStatus {
    type Error = ConvertError;

    fn try_from(response: pb::GetLocalStatusResponse) -> Result<Self, ConvertError> {
        check_count("sources", response.sources.len(), WORKER_SOURCES_MAX)?;
        let sources = response.sources.into_iter().enumerate().map(|(index, source)| {
            read_status(source).map_err(|error| error.within(format_args!("sources[{index}]")))
        });
        Ok(Self {
            block_size: check_block_size(response.block_size)?,
            sources: sources.collect::<Result<_, _>>()?,
        })
    }
}

fn read_status(status: pb::LocalSourceStatus) -> Result<LocalSourceStatus, ConvertError> {
    check_required_name("source", &status.source)?;
    let mode = read_copy_mode("copy_mode", status.copy_mode)?;
    Ok(LocalSourceStatus {
        name: status.source,
        incarnation: read_incarnation("incarnation", &status.incarnation)?,
        first: status.first_sequence,
        oldest: status.oldest_sequence,
        head: status.head_sequence,
        journal_batches: status.journal_batches,
        journal_bytes: status.journal_bytes,
        held_blocks: status.held_blocks,
        inventory_bytes: status.inventory_bytes,
        copy_mode: mode.ok_or_else(|| ConvertError::new("copy_mode", Problem::Required))?,
        incomplete: status.incomplete,
    })
}

impl From<LocalStatus> for pb::GetLocalStatusResponse {
    fn from(status: LocalStatus) -> Self {
        let sources = status.sources.into_iter().map(|source| pb::LocalSourceStatus {
            source: source.name,
            incarnation: incarnation(source.incarnation),
            first_sequence: source.first,
            oldest_sequence: source.oldest,
            head_sequence: source.head,
            journal_batches: source.journal_batches,
            journal_bytes: source.journal_bytes,
            held_blocks: source.held_blocks,
            inventory_bytes: source.inventory_bytes,
            copy_mode: copy_mode(source.copy_mode).into(),
            incomplete: source.incomplete,
        });
        Self { block_size: status.block_size, sources: sources.collect() }
    }
}

#[cfg(test)]
#[path = "local_test.rs"]
mod tests;
