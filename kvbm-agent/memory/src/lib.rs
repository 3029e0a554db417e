//! Memory of the block manager. A [`Region`] is a run of bytes; an [`Arena`] cuts it into slots and says who may touch which:
//! a slot is borrowed by one writer or by any number of readers, and safe code cannot get at it otherwise.
//!
//! - [`mod@region`]: what a region is, and what allocates one ([`StorageAllocator`]): where a third party plugs in.
//! - [`system`], [`pinned`], [`shared`], `device` (feature `cuda`): the regions that come with the crate.
//! - `nixl` (feature `nixl`): transfers with peers and files by NIXL, which is found at run time.
//! - [`claims`]: who holds which slot. [`arena`]: slots, guards, and copies between them.
//! - [`buffer`]: aligned buffers for direct I/O.
//! - `mapping`: pages from the kernel. `raw`: copies through pointers.
//!
//! Pointers are met in few files, each listed in `tests/suites/tidy/words.rs`; every such place states why it is sound.

pub mod arena;
pub mod buffer;
pub mod claims;
#[cfg(feature = "cuda")]
#[expect(unsafe_code, reason = "the driver of an accelerator is C")]
pub mod device;
#[expect(unsafe_code, reason = "pages come from the kernel as pointers")]
mod mapping;
#[cfg(feature = "nixl")]
pub mod nixl;
#[expect(unsafe_code, reason = "page-locked memory is a region")]
pub mod pinned;
#[expect(unsafe_code, reason = "copies from and to memory that others write at the same time")]
mod raw;
#[expect(unsafe_code, reason = "whoever implements a region promises what its pointer leads to")]
pub mod region;
#[expect(unsafe_code, reason = "shared memory is a region")]
pub mod shared;
#[expect(unsafe_code, reason = "system memory is a region")]
pub mod system;

pub use arena::{Arena, ArenaError, ReadSlot, SlotLayout, WriteSlot, copy};
pub use buffer::AlignedBuffer;
pub use claims::{ClaimError, Claims};
#[cfg(feature = "cuda")]
pub use device::{DeviceAllocator, DeviceStorage};
pub use pinned::{PinnedAllocator, PinnedStorage};
pub use region::{
    Access, AccessError, AllocateError, Copies, Region, RegionKind, StorageAllocator,
};
pub use shared::{Backing, SharedStorage};
pub use system::{SystemAllocator, SystemStorage};
