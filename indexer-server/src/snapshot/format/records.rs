//! Small values: the manifest, and one record per worker. A worker's record is written after its image, and a restore
//! reads the image that the record names. Protobuf, so that fields can be added. A field that older servers must not
//! ignore requires a new
//! [`FORMAT_VERSION`](super::FORMAT_VERSION).

use super::reader::FormatError;
use super::reasons::ReasonRecord;
use super::registered_by::RegisteredByRecord;
use crate::partitions::RegisteredBy;
use kvasir_index::{RankImage, SourceId, SourceImage, WorkerImage};
use kvasir_proto::convert::{WorkerAddress, decode_learned, encode_learned};
use kvasir_proto::shard::ShardPlace;
use kvasir_proto::types::{
    CopyMode, Cursor, Fingerprint, Incarnation, NameError, PartitionKey, SourceState, SourceStatus,
    WorkerId,
};
use prost::Message;
use std::sync::Arc;

const WHAT: &str = "worker";

/// A worker to store.
#[derive(Debug, Clone, Copy)]
pub struct WorkerState<'a> {
    /// Partition of the worker.
    pub partition: &'a PartitionKey,
    /// Increment or complete image.
    pub image: &'a WorkerImage,
    /// Encoded registration, opaque here. Stored only with complete images, because a registration does not change
    /// while the worker lives.
    pub registration: &'a [u8],
    /// Who registered it.
    pub registered_by: RegisteredBy,
    /// Total blocks of the worker over all ranks: for progress and figures only.
    pub held_blocks: u64,
}

/// A worker as stored on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredWorker {
    /// Partition and id of the worker.
    pub address: WorkerAddress,
    /// Encoded registration.
    pub registration: Vec<u8>,
    /// Who registered it.
    pub registered_by: RegisteredBy,
    /// The worker's sources, with the cursors that match the blocks. A stored status has only the parts that are valid
    /// in another process: state, cursor and highest sequence number.
    pub sources: Vec<SourceImage>,
    /// The worker's ranks, in order, without their blocks.
    pub ranks: Vec<RankImage>,
    /// Number of the worker's blocks, as counted by the writer.
    pub held_blocks: u64,
}

/// Position of the broker's stream in a store: the store includes the effects of all messages up to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamPosition {
    /// Creation time of the stream, in ns since 1970, by the broker's clock. A stream that was recreated under the same
    /// name is a different stream.
    pub stream_created_unix_ns: i64,
    /// Sequence number in the stream. 0 is before the first message.
    pub sequence: u64,
}

/// A position is valid only with both fields.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(in crate::snapshot) struct PositionRecord {
    #[prost(sfixed64, optional, tag = "1")]
    stream_created_unix_ns: Option<i64>,
    #[prost(uint64, optional, tag = "2")]
    sequence: Option<u64>,
}

/// Identifies the database. The first two fields never change their meaning.
#[derive(Clone, PartialEq, Eq, Message)]
pub(in crate::snapshot) struct ManifestRecord {
    #[prost(uint32, tag = "1")]
    pub(in crate::snapshot) format_version: u32,
    /// Version of the server that created the database.
    #[prost(string, tag = "2")]
    pub(in crate::snapshot) writer_version: String,
    /// Shard of the stored workers, in the format of `--shard`; "" if there is only one server.
    #[prost(string, tag = "3")]
    pub(in crate::snapshot) shard: String,
}

