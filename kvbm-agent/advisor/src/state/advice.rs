use serde::Serialize;

/// Proposed action for a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AdviceKind {
    /// Copy the block to a faster location.
    Promotion,
    /// Move the block to a slower location.
    Demotion,
    /// Remove the block, or rewrite the storage around it.
    Compaction,
}

impl AdviceKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Promotion, Self::Demotion, Self::Compaction];

    /// Name of the kind, in JSON and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Promotion => "promotion",
            Self::Demotion => "demotion",
            Self::Compaction => "compaction",
        }
    }
}

/// Reason for a piece of advice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AdviceReason {
    /// The block, or a block that continues it, is used often.
    Hot,
    /// The block was unused for long, and is the last of its chain in this place.
    Cold,
    /// All locations lack the previous block, so prompts cannot use this one.
    Orphan,
    /// Too many locations have the block.
    Copies,
}

/// One piece of advice, printed as one line of JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Advice {
    /// Proposed action.
    pub kind: AdviceKind,
    /// Reason for the action.
    pub reason: AdviceReason,
    /// Model of the worker.
    pub model: String,
    /// Tenant of the worker.
    pub tenant: String,
    /// Worker whose block manager reported the block.
    pub worker: String,
    /// Location of the block.
    pub from: String,
    /// Class of the target location; `None` for compaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Sequence hash of the block, 16 hexadecimal digits.
    pub sequence_hash: String,
    /// Sequence hash of the previous block, 16 hexadecimal digits; `None` for a first block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix_hash: Option<String>,
    /// Size of the block in bytes.
    pub block_bytes: u64,
    /// Recent uses. The weight of a use halves with each half-life.
    pub heat: f64,
    /// Whole seconds since the block's last use, or since it became known.
    pub idle_s: u64,
    /// Number of places that have the block.
    pub copies: usize,
}
