use super::{Config, ConfigError, Options, Settings, options_table};
use clap::{Parser, error::ErrorKind};
use kvasir_process::telemetry::VERSION;
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

/// Standalone KV-cache index for LLM inference fleets: takes in engines' KV events and answers, over
/// gRPC, which worker holds which leading blocks of a prompt.
///
/// Every option may be given as a flag, as a variable of the environment or in the file; the first
/// of these that says something holds.
#[derive(Debug, Parser)]
#[command(name = "indexer-server", version = VERSION)]
struct Arguments {
    /// TOML file with the same options, by the names of the flags
    #[arg(long, env = "KVASIR_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the effective configuration as TOML and exit
    #[arg(long)]
    print_config: bool,
    /// Print the table of all options and exit
    #[arg(long, hide = true)]
    print_config_table: bool,
    #[command(flatten)]
    options: Options,
}

/// What the command line asks for.
#[derive(Debug)]
pub enum Action {
    /// Print this and exit.
    Print(String),
    /// Run with this configuration.
    Run(Box<Config>),
}

/// Reads the command line, the environment and the file, and checks all of it.
///
/// # Errors
/// If anything cannot be read, understood or used; the error names it.
pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Action, ConfigError> {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(text) if is_answer(text.kind()) => return Ok(Action::Print(text.to_string())),
        Err(error) => return Err(error.into()),
    };
    if arguments.print_config_table {
        return Ok(Action::Print(options_table()));
    }
    let file = arguments.config.as_deref().map(read_file).transpose()?;
    let settings =
        Settings::DEFAULTS.overridden_by(file.unwrap_or_default()).overridden_by(arguments.options);
    let config = Config::check(&settings)?;
    if arguments.print_config {
        let text = toml::to_string(&settings);
        return text
            .map(Action::Print)
            .map_err(|error| ConfigError::invalid("print-config", error.to_string()));
    }
    Ok(Action::Run(Box::new(config)))
}

/// Help and version are no errors.
fn is_answer(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)
}

fn read_file(path: &Path) -> Result<Options, ConfigError> {
    let text = fs::read_to_string(path)
        .map_err(|error| ConfigError::Unreadable { path: path.to_owned(), error })?;
    toml::from_str(&text)
        .map_err(|error| ConfigError::Malformed { path: path.to_owned(), error: Box::new(error) })
}

#[cfg(test)]
#[path = "read_test.rs"]
mod tests;
