//! Storages of the block manager, and the executors that move blocks between them and memory.
//!
//! - [`checksum`], [`block`]: checksums, and identity of blocks.
//! - [`storage`]: the trait of all storages ([`Storage`]), which third parties can implement. [`error`]: why a transfer
//!   failed.
//! - [`host`]: host memory. [`disk`]: one preallocated file. `objects` (feature): shared object storage.
//!   `nixl` (feature): a file that NIXL reads and writes.
//! - [`cancel`], [`executor`]: batches of transfers on dedicated threads.
//! - [`manager`]: sessions of engines, and the task that connects the pools of `kvasir-blocks` with the storages.
//! - `faults` (feature): storages with injected faults, for tests.
//!
//! Wrong bytes are never served: every block has a checksum, bound to its sequence hash, that is verified on every copy
//! to a higher tier.

pub mod block;
pub mod cancel;
pub mod checksum;
pub mod disk;
pub mod error;
pub mod executor;
#[cfg(feature = "faults")]
pub mod faults;
mod fields;
pub mod host;
pub mod manager;
#[cfg(feature = "nixl")]
pub mod nixl;
#[cfg(feature = "objects")]
pub mod objects;
pub mod storage;
#[cfg(test)]
mod testing;

pub use block::{Fingerprint, Identity, NewBlock, Sealed};
pub use cancel::Cancel;
pub use checksum::{Checksum, Summing};
pub use disk::{DiskConfig, DiskError, DiskStorage, Recovered};
pub use error::TransferError;
pub use executor::{Done, Executor, ExecutorConfig, Job, Refused, Transfer};
pub use host::HostStorage;
#[cfg(feature = "objects")]
pub use objects::{ObjectStorage, Volume, VolumeDescriptor, VolumeError, Volumes};
pub use storage::{Place, Storage, StorageKind};
