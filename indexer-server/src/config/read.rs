use super::{Config, Options};
use kvasir_process::config::{self, Action, ConfigError};
use std::ffi::OsString;

/// Reads and validates the command line, the environment and the file.
///
/// # Errors
/// If an option cannot be read or parsed, or is invalid. The error names the option.
pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Action<Config>, ConfigError> {
    config::read::<Options, Config>(arguments, Config::check)
}

#[cfg(test)]
#[path = "read_test.rs"]
mod tests;
