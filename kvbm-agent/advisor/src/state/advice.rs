use serde::Serialize;

/// What to do with a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AdviceKind {
    /// Copy it to a faster location.
    Promotion,
    /// Move it to a slower location.
    Demotion,
    /// Remove it, or rewrite what it lies among.
    Compaction,
}

impl AdviceKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Promotion, Self::Demotion, Self::Compaction];

    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Promotion => "promotion",
            Self::Demotion => "demotion",
            Self::Compaction => "compaction",
        }
    }
}

/// Why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AdviceReason {
    /// It, or a block that continues it, is used often.
    Hot,
    /// It was not used for long, and no block of the same place continues it.
    Cold,
    /// No location has the previous block, so no prompt can use this one.
    Orphan,
    /// Too many locations have it.
    Copies,
}

/// One piece of advice, as it is printed: one line of JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Advice {
    /// What to do.
    pub kind: AdviceKind,
    /// Why.
    pub reason: AdviceReason,
    /// Model of the worker.
    pub model: String,
    /// Its tenant.
    pub tenant: String,
    /// The worker whose block manager told of the block.
    pub worker: String,
    /// Where the block is.
    pub from: String,
    /// The class of location to bring it to; none for compaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The block, 16 hexadecimal digits.
    pub sequence_hash: String,
    /// The block before it, likewise; none for a first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix_hash: Option<String>,
    /// Its size in bytes.
    pub block_bytes: u64,
    /// Uses of late: each counts half as much after the half-life.
    pub heat: f64,
    /// Whole seconds since its last use, or since it became known.
    pub idle_s: u64,
    /// Places that have it.
    pub copies: usize,
}
