use super::{BlockSetId, Fence};
use crate::identity::SlotId;
use crate::layout::LayoutError;
use thiserror::Error;

/// Why the description of a set is inconsistent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BlockSetError {
    /// The number of replicas does not divide the number of ranks.
    #[error("tp_replicas is {replicas}, which does not divide tp_size {size}")]
    Replicas {
        /// Ranks that have the same heads.
        replicas: u32,
        /// Ranks of the tensor-parallel group.
        size: u32,
    },
    /// The number of memory regions differs from the layout's number of allocations.
    #[error("regions: there are {stated}, the layout has {needed} allocations")]
    Regions {
        /// Regions in the description.
        stated: u64,
        /// Allocations of the layout.
        needed: u32,
    },
    /// A region ends beyond 64 bits.
    #[error("region {region}: its end overflows 64 bits")]
    RegionOverflow {
        /// The region's number.
        region: u32,
    },
    /// A region is smaller than the layout's allocation.
    #[error("region {region}: it has {bytes} bytes, the layout needs {needed}")]
    RegionTooSmall {
        /// The region's number.
        region: u32,
        /// Bytes of the region.
        bytes: u64,
        /// Bytes of an allocation.
        needed: u64,
    },
    /// Two allocations overlap: a block would overwrite another block.
    #[error("regions {first} and {second} overlap")]
    RegionsOverlap {
        /// The region at the lower address.
        first: u32,
        /// The other region.
        second: u32,
    },
    /// A field is 0, too large, or inconsistent with the layout's other dimensions.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// Why bytes can't be decoded as a [`SerializedBlockLayout`](super::SerializedBlockLayout).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DeserializeError {
    /// The input is longer than any valid layout.
    #[error("{bytes} bytes, the limit is {max}")]
    TooLong {
        /// Length of the input.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The input ends within a field.
    #[error("the bytes end in the field {field}")]
    Truncated {
        /// The field.
        field: &'static str,
    },
    /// The input does not begin with the magic bytes.
    #[error("magic: not a block layout")]
    Magic,
    /// The version is unknown.
    #[error("version {version} is not known")]
    Version {
        /// The version.
        version: u16,
    },
    /// The checksum does not match the other bytes.
    #[error("checksum: {stated:016x} is stated, but the bytes have {computed:016x}")]
    Checksum {
        /// The checksum in the input.
        stated: u64,
        /// The checksum computed from the input.
        computed: u64,
    },
    /// A code is unknown.
    #[error("{field}: the code {value} is not known")]
    Code {
        /// The field.
        field: &'static str,
        /// The code.
        value: u8,
    },
    /// A field contradicts the value that follows from other fields.
    #[error("{field} is {stated}, but the other fields give {computed}")]
    Contradiction {
        /// The field.
        field: &'static str,
        /// The value in the input.
        stated: u64,
        /// The value that follows from the other fields.
        computed: u64,
    },
    /// Each field is valid, but the fields contradict each other.
    #[error(transparent)]
    Set(#[from] BlockSetError),
}

/// A limit of the registry is exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{limit}: the limit is {max}")]
pub struct LimitReached {
    /// The field of [`BlockSetLimits`](super::BlockSetLimits).
    pub limit: &'static str,
    /// The limit's value.
    pub max: u64,
}

/// A backend could not register memory.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the memory can't be registered: {reason}")]
pub struct RegistrarError {
    /// The backend's error message.
    pub reason: String,
}

/// The id or memory belongs to a set that has ended but still has running transfers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{set:?} is quarantined until its {transfers} transfers have stopped")]
pub struct Quarantined {
    /// The quarantined set, which has the same id or overlapping memory.
    pub set: BlockSetId,
    /// Running transfers of this set.
    pub transfers: u32,
}

/// Why a set can't be exported.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ExportError {
    /// The description is inconsistent.
    #[error(transparent)]
    Set(#[from] BlockSetError),
    /// A set with this id is already exported.
    #[error("{0:?} is exported already")]
    Exported(BlockSetId),
    /// An earlier set with this id still has running transfers.
    #[error(transparent)]
    Quarantined(#[from] Quarantined),
    /// A limit is exceeded.
    #[error(transparent)]
    Limit(#[from] LimitReached),
    /// The backend refused to register the memory. Regions that were registered for this set are deregistered again.
    #[error(transparent)]
    Registrar(#[from] RegistrarError),
}

/// Why a peer's set can't be imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ImportError {
    /// The bytes are not a valid layout.
    #[error(transparent)]
    Deserialize(#[from] DeserializeError),
    /// The owner has exported a newer set, or has withdrawn this one.
    #[error("the set is fenced: it has {stated}, the owner's sets begin at {floor}")]
    Fenced {
        /// The fence of the set.
        stated: Fence,
        /// The lowest accepted fence.
        floor: Fence,
    },
    /// The owner sent a different layout with the same fence.
    #[error("the owner sent {0:?} again with the same fence, but another layout")]
    Conflict(BlockSetId),
    /// An earlier set still has running transfers. It is fenced; retry the import when its transfers have stopped.
    #[error(transparent)]
    Quarantined(#[from] Quarantined),
    /// A limit is exceeded.
    #[error(transparent)]
    Limit(#[from] LimitReached),
}

/// Why a set has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum SetEnd {
    /// The owner has exported a newer set, or has restarted.
    #[error("the set is fenced by {by}")]
    Fenced {
        /// The newer set's fence.
        by: Fence,
    },
    /// The owner has withdrawn the set.
    #[error("the owner has withdrawn the set")]
    Withdrawn,
    /// The owner is disconnected.
    #[error("the set's owner has disappeared")]
    OwnerGone,
}

/// Why blocks of a set can't be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AccessError {
    /// The set has ended.
    #[error(transparent)]
    Ended(#[from] SetEnd),
    /// No set with this id is exported.
    #[error("{0:?} is not exported")]
    Unknown(BlockSetId),
    /// The caller refers to another set with this id.
    #[error("the set is fenced: the request states {stated}, but {exported} is exported")]
    Fenced {
        /// The fence that the caller stated.
        stated: Fence,
        /// The fence of the exported set.
        exported: Fence,
    },
    /// The block number is out of range.
    #[error("{block:?} is out of range, the set has {count} blocks")]
    OutOfRange {
        /// The requested block.
        block: SlotId,
        /// Number of blocks in the set.
        count: u32,
    },
    /// A block is listed twice.
    #[error("{block:?} is named twice")]
    Duplicate {
        /// The duplicate block.
        block: SlotId,
    },
    /// The block is being written, or is to be written while it is in use.
    #[error("{block:?} is in use")]
    Busy {
        /// The block in use.
        block: SlotId,
    },
    /// A limit is exceeded.
    #[error(transparent)]
    Limit(#[from] LimitReached),
}
