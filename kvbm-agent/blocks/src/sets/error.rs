use super::{BlockSetId, Fence};
use crate::identity::SlotId;
use crate::layout::LayoutError;
use thiserror::Error;

/// Why a set's description contradicts itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BlockSetError {
    /// Ranks can't be split into groups that hold the same heads.
    #[error("tp_replicas is {replicas}, which does not divide tp_size {size}")]
    Replicas {
        /// Ranks of each group.
        replicas: u32,
        /// Ranks.
        size: u32,
    },
    /// The memory has another number of regions than the layout has allocations.
    #[error("regions: there are {stated}, the layout has {needed} allocations")]
    Regions {
        /// Regions stated.
        stated: u64,
        /// Allocations of the layout.
        needed: u32,
    },
    /// A region ends beyond 64 bits.
    #[error("region {region}: its end overflows 64 bits")]
    RegionOverflow {
        /// Its number.
        region: u32,
    },
    /// A region is smaller than the layout's allocation.
    #[error("region {region}: it has {bytes} bytes, the layout needs {needed}")]
    RegionTooSmall {
        /// Its number.
        region: u32,
        /// Its bytes.
        bytes: u64,
        /// Bytes of an allocation.
        needed: u64,
    },
    /// Two allocations share bytes: a block would overwrite another one.
    #[error("regions {first} and {second} overlap")]
    RegionsOverlap {
        /// The one at the lower address.
        first: u32,
        /// The other one.
        second: u32,
    },
    /// A field is 0, too large, or does not fit the layout's other dimensions.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// Why bytes are no [`SerializedBlockLayout`](super::SerializedBlockLayout).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DeserializeError {
    /// There are more bytes than any layout has.
    #[error("{bytes} bytes, the limit is {max}")]
    TooLong {
        /// Bytes given.
        bytes: usize,
        /// Most bytes that are accepted.
        max: usize,
    },
    /// The bytes end within a field.
    #[error("the bytes end in the field {field}")]
    Truncated {
        /// The field.
        field: &'static str,
    },
    /// They do not begin as a layout does.
    #[error("magic: not a block layout")]
    Magic,
    /// A version that is not known.
    #[error("version {version} is not known")]
    Version {
        /// The version.
        version: u16,
    },
    /// Their checksum is another one.
    #[error("checksum: {stated:016x} is stated, {computed:016x} is right")]
    Checksum {
        /// What the bytes state.
        stated: u64,
        /// What follows from them.
        computed: u64,
    },
    /// A code stands for nothing.
    #[error("{field}: the code {value} is not known")]
    Code {
        /// The field.
        field: &'static str,
        /// The code.
        value: u8,
    },
    /// A field is not what follows from others.
    #[error("{field}: {stated} is stated, {computed} follows from the other fields")]
    Contradiction {
        /// The field.
        field: &'static str,
        /// What the bytes state.
        stated: u64,
        /// What follows from the other fields.
        computed: u64,
    },
    /// Fields are whole, and contradict one another.
    #[error(transparent)]
    Set(#[from] BlockSetError),
}

/// A limit of the registry is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{limit}: the limit is {max}")]
pub struct LimitReached {
    /// The field of [`BlockSetLimits`](super::BlockSetLimits).
    pub limit: &'static str,
    /// Its value.
    pub max: u64,
}

/// A backend could not register memory.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the memory can't be registered: {reason}")]
pub struct RegistrarError {
    /// The backend's words.
    pub reason: String,
}

/// The id is that of a set that has ended and whose transfers have not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{set:?} is quarantined until its {transfers} transfers have stopped")]
pub struct Quarantined {
    /// The set that is quarantined. It has the same id, or shares memory.
    pub set: BlockSetId,
    /// Transfers of it that are under way.
    pub transfers: u32,
}

/// Why a set can't be exported.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ExportError {
    /// Its description contradicts itself.
    #[error(transparent)]
    Set(#[from] BlockSetError),
    /// A set with its id is exported.
    #[error("{0:?} is exported already")]
    Exported(BlockSetId),
    /// An earlier set with its id is read or written still.
    #[error(transparent)]
    Quarantined(#[from] Quarantined),
    /// There are too many.
    #[error(transparent)]
    Limit(#[from] LimitReached),
    /// The backend refused its memory. What was registered of it is not any more.
    #[error(transparent)]
    Registrar(#[from] RegistrarError),
}

/// Why a peer's set can't be imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ImportError {
    /// The bytes are no layout.
    #[error(transparent)]
    Deserialize(#[from] DeserializeError),
    /// The owner has a newer one, or has withdrawn it.
    #[error("the set is fenced: it has {stated}, the owner's sets begin at {floor}")]
    Fenced {
        /// The fence of the set.
        stated: Fence,
        /// The lowest that is accepted.
        floor: Fence,
    },
    /// The owner has stated another layout with the same fence.
    #[error("{0:?} has another layout under the same fence")]
    Conflict(BlockSetId),
    /// Transfers of an earlier set are under way. That one is fenced; import again when they have stopped.
    #[error(transparent)]
    Quarantined(#[from] Quarantined),
    /// There are too many.
    #[error(transparent)]
    Limit(#[from] LimitReached),
}

/// Why a set is no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum SetEnd {
    /// The owner has a newer one, or is a newer incarnation.
    #[error("the set is fenced by {by}")]
    Fenced {
        /// The newer set's fence.
        by: Fence,
    },
    /// The owner has withdrawn it.
    #[error("the owner has withdrawn the set")]
    Withdrawn,
    /// The owner is not connected any more.
    #[error("the set's owner has disappeared")]
    OwnerGone,
}

/// Why blocks of a set can't be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AccessError {
    /// The set is no more.
    #[error(transparent)]
    Ended(#[from] SetEnd),
    /// There is no such set here.
    #[error("{0:?} is not exported")]
    Unknown(BlockSetId),
    /// Who asks knows another set of this id.
    #[error("the set is fenced: {stated} was asked for, {exported} is exported")]
    Fenced {
        /// What was asked for.
        stated: Fence,
        /// What is exported under the id.
        exported: Fence,
    },
    /// The set has fewer blocks.
    #[error("{block:?} is out of range, the set has {count} blocks")]
    OutOfRange {
        /// What was asked for.
        block: SlotId,
        /// Blocks of the set.
        count: u32,
    },
    /// A block is named twice.
    #[error("{block:?} is named twice")]
    Duplicate {
        /// Which.
        block: SlotId,
    },
    /// A block is written, or is to be written and is in use.
    #[error("{block:?} is in use")]
    Busy {
        /// Which.
        block: SlotId,
    },
    /// There are too many.
    #[error(transparent)]
    Limit(#[from] LimitReached),
}
