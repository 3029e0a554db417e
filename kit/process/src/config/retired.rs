//! Options of earlier releases. They are accepted until [`REFUSED_FROM`], with a warning.

use super::{ConfigError, Options, option_id, texts};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use toml::Value;

/// The release that refuses today's retired options.
pub(super) const REFUSED_FROM: &str = "0.3.0";

/// An option of an earlier release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retired {
    name: &'static str,
    now: Now,
}

/// How the value of a retired option is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Now {
    /// The value is ignored, for this reason.
    Ignored(&'static str),
    /// The value belongs to this option.
    Renamed(&'static str),
    /// The value belongs to a key of an option with `key=value` pairs.
    Key { option: &'static str, key: &'static str },
}

impl Retired {
    /// An option without effect. `reason` completes the warning, such as "the server probes every 30s".
    #[must_use]
    pub const fn ignored(name: &'static str, reason: &'static str) -> Self {
        Self { name, now: Now::Ignored(reason) }
    }

    /// An option whose values belong to `option`.
    #[must_use]
    pub const fn renamed(name: &'static str, option: &'static str) -> Self {
        Self { name, now: Now::Renamed(option) }
    }

    /// An option whose value belongs to `key` of `option`, an option with `key=value` pairs.
    #[must_use]
    pub const fn key(name: &'static str, option: &'static str, key: &'static str) -> Self {
        Self { name, now: Now::Key { option, key } }
    }

    /// Name of the retired option.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The option that replaces this one, if the value still has an effect.
    #[must_use]
    pub const fn replacement(&self) -> Option<&'static str> {
        match self.now {
            Now::Ignored(_) => None,
            Now::Renamed(option) | Now::Key { option, .. } => Some(option),
        }
    }

    /// Returns the hidden argument that accepts the retired option.
    fn argument(&self) -> Arg {
        Arg::new(option_id(self.name))
            .long(self.name)
            .action(ArgAction::Append)
            .num_args(0..=1)
            .default_missing_value("true")
            .value_parser(value_parser!(OsString))
            .hide(true)
    }

    fn warning(&self, origin: &str) -> String {
        let change = match self.now {
            Now::Ignored(reason) => format!("has no effect: {reason}"),
            Now::Renamed(option) => format!("is replaced by --{option}"),
            Now::Key { option, key } => format!("is replaced by --{option} {key}=VALUE"),
        };
        format!("{origin} {change}. Release {REFUSED_FROM} refuses {}", self.name)
    }
}

/// All retired options of a program.
pub fn retired<O: Options>() -> impl Iterator<Item = &'static Retired> {
    O::RETIRED.iter().copied().flatten()
}

/// The command with hidden arguments for retired options.
pub(super) fn with_retired<O: Options>(command: Command) -> Command {
    command.args(retired::<O>().map(Retired::argument))
}

/// A retired option that is set.
struct Given {
    retired: &'static Retired,
    /// Flag, variable or file in which the option is set.
    origin: String,
    values: Vec<OsString>,
}

/// The retired options that are set.
#[derive(Default)]
pub(super) struct RetiredValues(Vec<Given>);

impl RetiredValues {
    /// Collects the retired options among flags and environment variables.
    pub(super) fn from_matches<O: Options>(matches: &ArgMatches) -> Self {
        let given = retired::<O>().filter_map(|retired| {
            let id = option_id(retired.name);
            let is_variable = matches.value_source(&id)? == ValueSource::EnvVariable;
            let origin = if is_variable {
                format!("the environment variable {}{}", O::VARIABLE_PREFIX, id.to_uppercase())
            } else {
                format!("--{}", retired.name)
            };
            let values = matches.get_many::<OsString>(&id)?.cloned().collect();
            Some(Given { retired, origin, values })
        });
        Self(given.collect())
    }

    /// Adds the file's value of a retired option, unless a flag or a variable overrides it. Returns `false` if the
    /// program has no retired option of this name.
    pub(super) fn add_from_file<O: Options>(
        &mut self,
        path: &Path,
        option: &str,
        value: &Value,
    ) -> bool {
        let Some(retired) = retired::<O>().find(|at| at.name == option) else { return false };
        if !self.0.iter().any(|given| given.retired.name == option) {
            let origin = format!("{option} in {}", path.display());
            let values = texts(value.clone()).into_iter().map(OsString::from).collect();
            self.0.push(Given { retired, origin, values });
        }
        true
    }

    /// One warning for each option.
    pub(super) fn warnings(&self) -> Vec<String> {
        self.0.iter().map(|given| given.retired.warning(&given.origin)).collect()
    }

    /// Names of the retired options whose values belong to `option`, separated by commas. `None` if there is none.
    pub(super) fn former_names(&self, option: &str) -> Option<String> {
        let names = self.0.iter().map(|given| given.retired);
        let names = names.filter(|retired| retired.replacement() == Some(option));
        let names: Vec<_> = names.map(|retired| retired.name).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }

    /// Returns flags that set the current options to the values of renamed options. `is_explicit` returns whether a
    /// current option is set.
    ///
    /// # Errors
    /// If an option is set under both names.
    pub(super) fn renamed(
        &self,
        is_explicit: impl Fn(&str) -> bool,
    ) -> Result<Vec<OsString>, ConfigError> {
        let mut flags = Vec::new();
        for Given { retired, origin, values } in &self.0 {
            let Now::Renamed(option) = retired.now else { continue };
            if is_explicit(option) {
                let why = format!("is set twice: leave out {origin}, the former name");
                return Err(ConfigError::invalid(option, why));
            }
            flags.extend(values.iter().map(|value| flag(option, value)));
        }
        Ok(flags)
    }

    /// Returns the pairs of `option` that retired options set.
    pub(super) fn pairs(&self, option: &str) -> Vec<OsString> {
        let pair = |given: &Given| match given.retired.now {
            Now::Key { option: other, key } if other == option => {
                let mut pair = OsString::from(format!("{key}="));
                pair.push(given.values.last()?);
                Some(pair)
            }
            Now::Key { .. } | Now::Ignored(_) | Now::Renamed(_) => None,
        };
        self.0.iter().filter_map(pair).collect()
    }
}

/// A flag with its value.
pub(super) fn flag(option: &str, value: &OsStr) -> OsString {
    let mut flag = OsString::from(format!("--{option}="));
    flag.push(value);
    flag
}
