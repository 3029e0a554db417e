//! Configuration of the process: flags, then environment, then file, then defaults. Everything is checked before any
//! port is opened.

mod check;
mod options;
mod settings;

pub use check::{Config, EngineConfig, TokensConfig};
pub use options::{Options, TokenSource};
pub use settings::{Limits, Timeouts};

use kvasir_process::config::{Action, ConfigError, Options as _, read as read_options};
use std::ffi::OsString;

/// Name of the program.
pub const PROGRAM: &str = Options::PROGRAM;

/// Reads and checks the command line, the environment and the file.
///
/// # Errors
/// If an input cannot be read or parsed, or is invalid; the error names it.
pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Action<Config>, ConfigError> {
    read_options::<Options, Config>(arguments, Config::check)
}

#[cfg(test)]
mod read_test;