/// A worker's data other than its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::snapshot) struct WorkerHead {
    /// Current generation.
    pub(in crate::snapshot) generation: u32,
    /// Number of images stored so far: orders the worker's records.
    pub(in crate::snapshot) images: u64,
    /// Number of the worker's blocks.
    pub(in crate::snapshot) held_blocks: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(in crate::snapshot) struct WorkerRecord {
    #[prost(string, tag = "1")]
    model: String,
    #[prost(string, tag = "2")]
    tenant: String,
    #[prost(string, tag = "3")]
    worker_id: String,
    #[prost(uint32, tag = "4")]
    generation: u32,
    #[prost(uint64, tag = "5")]
    images: u64,
    #[prost(uint64, tag = "6")]
    held_blocks: u64,
    #[prost(message, repeated, tag = "7")]
    sources: Vec<SourceRecord>,
    #[prost(message, repeated, tag = "8")]
    ranks: Vec<RankRecord>,
    #[prost(enumeration = "RegisteredByRecord", tag = "9")]
    registered_by: i32,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct SourceRecord {
    #[prost(uint32, tag = "1")]
    id: u32,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(enumeration = "CopyModeRecord", tag = "3")]
    copy_mode: i32,
    #[prost(enumeration = "StateRecord", tag = "4")]
    state: i32,
    #[prost(message, optional, tag = "5")]
    applied: Option<CursorRecord>,
    #[prost(uint64, optional, tag = "6")]
    last_live: Option<u64>,
    #[prost(bool, tag = "7")]
    incomplete: bool,
    #[prost(uint32, repeated, tag = "8")]
    ranks: Vec<u32>,
    #[prost(bool, tag = "9")]
    suspect: bool,
    #[prost(message, repeated, tag = "10")]
    past: Vec<IncarnationRecord>,
    #[prost(uint32, optional, tag = "11")]
    main_group: Option<u32>,
    #[prost(message, repeated, tag = "12")]
    reasons: Vec<ReasonRecord>,
    #[prost(bytes = "vec", optional, tag = "13")]
    learned: Option<Vec<u8>>,
}

