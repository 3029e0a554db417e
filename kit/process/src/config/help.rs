//! The texts of `-h`, with the options that matter most, and of `--help`, with all options.

use super::{CONFIG, Options};
use clap::{Arg, Command};

/// Width of the help, in characters.
const WIDTH: usize = 100;
/// Indentation of an option's text in `--help`, in characters.
const INDENT: usize = 10;

/// Adds the help's texts to the command: `-h` has the first sentence of each option in [`Options::SHORT_HELP`].
pub(super) fn with_help<O: Options>(command: Command) -> Command {
    let sources = wrap(
        "Give each option as a flag, as an environment variable or in the config file. A flag wins over the variable, \
         and the variable wins over the file.",
        WIDTH,
    );
    let example = format!("Example:\n  {} {}", O::PROGRAM, O::EXAMPLE);
    command
        .about(wrap(O::ABOUT, WIDTH))
        .mut_args(|option| {
            let is_short = |name| name == CONFIG || O::SHORT_HELP.contains(&name);
            let is_short = option.get_long().is_none_or(is_short);
            texts(option).hide_short_help(!is_short)
        })
        .after_help(format!("{example}\n\n--help shows all options."))
        .after_long_help(format!("{sources}\n\n{example}"))
}

/// The help for `-h`: without environment variables, whose names follow from the options' names.
pub(super) fn short_help(command: Command) -> String {
    let without_variable = |option: Arg| {
        if option.get_env().is_some() { option.hide_env(true) } else { option }
    };
    command.mut_args(without_variable).render_help().to_string()
}

/// Sets the help texts of an option: `-h` shows its first sentence, `--help` all.
fn texts(option: Arg) -> Arg {
    let defaults = option.get_default_values();
    // A default without text would be shown as empty brackets. Flags without a value have none.
    let is_blank = !defaults.is_empty() && defaults.iter().all(|value| value.is_empty());
    let option = if is_blank { option.hide_default_value(true) } else { option };
    let Some(help) = option.get_help().map(ToString::to_string) else { return option };
    let first = help.split(". ").next().unwrap_or_default().trim_end_matches('.').to_owned();
    option.help(first).long_help(wrap(&help, WIDTH - INDENT))
}

/// Breaks lines between words, so that they have at most `width` characters.
fn wrap(text: &str, width: usize) -> String {
    let mut wrapped = String::new();
    let mut length = 0;
    for word in text.split_whitespace() {
        let letters = word.chars().count();
        if length > 0 {
            let fits = length + 1 + letters <= width;
            wrapped.push(if fits { ' ' } else { '\n' });
            length = if fits { length + 1 } else { 0 };
        }
        wrapped.push_str(word);
        length += letters;
    }
    wrapped
}
