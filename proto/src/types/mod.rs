//! Value types for the words of the glossary in ARCHITECTURE.md. These modules import only each other.

mod cursor;
mod engine;
mod event;
mod facts;
mod group;
mod hash;
mod held;
mod kind;
mod load;
mod loss;
mod meaning;
mod outcome;
mod partition;
mod reason;
mod reuse;
mod source;
mod tier;
mod worker;

pub use cursor::{Cursor, Fingerprint, Incarnation, SourceState};
pub use engine::EngineKind;
pub use event::{CopyMode, KvEvent, StoredBlock};
pub use facts::EngineFacts;
pub use group::{Group, GroupKind};
pub use hash::{BlockName, LocalHash, SequenceHash};
pub use held::HeldBlock;
pub use kind::HolderKind;
pub use load::WorkerMetrics;
pub use loss::LossPolicy;
pub use meaning::{AdapterNumber, ImageKeys, Learned, NameChange, NameMeaning};
pub use outcome::{BatchOutcome, BlockCounts, BlockOutcome};
pub use partition::{NameError, PartitionKey, invisible_character};
pub use reason::{Direction, Reason, StateReason};
pub use reuse::PromptReuse;
pub use source::SourceStatus;
pub use tier::{Tier, TierSet};
pub use worker::{ADDRESS_LABEL, DpRank, WorkerId, WorkerKey};
