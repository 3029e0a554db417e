//! Partitions: indexes behind reader-writer locks, and the threads that write the indexes.
//!
//! # Ownership
//! A partition has one or more [shards](Shard): a worker's bucket selects the shard of the worker. Writer thread n
//! writes shard n of every partition. Shards have no common data, so the union of their answers is exact.
//!
//! # Locks
//! Only writer threads take a shard's write lock: the shard's own thread to carry out commands, and any writer thread
//! to evict blocks before it writes when the [`Budget`] is used up ([`Relief`]). A writer works in slices of at most
//! [`STEP_OPERATIONS_MAX`] block operations. It releases the lock after the slice in which a reader came, or after
//! [`HOLD_OPERATIONS_MAX`] operations, and admits all waiting readers before it locks again. Therefore a lookup waits
//! for at most one slice in each shard, regardless of the amount of writes. Each thread locks one shard at a time.
//!
//! Speculative blocks are beside the index, under their own lock, and change in short slices: see [`Speculation`].

mod budget;
mod command;
mod config;
mod dump;
mod image;
mod layer;
mod metrics;
mod origin;
mod pace;
mod partition;
mod registered_by;
mod relief;
mod restoring;
mod resumed;
mod shard;
mod speculative;
mod writer;

pub use budget::{Budget, Bytes};
pub use command::{Applied, IndexBatch};
pub use config::{IndexConfig, SHARDS_MAX};
pub use dump::{Dump, DumpError, DumpPart};
pub use image::Taken;
pub use layer::SpeculativeSize;
pub use metrics::{INDEX_OUTCOMES, IndexMetrics, OperationLabels};
pub use origin::Origin;
pub use pace::{HOLD_OPERATIONS_MAX, Pace, STEP_OPERATIONS_MAX};
pub use partition::{Partition, PartitionError, Partitions};
pub use registered_by::RegisteredBy;
pub use relief::Relief;
pub use restoring::Restoring;
pub use resumed::{ResumedSource, ResumedWorker};
pub use shard::{IndexedSource, Shard};
pub use speculative::{
    SPECULATIVE_OUTCOMES, Speculation, SpeculationConfig, SpeculationError, SpeculationMetrics,
    Speculative,
};
pub use writer::{MAILBOX_COMMANDS_MAX, Writer, WriterGone, WriterThreads, start_writers};
