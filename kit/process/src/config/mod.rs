//! Configuration from flags, then environment, then file, then defaults. A program describes each option once, as a
//! field of a `clap::Args` structure with name, type, default and help. The rest is equal for all programs: the
//! environment variable is the program's prefix with the option's name, and the file uses the option's name.

mod help;
mod retired;

pub use crate::environment::VARIABLE_PREFIXES;
pub use retired::{Retired, retired};

use crate::environment::unknown_variables;
use crate::telemetry::VERSION_TEXT;
use crate::text::PAIRS;
use clap::builder::OsStr as VariableName;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, value_parser};
use help::{short_help, with_help};
use retired::{RetiredValues, flag, with_retired};
use serde::Serialize;
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};
use toml::Value;

/// The options of a program. Each can be set by flag, environment or file. Options without a default are optional.
pub trait Options: Args + Serialize {
    /// Name of the program.
    const PROGRAM: &'static str;
    /// One-line description of the program.
    const ABOUT: &'static str;
    /// Example arguments for the help, without the program's name.
    const EXAMPLE: &'static str;
    /// Prefix of the program's environment variables, such as `KVASIR_`: one of [`VARIABLE_PREFIXES`].
    const VARIABLE_PREFIX: &'static str;
    /// Options that are tables in the file.
    const TABLES: &'static [&'static str] = &[];
    /// Defaults of shared options that differ between programs, by option name.
    const DEFAULTS: &'static [(&'static str, &'static str)] = &[];
    /// Shared options that the program does not have.
    const HIDDEN: &'static [&'static str] = &[];
    /// Options that `-h` shows: the dozen that most users need. `--help` shows all options.
    const SHORT_HELP: &'static [&'static str];
    /// Options of earlier releases, accepted with a warning: lists of the program and of the shared options that it
    /// uses.
    const RETIRED: &'static [&'static [Retired]] = &[];
}

/// Why the configuration is rejected.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A flag or an environment variable cannot be parsed.
    #[error("{0}")]
    Arguments(#[from] clap::Error),
    /// The file cannot be read.
    #[error("config file {}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        error: std::io::Error,
    },
    /// The file cannot be parsed.
    #[error("config file {}: {error}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Position and problem.
        error: Box<toml::de::Error>,
    },
    /// The file has an unknown option, or a value that cannot be parsed.
    #[error("config file {}: {option}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The option.
        option: String,
        /// Problem of the option.
        problem: String,
    },
    /// An option's value is invalid.
    #[error("{field}: {problem}")]
    Invalid {
        /// The option.
        field: String,
        /// Problem of the value.
        problem: String,
    },
}

impl ConfigError {
    /// Creates the error of an invalid option.
    pub fn invalid(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), problem: problem.into() }
    }
}

/// The action that the command line requests.
#[derive(Debug)]
pub enum Action<C> {
    /// Print this text and exit.
    Print(String),
    /// Run with this configuration. Log the warnings, which name retired options, once logging has started.
    Run(Box<C>, Vec<String>),
}

const CONFIG: &str = "config";
const PRINT_CONFIG: &str = "print-config";
const PRINT_TABLE: &str = "print-config-table";

