//! Configuration: flags override the environment, the file and the defaults. All options are validated before any port
//! is opened.

mod broker;
mod check;
mod index_shards;
mod options;
mod read;
mod settings;
mod shard;
mod shard_map;
mod worker;

pub use check::Config;
pub use index_shards::IndexShards;
pub use kvasir_process::config::{Action, ConfigError};
pub use options::Options;
pub use read::read;
pub use settings::{ClientLimits, NatsStream, SpeculativeBlocks, Timing};
pub use shard::{MapSource, parse_shard_map, read_shard_map};
pub use shard_map::{MapTextError, ReadMap, shard_map_toml};
pub use worker::WorkerSpec;
