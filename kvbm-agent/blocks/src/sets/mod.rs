//! Block sets: an owner exports the blocks of one memory, and peers import them to read and write them.
//!
//! An owner describes a set ([`BlockSetDescription`]) and exports it ([`BlockSetRegistry::export`]), which registers
//! its memory with the transfer backend ([`Registrar`]). A peer receives the serialized description
//! ([`SerializedBlockLayout`]), imports it, and gets the address of each region of each block.
//!
//! Guarantees:
//! - **No stale access.** A set ends when its owner withdraws it, disconnects, or exports a newer one (a greater
//!   [`Fence`]). From then on every handle to it returns an error, and [`TransferGuard::finish`] reports to a running
//!   transfer that its bytes are invalid.
//! - **No reuse during a transfer.** A set that has ended stays in quarantine until its transfers have stopped. Until
//!   then its memory stays registered, and no new set may use its id or, for imports, its memory.
//! - **No address out of bounds.** A peer's description is checked: every region lies within the stated memory, and no
//!   arithmetic overflows, whatever the bytes are.

mod error;
mod ids;
mod limits;
mod memory;
mod parallel;
mod stats;

mod bytes;
mod set_layout;

mod registrar;
mod serialized;
mod state;

mod book;
mod shared;

mod remote_blocks;

mod registry;

#[cfg(test)]
mod model_test;
#[cfg(test)]
mod registry_test;
#[cfg(test)]
mod serialized_test;

pub use error::{
    AccessError, BlockSetError, DeserializeError, ExportError, ImportError, LimitReached,
    Quarantined, RegistrarError, SetEnd,
};
pub use ids::{BlockSetId, ContentId, Fence};
pub use limits::BlockSetLimits;
pub use memory::{AddressRange, MemoryKind, MemoryRegion, SetMemory};
pub use parallel::{TP_SIZE_MAX, TensorParallel};
pub use registrar::{Registrar, RegistrationKey};
pub use registry::{BlockSet, BlockSetRegistry};
pub use remote_blocks::{RemoteBlockSet, RemoteBlocks, RemoteBlocksMut};
pub use serialized::{SERIALIZED_LAYOUT_BYTES_MAX, SerializedBlockLayout};
pub use set_layout::{BlockDescriptor, BlockSetDescription, BlockSetLayout, SET_LAYERS_MAX};
pub use shared::TransferGuard;
pub use state::Access;
pub use stats::BlockSetStats;
