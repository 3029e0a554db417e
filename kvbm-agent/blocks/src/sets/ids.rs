use std::fmt;

/// Names a set among those of one owner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockSetId(pub u64);

impl fmt::Debug for BlockSetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockSetId({})", self.0)
    }
}

/// Which of an owner's sets is the newer one (fencing token): the greater fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence {
    /// The owner's incarnation as a number that grows with each start. Unlike
    /// [`Incarnation`](kvasir_proto::types::Incarnation) it has an order.
    pub epoch: u64,
    /// Sets that the owner has exported in this incarnation, this one included.
    pub export: u64,
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.export)
    }
}

/// What the blocks hold, as a hash of the operator's words for model, tenant, element type and order within a token.
/// Blocks of different content are never copied into one another.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContentId(pub u64);

impl fmt::Debug for ContentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContentId({:016x})", self.0)
    }
}
