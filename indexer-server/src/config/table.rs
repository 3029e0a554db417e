use super::{Options, Settings};
use clap::{Args, Command};
use std::fmt::Write;

/// The table of all options as Markdown: what README shows and a test compares with it.
#[must_use]
pub fn options_table() -> String {
    let command = Options::augment_args(Command::new(""));
    let defaults = toml::Table::try_from(Settings::DEFAULTS).unwrap_or_default();
    let mut table =
        "| flag | environment | file | default | meaning |\n|---|---|---|---|---|\n".to_owned();
    for option in command.get_arguments() {
        let name = option.get_long().unwrap_or_default();
        let variable = option.get_env().map(|name| name.to_string_lossy()).unwrap_or_default();
        let default = defaults.get(name).map(|value| match value.as_str() {
            Some(text) => format!("`{text}`"),
            None => format!("`{value}`"),
        });
        let default = default.unwrap_or_default();
        let meaning = option.get_help().map(ToString::to_string).unwrap_or_default();
        let file = if name == "worker" { "[[worker]]" } else { name };
        // Writing to a String does not fail.
        let _infallible =
            writeln!(table, "| `--{name}` | `{variable}` | `{file}` | {default} | {meaning} |");
    }
    table
}
