//! Partitions: each an index behind a lock that readers share, and the one thread that writes.
//!
//! # Who may wait for whom
//! Only the writer thread takes a partition's lock for writing, and it holds it for at most
//! [`HOLD_OPERATIONS_MAX`] block operations. Then it lets all readers that wait in before it takes
//! the lock again. So a lookup waits for one such hold at most, however much there is to write.
//! What is speculative lies beside the index behind a lock of its own, with the same bound: see
//! [`Speculation`].

mod command;
mod metrics;
mod origin;
mod partition;
mod speculative;
mod writer;

pub use command::{Applied, HOLD_OPERATIONS_MAX};
pub use metrics::{INDEX_OUTCOMES, IndexMetrics, OperationLabels};
pub use origin::Origin;
pub use partition::{Partition, PartitionError, Partitions};
pub use speculative::{
    SPECULATIVE_OUTCOMES, Speculation, SpeculationConfig, SpeculationError, SpeculationMetrics,
    Speculative, SpeculativeSize,
};
pub use writer::{MAILBOX_COMMANDS_MAX, Writer, WriterGone, WriterThread, start_writer};
