//! Configuration of the process: flags, then environment, then file, then defaults; checked as a whole
//! before any port is opened.

#[cfg_attr(not(feature = "blocks"), path = "blocks_absent.rs")]
mod blocks;
#[cfg(feature = "blocks")]
mod blocks_layout;
#[cfg(feature = "blocks")]
mod blocks_peers;
mod check;
mod indexers;
mod media;
mod options;
mod source;
#[cfg(feature = "blocks")]
mod storage;
#[cfg(feature = "blocks")]
mod store_option;

pub use blocks::BlocksOptions;
pub use check::Config;
pub use options::Options;
pub use source::SourceSpec;
#[cfg(feature = "blocks")]
pub use storage::StorageOptions;

use kvasir_process::config::{Action, ConfigError, Options as _, read as read_options};
use std::ffi::OsString;

/// Name of the program.
pub const PROGRAM: &str = Options::PROGRAM;

/// Reads the command line, the environment and the file, and checks all of it.
///
/// # Errors
/// If anything cannot be read, understood or used; the error names it.
pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Action<Config>, ConfigError> {
    read_options::<Options, Config>(arguments, Config::check)
}

#[cfg(test)]
mod read_test;
