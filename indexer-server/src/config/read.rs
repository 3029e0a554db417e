use super::{Config, Options};
use kvasir_process::config::{self, Action, ConfigError};
use std::ffi::OsString;

/// Reads the command line, the environment and the file, and checks all of it.
///
/// # Errors
/// If anything cannot be read, understood or used; the error names it.
pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Action<Config>, ConfigError> {
    config::read::<Options, Config>(arguments, Config::check)
}

#[cfg(test)]
#[path = "read_test.rs"]
mod tests;
