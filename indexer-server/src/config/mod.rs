//! Configuration: flags, then environment, then file, then defaults; checked as a whole before any
//! port is opened.

mod broker;
mod check;
mod error;
mod options;
mod read;
mod settings;
mod shard;
mod table;
mod worker;

pub use check::{Config, MapSource};
pub use error::ConfigError;
pub use options::Options;
pub use read::{Action, read};
pub use settings::Settings;
pub use shard::{parse_shard_map, read_shard_map};
pub use table::options_table;
pub use worker::WorkerSpec;
