//! Block sets: blocks in one memory that their owner exports, and that peers import to read and write them.
//!
//! An owner describes a set ([`BlockSetDescription`]) and exports it ([`BlockSetRegistry::export`]), which registers
//! its memory with the transfer backend ([`Registrar`]). A peer gets the description as bytes
//! ([`SerializedBlockLayout`]), imports it, and has the address of each region of each block.
//!
//! What holds:
//! - **No stale access.** A set ends when its owner withdraws it, disappears, or states a newer one (a greater
//!   [`Fence`]). From then on every handle of it gives an error, and a transfer that was under way learns from
//!   [`TransferGuard::finish`] that its bytes are worth nothing.
//! - **No reuse underneath.** A set that has ended is quarantined until its transfers have stopped: its memory stays
//!   registered, and no set with its id, or of a peer in the same memory, begins.
//! - **No address out of bounds.** What a peer states is checked: every region lies in the memory that it states, and
//!   no arithmetic overflows, whatever the bytes are.

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
