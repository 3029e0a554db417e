//! Small records, in Protobuf, so that fields can be added. A field that older agents must not skip needs a new
//! [`FORMAT_VERSION`].

use crate::consolidate::Holding;
use crate::disk::{DiskConfig, Flaws, PersistedSource, SourceKind};
use kvasir_proto::convert::{WorkerAddress, decode_learned, encode_learned};
use kvasir_proto::limits::TOLD_PAST_INCARNATIONS_MAX;
use kvasir_proto::types::{
    BlockName, CopyMode, Cursor, Fingerprint, Incarnation, PartitionKey, Tier, WorkerId,
};
use prost::Message;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Format version if each rank has one source.
pub(super) const FORMAT_VERSION: u32 = 2;
/// Format version of consolidated sources. It differs because older agents would mistake the holdings of several
/// sources for one source's.
pub(super) const FORMAT_VERSION_CONSOLIDATED: u32 = 3;

/// The version that an agent of this configuration writes and reads.
pub(super) const fn format_version(disk: &DiskConfig) -> u32 {
    if disk.is_consolidated { FORMAT_VERSION_CONSOLIDATED } else { FORMAT_VERSION }
}

/// Owner and settings of the journal. The first field never changes its meaning.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct ManifestRecord {
    #[prost(uint32, tag = "1")]
    pub(super) format_version: u32,
    #[prost(string, tag = "2")]
    pub(super) model: String,
    #[prost(string, tag = "3")]
    pub(super) tenant: String,
    #[prost(string, tag = "4")]
    pub(super) worker_id: String,
    #[prost(uint32, tag = "5")]
    pub(super) block_size: u32,
    #[prost(bool, tag = "6")]
    pub(super) is_counted: bool,
    /// Names of numbered LoRA adapters. Agents of older versions skip this field.
    #[prost(btree_map = "uint64, string", tag = "7")]
    pub(super) lora_names: BTreeMap<u64, String>,
}

impl ManifestRecord {
    pub(super) fn new(disk: &DiskConfig, copy_mode: CopyMode) -> Self {
        Self {
            format_version: format_version(disk),
            model: disk.address.partition.model().to_owned(),
            tenant: disk.address.partition.tenant().to_owned(),
            worker_id: disk.address.worker.as_str().to_owned(),
            block_size: disk.block_size,
            is_counted: copy_mode == CopyMode::Counted,
            lora_names: disk.lora_names.clone(),
        }
    }

    /// The worker's address; `None` if it breaks the contract.
    pub(super) fn address(&self) -> Option<WorkerAddress> {
        let partition = PartitionKey::new(&self.model, &self.tenant).ok()?;
        Some(WorkerAddress { partition, worker: WorkerId::new(&self.worker_id).ok()? })
    }
}

/// The current incarnation.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct IncarnationRecord {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) incarnation: Vec<u8>,
    /// Number of the incarnation's first batch.
    #[prost(uint64, tag = "2")]
    pub(super) first: u64,
}

/// The current image.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct ImageRecord {
    #[prost(uint32, tag = "1")]
    pub(super) generation: u32,
    /// Last batch that the image contains; `None` before the first batch.
    #[prost(uint64, optional, tag = "2")]
    pub(super) watermark: Option<u64>,
    #[prost(uint32, tag = "3")]
    pub(super) chunks: u32,
    /// Size of the image's values in bytes.
    #[prost(uint64, tag = "5")]
    pub(super) bytes: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct SourceRecord {
    /// 0: a relay, 1: a publisher on the agent's port.
    #[prost(uint32, tag = "1")]
    kind: u32,
    /// 0: set, 1: counted.
    #[prost(uint32, tag = "2")]
    copy_mode: u32,
    #[prost(bytes = "vec", tag = "3")]
    incarnation: Vec<u8>,
    #[prost(uint64, tag = "4")]
    sequence: u64,
    #[prost(fixed64, optional, tag = "5")]
    ts_bits: Option<u64>,
    #[prost(fixed64, optional, tag = "6")]
    payload_hash: Option<u64>,
    #[prost(bool, tag = "7")]
    has_lost: bool,
    #[prost(bytes = "vec", repeated, tag = "8")]
    past: Vec<Vec<u8>>,
    #[prost(uint32, repeated, tag = "9")]
    ranks: Vec<u32>,
    #[prost(bool, tag = "10")]
    lacks_blocks: bool,
    #[prost(uint32, optional, tag = "11")]
    main_group: Option<u32>,
    #[prost(bytes = "vec", optional, tag = "12")]
    learned: Option<Vec<u8>>,
}

