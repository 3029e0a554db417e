use std::fmt;

/// Id of a set, unique within one owner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockSetId(pub u64);

impl fmt::Debug for BlockSetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockSetId({})", self.0)
    }
}

/// Fencing token of an owner's set: the greater fence belongs to the newer set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence {
    /// The owner's incarnation as a number that grows with each start. Unlike
    /// [`Incarnation`](kvasir_proto::types::Incarnation), it is ordered.
    pub epoch: u64,
    /// Number of sets exported in this incarnation, including this one.
    pub export: u64,
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.export)
    }
}

/// Hash of the operator's names for model, tenant, element type and order within a token. Blocks with different content
/// ids are never copied into each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContentId(pub u64);

impl fmt::Debug for ContentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContentId({:016x})", self.0)
    }
}
