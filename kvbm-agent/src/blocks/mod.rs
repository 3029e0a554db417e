//! Block manager of an agent: saves KV blocks for the engines of this machine, and loads them again. It wraps
//! [`kvasir_tiers::manager`] in gRPC sessions, and publishes its events in the agent's stream.
//!
//! - `config`: options. `error`: why the manager cannot start.
//! - `storages`: opens memory, disk and volume. `running`: the manager from start to stop.
//! - `messages`: values on the wire. `status`: refusals. `verdicts`: counts of load decisions.
//! - `sessions`: open sessions. `checks`: permits for blocking calls. `shared`, `opened`, `held`, `service`: the calls
//!   of `BlockManager`.
//! - `peers`: exchange of blocks with other agents. `fetched`: the call that fetches them.
//! - `source`: publishes registrations for the index. `volume`: finds blocks that a volume has already.

mod checks;
mod config;
mod error;
mod fetched;
mod held;
mod messages;
mod onboarded;
mod opened;
mod peers;
mod running;
mod service;
mod sessions;
mod shared;
mod source;
mod status;
mod storages;
mod verdicts;
mod volume;

pub use config::{
    ArenaBacking, BlocksConfig, DiskFile, LayoutDimensions, NixlOptions, PeersConfig,
    SLOT_ALIGNMENT_BYTES, VolumePlace,
};
pub use error::BlocksError;
pub use running::Blocks;
pub use shared::BlockManagerService;
pub use source::{BlockSource, SOURCE};
pub use verdicts::VerdictCounts;
