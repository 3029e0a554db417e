//! Partitions: indexes behind locks that readers share, and the threads that write them.
//!
//! # Ownership
//! A partition has one or more [shards](Shard): a worker's bucket decides which of them has the worker. Shard n of every partition is written by writer thread n. Shards share nothing, so
//! the union of their answers is exact.
//!
//! # Locks
//! Only writer threads take a shard's lock for writing: its own to carry out commands, and any of them
//! to shed, before it writes more, when the [`Budget`] is used up ([`Relief`]). A writer works in steps of at most
//! [`STEP_OPERATIONS_MAX`] block operations; with the step in which a reader came, or after
//! [`HOLD_OPERATIONS_MAX`] operations, it releases the lock and lets all waiting readers in before it takes
//! it again. So a lookup waits for one step at most in each shard, however much there is to
//! write. No thread holds the locks of two shards.
//!
//! Speculative blocks are beside the index, under a lock of their own, and change in short pieces: see
//! [`Speculation`].

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
