//! The block manager of an agent: what engines of this machine save, and get back. It is [`kvasir_tiers::manager`], with
//! sessions over gRPC around it, and with its events in the agent's stream.
//!
//! - `config`: what it is made of. `error`: why it can't be.
//! - `storages`: memory, disk and volume, opened. `running`: all of it, from start to stop.
//! - `messages`: its values on the wire. `status`: its refusals. `verdicts`: whether to load, as engines asked it.
//! - `sessions`: who is there. `checks`: turns of calls that block. `shared`, `opened`, `held`, `service`: the calls of
//!   `BlockManager`.
//! - `peers`: blocks from and for other agents. `fetched`: the call that fetches them.
//! - `source`: what is registered where, for the index. `volume`: what a volume has already.

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
