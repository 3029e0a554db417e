//! Storages of the block manager, and the executors that move blocks between them and memory.
//!
//! - [`checksum`], [`block`]: what a block is called, and what its bytes add up to.
//! - [`storage`]: the trait of all storages ([`Storage`]): where a third party plugs in. [`error`]: why a transfer failed.
//! - [`host`]: memory. [`disk`]: one preallocated file. `objects` (feature): shared blob storage.
//!   `nixl` (feature): a file that NIXL reads and writes.
//! - [`cancel`], [`executor`]: batches of transfers on threads of their own.
//! - [`manager`]: sessions of engines, and the task that joins the pools of `kvasir-blocks` with the storages.
//! - `faults` (feature): storages that fail by a seed, for tests.
//!
//! No wrong byte is ever served: every block has a checksum, bound to its sequence hash, that is checked on every way up.

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
