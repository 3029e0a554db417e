//! Configuration: flags, then environment, then file, then defaults. A program says what its options are
//! and what they amount to; all of this is the same for every program.

use crate::{environment::unknown_variables, telemetry::VERSION};
use clap::{Arg, ArgAction, Args, Command, error::ErrorKind, value_parser};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    env,
    ffi::OsString,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

/// Options of a program, each by flag, environment and file alike. None is required.
pub trait Options: Args + DeserializeOwned {
    /// The value of every option, by the same names.
    type Settings: Serialize;
    /// Name of the program.
    const PROGRAM: &'static str;
    /// What it is for.
    const ABOUT: &'static str;
    /// A command line that does something useful, without the program's name.
    const EXAMPLE: &'static str;
    /// The variable of the environment that names the file: `CONFIG` behind the prefix of all of them.
    const CONFIG_VARIABLE: &'static str;
    /// What holds where nothing is configured. The only place that says so.
    const DEFAULTS: Self::Settings;
    /// Options of which the file has a table each.
    const TABLES: &'static [&'static str] = &[];

    /// `settings`, where these options say nothing else.
    fn over(self, settings: Self::Settings) -> Self::Settings;
}

/// Why the configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A flag or a variable of the environment cannot be read.
    #[error("{0}")]
    Arguments(#[from] clap::Error),
    /// The file cannot be had.
    #[error("config file {}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The file cannot be understood.
    #[error("config file {}: {error}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where and why.
        error: Box<toml::de::Error>,
    },
    /// An option's value cannot be used.
    #[error("{field}: {problem}")]
    Invalid {
        /// The option.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl ConfigError {
    /// An option's value cannot be used.
    pub fn invalid(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), problem: problem.into() }
    }
}

/// What the command line asks for.
#[derive(Debug)]
pub enum Action<C> {
    /// Print this and exit.
    Print(String),
    /// Run with this configuration.
    Run(Box<C>),
}

const CONFIG: &str = "config";
const PRINT_CONFIG: &str = "print-config";
const PRINT_TABLE: &str = "print-config-table";

/// Reads the command line, the environment and the file, and checks all of it.
///
/// # Errors
/// If anything cannot be read, understood or used; the error names it.
pub fn read<O: Options, C>(
    arguments: impl IntoIterator<Item = OsString>,
    check: impl FnOnce(&O::Settings) -> Result<C, ConfigError>,
) -> Result<Action<C>, ConfigError> {
    let given = match command::<O>().try_get_matches_from(arguments) {
        Ok(given) => given,
        Err(text) if is_answer(text.kind()) => return Ok(Action::Print(text.to_string())),
        Err(error) => return Err(error.into()),
    };
    if given.get_flag(PRINT_TABLE) {
        return Ok(Action::Print(options_table::<O>()));
    }
    let file = given.get_one::<PathBuf>(CONFIG).map(|path| read_file::<O>(path)).transpose()?;
    let mut settings = O::DEFAULTS;
    if let Some(file) = file {
        settings = file.over(settings);
    }
    let settings = O::from_arg_matches(&given)?.over(settings);
    let checked = check(&settings);
    if given.get_flag(PRINT_CONFIG) {
        let text = toml::to_string(&settings)
            .map_err(|error| ConfigError::invalid(PRINT_CONFIG, error.to_string()))?;
        return Ok(Action::Print(match checked {
            Ok(_) => text,
            // What is there is printed whatever it lacks, so that it can be begun with.
            Err(error) => format!("# It would be refused: {error}\n{text}"),
        }));
    }
    Ok(Action::Run(Box::new(checked?)))
}

/// Warns in the log of variables of the environment that are meant for this program and are none of its options.
pub fn warn_of_unknown_variables<O: Options>() {
    let command = command::<O>();
    let known = command.get_arguments().filter_map(|option| option.get_env());
    let known = known.map(|name| name.to_string_lossy().into_owned()).collect();
    let prefix = O::CONFIG_VARIABLE.trim_end_matches("CONFIG");
    let present = env::vars_os().map(|(name, _value)| name.to_string_lossy().into_owned());
    for warning in unknown_variables(prefix, &known, present) {
        tracing::warn!("{warning}");
    }
}

fn command<O: Options>() -> Command {
    let config = Arg::new(CONFIG)
        .long(CONFIG)
        .env(O::CONFIG_VARIABLE)
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help("TOML file with the same options, by the names of the flags");
    let print = |name: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue);
    let command = Command::new(O::PROGRAM)
        .version(VERSION)
        .after_help(format!(
            "Every option may be given as a flag, as a variable of the environment or in the file; the \
             first of these that says something holds.\n\nExample:\n  {} {}",
            O::PROGRAM,
            O::EXAMPLE
        ))
        .arg(config)
        .arg(print(PRINT_CONFIG).help("Print the effective configuration as TOML and exit, also where it lacks something"))
        .arg(print(PRINT_TABLE).help("Print the table of all options and exit").hide(true));
    let defaults = toml::Table::try_from(O::DEFAULTS).unwrap_or_default();
    // What the options' own type says of itself is for its readers.
    let command = O::augment_args(command).about(O::ABOUT).long_about(None);
    command.mut_args(|option| {
        let default = option.get_long().and_then(|name| default_of(&defaults, name));
        let default = default.filter(|default| !default.is_empty());
        let (Some(default), Some(help)) = (default, option.get_help()) else { return option };
        let help = format!("{help} [default: {default}]");
        option.help(help)
    })
}

/// What holds for an option where nothing is configured; none if that is nothing.
fn default_of(defaults: &toml::Table, name: &str) -> Option<String> {
    let default = defaults.get(name)?;
    Some(default.as_str().map_or_else(|| default.to_string(), str::to_owned))
}

/// Help and version are no errors.
fn is_answer(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)
}

fn read_file<O: Options>(path: &Path) -> Result<O, ConfigError> {
    let text = fs::read_to_string(path)
        .map_err(|error| ConfigError::Unreadable { path: path.to_owned(), error })?;
    toml::from_str(&text).map_err(|mut error: toml::de::Error| {
        // The error quotes a line of the file.
        error.set_input(Some(&without_passwords(&text)));
        ConfigError::Malformed { path: path.to_owned(), error: Box::new(error) }
    })
}

/// A text of the same length, in which each line that may have a password is hidden.
fn without_passwords(text: &str) -> String {
    let shown = |line: &str| {
        if line.contains('@') { "*".repeat(line.len()) } else { line.to_owned() }
    };
    text.split('\n').map(shown).collect::<Vec<_>>().join("\n")
}

/// The table of all options as Markdown: what README shows and a test compares with it.
#[must_use]
pub fn options_table<O: Options>() -> String {
    let command = O::augment_args(Command::new(""));
    let defaults = toml::Table::try_from(O::DEFAULTS).unwrap_or_default();
    let mut table =
        "| flag | environment | file | default | meaning |\n|---|---|---|---|---|\n".to_owned();
    for option in command.get_arguments() {
        let name = option.get_long().unwrap_or_default();
        let variable = option.get_env().map(|name| name.to_string_lossy()).unwrap_or_default();
        let default = default_of(&defaults, name).map(|default| format!("`{default}`"));
        let default = default.unwrap_or_default();
        let meaning = option.get_help().map(ToString::to_string).unwrap_or_default();
        let is_table = O::TABLES.contains(&name);
        let file = if is_table { format!("[[{name}]]") } else { name.to_owned() };
        // Writing to a String does not fail.
        let _infallible =
            writeln!(table, "| `--{name}` | `{variable}` | `{file}` | {default} | {meaning} |");
    }
    table
}