/// A source's holding of one block. The source's name of the block is in the key.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct HoldingRecord {
    #[prost(fixed64, tag = "1")]
    block: u64,
    #[prost(bool, tag = "2")]
    is_joined: bool,
    /// Copies by tier, up to the last tier that has any.
    #[prost(uint32, repeated, tag = "3")]
    copies: Vec<u32>,
}

impl From<&Holding> for HoldingRecord {
    fn from(holding: &Holding) -> Self {
        let held = holding.copies.iter().rposition(|copies| *copies > 0);
        let tiers = held.map_or(0, |last| last + 1);
        let copies = holding.copies.iter().take(tiers).copied().map(u32::from).collect();
        Self { block: holding.block.0, is_joined: holding.is_joined, copies }
    }
}

impl HoldingRecord {
    /// The holding; `None` if no version of this agent can have written the record.
    pub(super) fn holding(&self, name: BlockName) -> Option<Holding> {
        let mut copies = [0; Tier::COUNT];
        for (at, stated) in self.copies.iter().enumerate() {
            *copies.get_mut(at)? = u16::try_from(*stated).ok()?;
        }
        let block = BlockName(self.block);
        let is_joined = self.is_joined;
        let is_held = copies.iter().any(|copies| *copies > 0);
        is_held.then_some(Holding { name, block, is_joined, copies })
    }
}

fn bytes(incarnation: Incarnation) -> Vec<u8> {
    incarnation.0.to_le_bytes().to_vec()
}

pub(super) fn read_incarnation(bytes: &[u8]) -> Option<Incarnation> {
    Some(Incarnation(u128::from_le_bytes(bytes.try_into().ok()?)))
}

impl IncarnationRecord {
    pub(super) fn new(incarnation: Incarnation, first: u64) -> Self {
        Self { incarnation: bytes(incarnation), first }
    }
}

impl From<&PersistedSource> for SourceRecord {
    fn from(source: &PersistedSource) -> Self {
        let Cursor { incarnation, sequence, fingerprint } = source.cursor;
        Self {
            kind: match source.kind {
                SourceKind::Relay => 0,
                SourceKind::Ingest => 1,
            },
            copy_mode: u32::from(source.copy_mode == CopyMode::Counted),
            incarnation: bytes(incarnation),
            sequence,
            ts_bits: fingerprint.map(|at| at.ts_bits),
            payload_hash: fingerprint.map(|at| at.payload_hash),
            has_lost: source.flaws.has_lost,
            lacks_blocks: source.flaws.lacks_blocks,
            past: source.past.iter().copied().map(bytes).collect(),
            ranks: source.ranks.clone(),
            main_group: source.learned.main_group,
            learned: Some(encode_learned(&source.learned)),
        }
    }
}

impl SourceRecord {
    /// The source; `None` if no version of this agent can have written the record.
    pub(super) fn source(self, name: String) -> Option<PersistedSource> {
        let fingerprint = match (self.ts_bits, self.payload_hash) {
            (Some(ts_bits), Some(payload_hash)) => Some(Fingerprint { ts_bits, payload_hash }),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => return None,
        };
        let learned = decode_learned(self.main_group, self.learned.as_deref())?;
        let past: Option<Vec<_>> =
            self.past.iter().map(|incarnation| read_incarnation(incarnation)).collect();
        Some(PersistedSource {
            name,
            kind: match self.kind {
                0 => SourceKind::Relay,
                1 => SourceKind::Ingest,
                _ => return None,
            },
            copy_mode: match self.copy_mode {
                0 => CopyMode::Set,
                1 => CopyMode::Counted,
                _ => return None,
            },
            cursor: Cursor {
                incarnation: read_incarnation(&self.incarnation)?,
                sequence: self.sequence,
                fingerprint,
            },
            flaws: Flaws { has_lost: self.has_lost, lacks_blocks: self.lacks_blocks },
            past: past.filter(|incarnations| incarnations.len() <= TOLD_PAST_INCARNATIONS_MAX)?,
            ranks: self.ranks,
            learned: Arc::new(learned),
        })
    }
}
