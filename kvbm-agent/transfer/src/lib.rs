//! Block transfer between agents: an agent serves its manager's blocks on a separate port, and fetches other agents'
//! blocks into its own slots.
//!
//! - [`limits`]: all limits. [`wire`]: frames, messages and descriptions of blocks; pure except for reading and
//!   writing.
//! - [`convert`]: converts blocks between different layouts; pure.
//! - [`counters`]: counters. [`serve`]: the owner's side. [`client`]: the fetching side.
//! - [`backend`]: the trait of all backends: TCP, and `NixlBackend` (feature `nixl`), which reads the owner's memory.
//! - `exposed`: makes an owner's memory accessible. `nixl`: NIXL on both sides.
//!
//! Wrong bytes are never registered. The owner verifies each block before it sends it. The receiver computes the
//! checksum of the received bytes. It registers the block only if this is the owner's checksum, and under the requested
//! sequence hash.

pub mod backend;
pub mod client;
pub mod convert;
pub mod counters;
mod exposed;
pub mod limits;
#[cfg(feature = "nixl")]
pub mod nixl;
pub mod serve;
pub mod wire;

pub use backend::{
    FetchFault, FetchRequest, Fetched, FetchedParts, PartsRequest, PeerParts, TransferBackend,
};
#[cfg(feature = "nixl")]
pub use client::NixlBackend;
pub use client::{ClientConfig, TcpBackend};
pub use counters::{TransferCounters, TransferMetrics};
#[cfg(feature = "nixl")]
pub use nixl::NixlOptions;
pub use serve::{Owner, OwnerError};
pub use wire::BlockDescription;
