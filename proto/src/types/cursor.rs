use std::fmt;
use xxhash_rust::xxh3::xxh3_64;

/// Opaque id of one lifetime of a source's cache. A restart with an empty cache creates a new id. Compare for equality
/// only.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Incarnation(pub u128);

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Incarnation({:032x})", self.0)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Identifies a batch beyond its sequence number. For a source without incarnations, two batches with the same number
/// and different fingerprints reveal a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    /// Bits of the batch's `f64` time stamp.
    pub ts_bits: u64,
    /// XXH3-64 of the batch's payload.
    pub payload_hash: u64,
}

impl Fingerprint {
    /// Fingerprint of one batch.
    #[must_use]
    pub fn of(ts_bits: u64, payload: &[u8]) -> Self {
        Self { ts_bits, payload_hash: xxh3_64(payload) }
    }
}

/// Position up to which a source's batches are applied (offset).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cursor {
    /// The source's incarnation.
    pub incarnation: Incarnation,
    /// Sequence number of the last applied batch.
    pub sequence: u64,
    /// Fingerprint of that batch; none if the source states its incarnation.
    pub fingerprint: Option<Fingerprint>,
}

/// How far a source's entry in the index can be trusted, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceState {
    /// Every announced event is in the index.
    Exact,
    /// A replay, dump or restore is running.
    CatchingUp,
    /// Batches are known to be missing and are being fetched.
    Gap,
    /// Blocks were evicted or rejected to stay within a limit.
    Partial,
    /// Batches were lost for good.
    Degraded,
    /// No event has been received yet.
    Cold,
}

impl SourceState {
    /// All states, best first.
    pub const ALL: [Self; 6] =
        [Self::Exact, Self::CatchingUp, Self::Gap, Self::Partial, Self::Degraded, Self::Cold];
}

impl fmt::Display for SourceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exact => "exact",
            Self::CatchingUp => "catching_up",
            Self::Gap => "gap",
            Self::Partial => "partial",
            Self::Degraded => "degraded",
            Self::Cold => "cold",
        })
    }
}
