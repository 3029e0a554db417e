//! Configuration from flags, then environment, then file, then defaults. All options are checked before any port opens.

#[cfg_attr(not(feature = "blocks"), path = "blocks_absent.rs")]
mod blocks;
#[cfg(feature = "blocks")]
mod blocks_geometry;
#[cfg(feature = "blocks")]
mod blocks_peers;
#[cfg(feature = "blocks")]
mod blocks_tiers;
mod capacity;
mod check;
mod engine_facts;
mod indexers;
mod media;
mod options;
mod retired;
mod source;
#[cfg(feature = "blocks")]
mod storage;
#[cfg(feature = "blocks")]
mod store_option;
mod zmq;

pub use blocks::BlocksOptions;
pub use check::Config;
pub use options::Options;
pub use source::SourceSpec;

use kvasir_process::config::{Action, ConfigError, Options as _, read as read_options};
use std::ffi::OsString;

/// Name of the program.
pub const PROGRAM: &str = Options::PROGRAM;

/// Reads and checks the command line, the environment and the file.
///
/// # Errors
/// If a value cannot be read, parsed or used. The error names it.
pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Action<Config>, ConfigError> {
    read_options::<Options, Config>(arguments, Config::check)
}

#[cfg(test)]
mod read_test;
