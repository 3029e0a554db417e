//! Memory of the block manager: allocation, and access control per slot. A [`Region`] is a contiguous range of bytes.
//! An [`Arena`] divides it into slots, each borrowed by one writer or any number of readers. Safe code can't access a
//! slot otherwise.
//!
//! - [`mod@region`]: regions, and the trait of their allocators ([`StorageAllocator`]), which third parties can
//!   implement.
//! - [`system`], [`pinned`], [`shared`], `device` (feature `cuda`): the regions of this crate.
//! - `nixl` (feature `nixl`): transfers with peers and files by NIXL, which is loaded at run time.
//! - [`claims`]: readers and writers of slots. [`arena`]: slots, guards, and copies between slots.
//! - [`buffer`]: aligned buffers for direct I/O.
//! - `mapping`: memory-mapped pages. `raw`: copies through pointers.
//!
//! Only a few files use pointers; `tests/suites/tidy/words.rs` lists them. Each use states why it is sound.

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