/// Reads the command line, the environment and the file, and validates all options.
///
/// # Errors
/// If an input cannot be read, parsed or used. The error names it.
pub fn read<O: Options, C>(
    arguments: impl IntoIterator<Item = OsString>,
    check: impl FnOnce(&O) -> Result<C, ConfigError>,
) -> Result<Action<C>, ConfigError> {
    let arguments: Vec<_> = arguments.into_iter().collect();
    let given = match command::<O>().try_get_matches_from(&arguments) {
        Ok(given) => given,
        Err(answer) if answer.kind() == ErrorKind::DisplayHelp => {
            let is_short = !arguments.iter().any(|argument| argument == "--help");
            let text = if is_short { short_help(command::<O>()) } else { answer.to_string() };
            return Ok(Action::Print(text));
        }
        Err(text) if text.kind() == ErrorKind::DisplayVersion => {
            return Ok(Action::Print(text.to_string()));
        }
        Err(error) => return Err(error.into()),
    };
    if given.get_flag(PRINT_TABLE) {
        return Ok(Action::Print(options_table::<O>()));
    }
    let (options, warnings) = options::<O>(&given, arguments)?;
    let checked = check(&options);
    if given.get_flag(PRINT_CONFIG) {
        let text = toml::to_string(&options)
            .map_err(|error| ConfigError::invalid(PRINT_CONFIG, error.to_string()))?;
        // An incomplete configuration is printed, too, as a start for a valid one.
        let refusal = checked.err().map(|error| format!("It would be refused: {error}"));
        let comments = warnings.into_iter().chain(refusal);
        let comments: String = comments.map(|comment| format!("# {comment}\n")).collect();
        return Ok(Action::Print(comments + &text));
    }
    Ok(Action::Run(Box::new(checked?), warnings))
}

/// The options of an empty configuration.
///
/// # Errors
/// If a default cannot be parsed: a bug of the program, which its tests find.
pub fn defaults<O: Options>() -> Result<O, ConfigError> {
    let command = with_options::<O>(Command::new(O::PROGRAM));
    Ok(O::from_arg_matches(&command.try_get_matches_from([O::PROGRAM])?)?)
}

/// Merges the flags, the environment and the file into options. Also returns warnings about retired options.
fn options<O: Options>(
    given: &ArgMatches,
    mut arguments: Vec<OsString>,
) -> Result<(O, Vec<String>), ConfigError> {
    let mut retired = RetiredValues::from_matches::<O>(given);
    let path = given.get_one::<PathBuf>(CONFIG);
    let mut file = match path {
        Some(path) => read_file(path)?,
        None => toml::Table::new(),
    };
    if let Some(path) = path {
        file.retain(|option, value| !retired.add_from_file::<O>(path, option, value));
    }
    arguments.extend(retired.renamed(|option| !explicit(given, &file, option).is_empty())?);
    let mut command = command::<O>();
    for option in pair_options::<O>() {
        // The last pair of a key wins: the current option over retired ones.
        let former = retired.pairs(&option);
        let explicit = explicit(given, &file, &option);
        if !former.is_empty() || explicit.len() > 1 {
            let pairs: Vec<_> = former.into_iter().chain(explicit).collect();
            arguments.push(flag(&option, &pairs.join(OsStr::new(","))));
        }
        let id = option_id(&option);
        let last_wins = |option: Arg| option.action(ArgAction::Set).overrides_with(id.clone());
        command = command.mut_arg(&id, last_wins);
    }
    if let Some(path) = path {
        command = with_file::<O>(command, given, path, file)?;
    }
    let matches = command.try_get_matches_from(arguments).map_err(|error| {
        let (option, problem) = refused_value(&error);
        if let Some(former) = retired.former_names(&option) {
            return ConfigError::invalid(option, format!("{problem} (from {former})"));
        }
        match path {
            Some(path) => ConfigError::File { path: path.clone(), option, problem },
            None => error.into(),
        }
    })?;
    Ok((O::from_arg_matches(&matches)?, retired.warnings()))
}

/// The values of an option in flags, environment or file, if it is set there.
fn explicit(given: &ArgMatches, file: &toml::Table, option: &str) -> Vec<OsString> {
    let id = option_id(option);
    if is_given(given, &id) {
        return given.get_raw(&id).into_iter().flatten().map(OsStr::to_owned).collect();
    }
    file.get(option).map(|value| texts(value.clone()).join(",").into()).into_iter().collect()
}

/// Names of the options with pairs of key and value.
fn pair_options<O: Options>() -> Vec<String> {
    let options = with_options::<O>(Command::new(""));
    let pairs = options.get_arguments().filter(|option| has_pairs(option));
    pairs.filter_map(Arg::get_long).map(str::to_owned).collect()
}