/// An ended incarnation.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct IncarnationRecord {
    #[prost(fixed64, tag = "1")]
    high: u64,
    #[prost(fixed64, tag = "2")]
    low: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct CursorRecord {
    #[prost(fixed64, tag = "1")]
    incarnation_high: u64,
    #[prost(fixed64, tag = "2")]
    incarnation_low: u64,
    #[prost(uint64, tag = "3")]
    sequence: u64,
    #[prost(message, optional, tag = "4")]
    fingerprint: Option<FingerprintRecord>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct FingerprintRecord {
    #[prost(fixed64, tag = "1")]
    ts_bits: u64,
    #[prost(fixed64, tag = "2")]
    payload_hash: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct RankRecord {
    #[prost(uint32, tag = "1")]
    rank: u32,
    #[prost(uint32, optional, tag = "2")]
    primary: Option<u32>,
    #[prost(uint64, tag = "3")]
    shed_blocks: u64,
    #[prost(uint32, repeated, tag = "4")]
    short: Vec<u32>,
}

// 0 is not in either enum, so a missing field is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
enum CopyModeRecord {
    Counted = 1,
    Set = 2,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
enum StateRecord {
    Exact = 1,
    CatchingUp = 2,
    Gap = 3,
    Partial = 4,
    Degraded = 5,
    Cold = 6,
}

impl From<CopyMode> for CopyModeRecord {
    fn from(mode: CopyMode) -> Self {
        match mode {
            CopyMode::Counted => Self::Counted,
            CopyMode::Set => Self::Set,
        }
    }
}

impl From<CopyModeRecord> for CopyMode {
    fn from(mode: CopyModeRecord) -> Self {
        match mode {
            CopyModeRecord::Counted => Self::Counted,
            CopyModeRecord::Set => Self::Set,
        }
    }
}

impl From<SourceState> for StateRecord {
    fn from(state: SourceState) -> Self {
        match state {
            SourceState::Exact => Self::Exact,
            SourceState::CatchingUp => Self::CatchingUp,
            SourceState::Gap => Self::Gap,
            SourceState::Partial => Self::Partial,
            SourceState::Degraded => Self::Degraded,
            SourceState::Cold => Self::Cold,
        }
    }
}

impl From<StateRecord> for SourceState {
    fn from(state: StateRecord) -> Self {
        match state {
            StateRecord::Exact => Self::Exact,
            StateRecord::CatchingUp => Self::CatchingUp,
            StateRecord::Gap => Self::Gap,
            StateRecord::Partial => Self::Partial,
            StateRecord::Degraded => Self::Degraded,
            StateRecord::Cold => Self::Cold,
        }
    }
}

impl From<&Cursor> for CursorRecord {
    fn from(cursor: &Cursor) -> Self {
        let [high, low] = halves(cursor.incarnation);
        let fingerprint = cursor
            .fingerprint
            .map(|at| FingerprintRecord { ts_bits: at.ts_bits, payload_hash: at.payload_hash });
        Self {
            incarnation_high: high,
            incarnation_low: low,
            sequence: cursor.sequence,
            fingerprint,
        }
    }
}

impl From<CursorRecord> for Cursor {
    fn from(record: CursorRecord) -> Self {
        let high = record.incarnation_high;
        let low = record.incarnation_low;
        Self {
            incarnation: IncarnationRecord { high, low }.into(),
            sequence: record.sequence,
            fingerprint: record
                .fingerprint
                .map(|at| Fingerprint { ts_bits: at.ts_bits, payload_hash: at.payload_hash }),
        }
    }
}

impl From<Incarnation> for IncarnationRecord {
    fn from(incarnation: Incarnation) -> Self {
        let [high, low] = halves(incarnation);
        Self { high, low }
    }
}

impl From<IncarnationRecord> for Incarnation {
    fn from(IncarnationRecord { high, low }: IncarnationRecord) -> Self {
        Self(u128::from(high) << u64::BITS | u128::from(low))
    }
}

/// High and low half of an incarnation.
fn halves(incarnation: Incarnation) -> [u64; 2] {
    let half = |bits: u128| u64::try_from(bits & u128::from(u64::MAX)).unwrap_or_default();
    [half(incarnation.0 >> u64::BITS), half(incarnation.0)]
}

impl ManifestRecord {
    /// Decodes a manifest of any version.
    ///
    /// # Errors
    /// If the value is not a manifest.
    pub(in crate::snapshot) fn read(value: &[u8]) -> Result<Self, FormatError> {
        let record = read_message::<Self>("manifest", value)?;
        if record.format_version == 0 {
            return Err(FormatError::Range { what: "manifest", field: "format_version" });
        }
        Ok(record)
    }

    /// Shard of the stored workers. `None` if there is only one server.
    ///
    /// # Errors
    /// If the field is not a shard.
    pub(in crate::snapshot) fn shard(&self) -> Result<Option<ShardPlace>, FormatError> {
        let place = Some(&self.shard).filter(|shard| !shard.is_empty()).map(|shard| shard.parse());
        let wrong = |_error| FormatError::Range { what: "manifest", field: "shard" };
        place.transpose().map_err(wrong)
    }
}

impl From<StreamPosition> for PositionRecord {
    fn from(position: StreamPosition) -> Self {
        Self {
            stream_created_unix_ns: Some(position.stream_created_unix_ns),
            sequence: Some(position.sequence),
        }
    }
}

impl PositionRecord {
    /// Decodes a position.
    ///
    /// # Errors
    /// If the value is not a position.
    pub(in crate::snapshot) fn read(value: &[u8]) -> Result<StreamPosition, FormatError> {
        const WHAT: &str = "stream position";
        let record = read_message::<Self>(WHAT, value)?;
        let wrong = |field| FormatError::Range { what: WHAT, field };
        Ok(StreamPosition {
            stream_created_unix_ns: record
                .stream_created_unix_ns
                .ok_or_else(|| wrong("stream_created_unix_ns"))?,
            sequence: record.sequence.ok_or_else(|| wrong("sequence"))?,
        })
    }
}

impl WorkerRecord {
    /// Creates the record that makes an image visible.
    pub(in crate::snapshot) fn of(state: &WorkerState<'_>, head: WorkerHead) -> Self {
        let sources = state.image.sources.iter().map(SourceRecord::from_image);
        let ranks = state.image.ranks.iter().map(|rank| RankRecord {
            rank: rank.rank,
            primary: rank.primary.map(|id| id.0),
            shed_blocks: rank.shed_blocks,
            short: rank.short.iter().map(|id| id.0).collect(),
        });
        Self {
            model: state.partition.model().to_owned(),
            tenant: state.partition.tenant().to_owned(),
            worker_id: state.image.worker.as_str().to_owned(),
            generation: head.generation,
            images: head.images,
            held_blocks: head.held_blocks,
            sources: sources.collect(),
            ranks: ranks.collect(),
            registered_by: RegisteredByRecord::from(state.registered_by).into(),
        }
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// If the value is not a record.
    pub(in crate::snapshot) fn read(value: &[u8]) -> Result<Self, FormatError> {
        read_message(WHAT, value)
    }

    /// The part of the record that later writes need.
    pub(in crate::snapshot) const fn head(&self) -> WorkerHead {
        WorkerHead {
            generation: self.generation,
            images: self.images,
            held_blocks: self.held_blocks,
        }
    }

    /// Partition and id of the record's worker.
    ///
    /// # Errors
    /// If the record lacks the partition or the id.
    pub(in crate::snapshot) fn address(&self) -> Result<WorkerAddress, FormatError> {
        let named =
            |error: NameError| FormatError::Message { what: WHAT, reason: error.to_string() };
        Ok(WorkerAddress {
            partition: PartitionKey::new(&self.model, &self.tenant).map_err(named)?,
            worker: WorkerId::new(&self.worker_id).map_err(named)?,
        })
    }

    /// Converts the record to the stored worker.
    ///
    /// # Errors
    /// If the record contradicts itself.
    pub(in crate::snapshot) fn into_worker(
        self,
        registration: Vec<u8>,
    ) -> Result<StoredWorker, FormatError> {
        let address = self.address()?;
        // A newer server's number is unknown here: the worker stays.
        let registered_by = self.registered_by().into();
        let held_blocks = self.held_blocks;
        let ranks: Vec<_> = self.ranks.into_iter().map(RankRecord::into_rank).collect();
        if !ranks.is_sorted_by(|one, next| one.rank < next.rank) {
            return Err(FormatError::Range { what: WHAT, field: "ranks" });
        }
        let sources = self.sources.into_iter().map(SourceRecord::into_source);
        let sources = sources.collect::<Result<_, _>>()?;
        Ok(StoredWorker { address, registration, registered_by, sources, ranks, held_blocks })
    }
}

impl SourceRecord {
    /// Converts a source of an image to its record.
    fn from_image(source: &SourceImage) -> Self {
        Self {
            id: source.id.0,
            name: (*source.name).to_owned(),
            copy_mode: CopyModeRecord::from(source.copy_mode).into(),
            state: StateRecord::from(source.status.state).into(),
            applied: source.status.applied.as_ref().map(CursorRecord::from),
            last_live: source.status.head,
            incomplete: source.incomplete,
            suspect: source.suspect,
            ranks: source.ranks.clone(),
            past: source.status.past.iter().copied().map(IncarnationRecord::from).collect(),
            main_group: source.status.learned.main_group,
            reasons: source.status.reasons.iter().map(ReasonRecord::from_reason).collect(),
            learned: Some(encode_learned(&source.status.learned)),
        }
    }

    /// Converts the record to the image of a source. Fails if a value is out of range.
    fn into_source(self) -> Result<SourceImage, FormatError> {
        let wrong = |field| FormatError::Range { what: "source", field };
        let copy_mode = CopyModeRecord::try_from(self.copy_mode);
        let state = StateRecord::try_from(self.state);
        let learned = decode_learned(self.main_group, self.learned.as_deref());
        let learned = learned.ok_or_else(|| wrong("learned"))?;
        let status = SourceStatus {
            state: state.map_err(|_error| wrong("state"))?.into(),
            applied: self.applied.map(Cursor::from),
            head: self.last_live,
            past: self.past.into_iter().map(Incarnation::from).collect(),
            reasons: self.reasons.into_iter().filter_map(ReasonRecord::into_reason).collect(),
            learned: Arc::new(learned),
            ..SourceStatus::default()
        };
        Ok(SourceImage {
            id: SourceId(self.id),
            name: self.name.into(),
            copy_mode: copy_mode.map_err(|_error| wrong("copy_mode"))?.into(),
            status,
            incomplete: self.incomplete,
            suspect: self.suspect,
            ranks: self.ranks,
        })
    }
}

impl RankRecord {
    /// Converts the record to a rank without contents, which are read separately.
    fn into_rank(self) -> RankImage {
        RankImage {
            rank: self.rank,
            primary: self.primary.map(SourceId),
            shed_blocks: self.shed_blocks,
            short: self.short.into_iter().map(SourceId).collect(),
            pages: Vec::new(),
            names: Vec::new(),
            holes: Vec::new(),
            meanings: Vec::new(),
        }
    }
}

fn read_message<M: Message + Default>(what: &'static str, value: &[u8]) -> Result<M, FormatError> {
    M::decode(value).map_err(|error| FormatError::Message { what, reason: error.to_string() })
}
