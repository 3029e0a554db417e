//! Blocks between agents. An agent serves the blocks of its manager on a port of its own, and fetches those of others into
//! slots of its own.
//!
//! - [`limits`]: all of them. [`wire`]: frames and messages, and what blocks are; pure but for reading and writing.
//! - [`convert`]: which bytes of a block go where, where two agents have different layouts; pure, too.
//! - [`counters`]: what happened. [`serve`]: the owner's side. [`client`]: who fetches.
//! - [`backend`]: the trait of all ways to fetch: TCP, and `NixlBackend` (feature `nixl`), which reads the owner's memory.
//! - `exposed`: how an owner's memory is reached. `nixl`: what both sides do with NIXL.
//!
//! No wrong byte is registered: the owner verifies each block before it sends it, and who fetches sums up what has arrived
//! and registers it only if that is what the owner says, under the sequence hash that was asked for.

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