fn has_pairs(option: &Arg) -> bool {
    option.get_value_names().is_some_and(|names| names.iter().any(|name| name == PAIRS))
}

/// Whether a flag or a variable sets the option.
fn is_given(given: &ArgMatches, id: &str) -> bool {
    given.value_source(id).is_some_and(|source| source != ValueSource::DefaultValue)
}

/// Adds the file's values to the command as defaults: flags and variables override them. Fails for an unknown option.
fn with_file<O: Options>(
    mut command: Command,
    given: &ArgMatches,
    path: &Path,
    file: toml::Table,
) -> Result<Command, ConfigError> {
    for (option, value) in file {
        let known = with_options::<O>(Command::new(""));
        let id = option_id(&option);
        // An argument without a flag has the name of its field.
        let is_named = |at: &Arg| match at.get_long() {
            Some(flag) => flag == option,
            None => *at.get_id() == id,
        };
        if !known.get_arguments().any(is_named) {
            let known = known.get_arguments().filter_map(Arg::get_long).map(str::to_owned);
            let problem = unknown_option(&option, known);
            return Err(ConfigError::File { path: path.to_owned(), option, problem });
        }
        if is_given(given, &id) {
            continue;
        }
        // The file's entries are already separate.
        command = command.mut_arg(id, |at| at.default_values(texts(value)).value_delimiter(None));
    }
    Ok(command)
}

/// Returns the option of a refused value, and the reason.
fn refused_value(error: &clap::Error) -> (String, String) {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    };
    let option = text(ContextKind::InvalidArg);
    let option = option.trim_start_matches("--").split(' ').next().unwrap_or_default();
    let why = error.source().map(ToString::to_string).unwrap_or_default();
    let value = text(ContextKind::InvalidValue);
    let why = if why.contains(&value) { why } else { format!("{value:?}: {why}") };
    (option.to_owned(), why)
}

/// The id of an option's argument in [`ArgMatches`].
fn option_id(option: &str) -> String {
    option.replace('-', "_")
}

/// Converts a value of the file to the form of flags. Tables keep their form.
fn texts(value: Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(values) => values.into_iter().flat_map(texts).collect(),
        plain @ (Value::Integer(_)
        | Value::Float(_)
        | Value::Boolean(_)
        | Value::Datetime(_)
        | Value::Table(_)) => vec![plain.to_string()],
    }
}

/// Describes an unknown option, with the known option that is spelt most like it.
fn unknown_option(option: &str, known: impl Iterator<Item = String>) -> String {
    let distance = |name: &String| strsim::damerau_levenshtein(option, name);
    match known.min_by_key(distance) {
        Some(near) if distance(&near) <= 3 => {
            format!("there is no such option: did you mean {near}?")
        }
        _ => "there is no such option".to_owned(),
    }
}

/// A warning for each environment variable that has this program's prefix and is not one of its options.
pub fn unknown_variables_of<O: Options>() -> Vec<String> {
    let command = command::<O>();
    let known = command.get_arguments().filter_map(|option| option.get_env());
    let known = known.map(|name| name.to_string_lossy().into_owned()).collect();
    let prefix = O::VARIABLE_PREFIX;
    let present = env::vars_os().map(|(name, _value)| name.to_string_lossy().into_owned());
    unknown_variables(prefix, &known, present)
}

/// Builds the command line of a program: its options, `--config`, and the options that print.
fn command<O: Options>() -> Command {
    let config = Arg::new(CONFIG)
        .long(CONFIG)
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help("TOML file with the same options, by the names of the flags");
    let print = |name: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue);
    let print_config =
        "Print the effective configuration as TOML and exit, even if the program would refuse it";
    let command = Command::new(O::PROGRAM).version(VERSION_TEXT.as_str()).arg(config);
    let has_positionals = O::augment_args(Command::new("")).get_positionals().next().is_some();
    // The doc comment of the options' type is for programmers.
    let command = with_retired::<O>(with_options::<O>(command))
        .long_about(None)
        .mut_args(|option| match variable::<O>(&option) {
            Some(variable) => option.env(variable),
            None => option,
        })
        .mut_args(
            |option| {
                if has_pairs(&option) { option.action(ArgAction::Append) } else { option }
            },
        )
        // Else --insecure would take the next argument as its value.
        .mut_args(|option| {
            let is_optional = option.get_num_args().is_some_and(|count| count.min_values() == 0);
            let is_optional = is_optional && matches!(option.get_action(), ArgAction::Set);
            if has_positionals && is_optional && option.get_long().is_some() {
                option.require_equals(true)
            } else {
                option
            }
        })
        .arg(print(PRINT_CONFIG).help(print_config))
        .arg(print(PRINT_TABLE).help("Print the table of all options and exit").hide(true));
    with_help::<O>(command)
}

/// The command with the program's options and their defaults.
fn with_options<O: Options>(command: Command) -> Command {
    let command = O::DEFAULTS.iter().fold(O::augment_args(command), |command, (name, value)| {
        command.mut_arg(option_id(name), |option| option.default_value(*value))
    });
    O::HIDDEN
        .iter()
        .fold(command, |command, name| command.mut_arg(option_id(name), |option| option.hide(true)))
}

/// The environment variable of an option.
fn variable<O: Options>(option: &Arg) -> Option<VariableName> {
    let name = option_id(option.get_long()?).to_uppercase();
    Some(format!("{}{name}", O::VARIABLE_PREFIX).into())
}

/// Reads a TOML file. Passwords in the file are removed from errors.
fn read_file(path: &Path) -> Result<toml::Table, ConfigError> {
    let text = fs::read_to_string(path)
        .map_err(|error| ConfigError::Unreadable { path: path.to_owned(), error })?;
    toml::from_str(&text).map_err(|mut error: toml::de::Error| {
        // The error quotes a line of the file.
        error.set_input(Some(&without_passwords(&text)));
        ConfigError::Malformed { path: path.to_owned(), error: Box::new(error) }
    })
}

/// Hides each line that may contain a password or a key. The length of the text stays the same.
fn without_passwords(text: &str) -> String {
    let is_secret =
        |line: &str| ["@", "secret", "volume-option"].iter().any(|at| line.contains(at));
    let shown = |line: &str| {
        if is_secret(line) { "*".repeat(line.len()) } else { line.to_owned() }
    };
    text.split('\n').map(shown).collect::<Vec<_>>().join("\n")
}

/// The Markdown table of all options. The reference contains it, and a test compares them.
#[must_use]
pub fn options_table<O: Options>() -> String {
    table::<O>(|_option| true)
}

/// Writes the Markdown table of the options that another program lacks, or has with another default.
#[must_use]
pub fn own_options_table<O: Options, Other: Options>() -> String {
    let other = with_options::<Other>(Command::new(""));
    table::<O>(|option| {
        !other.get_arguments().any(|at| {
            at.get_long() == option.get_long()
                && at.get_default_values() == option.get_default_values()
        })
    })
}

/// Writes the Markdown table of the listed options.
fn table<O: Options>(is_listed: impl Fn(&Arg) -> bool) -> String {
    let command = with_options::<O>(Command::new(""));
    let mut table =
        "| flag | environment | file | default | meaning |\n|---|---|---|---|---|\n".to_owned();
    let options = command.get_arguments().filter(|option| is_listed(option));
    for option in options.filter(|option| !option.is_hide_set()) {
        // An argument without a flag stands in the usage.
        let Some(name) = option.get_long() else { continue };
        let variable = variable::<O>(option);
        let variable = variable.as_ref().map(|name| name.to_string_lossy()).unwrap_or_default();
        let default = option.get_default_values().first().map(|at| at.to_string_lossy());
        let default = default.filter(|at| !at.is_empty()).map(|at| format!("`{at}`"));
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

#[cfg(test)]
mod config_test;
