use super::{Config, Options, Settings};
use kvasir_process::config::{self, Action, ConfigError};
use std::ffi::OsString;

impl config::Options for Options {
    type Settings = Settings;
    const PROGRAM: &'static str = "indexer-server";
    const ABOUT: &'static str = "Standalone KV-cache index for LLM inference fleets: takes in engines' KV events and \
         answers, over gRPC, which worker holds which leading blocks of a prompt";
    const EXAMPLE: &'static str = "--worker id=vllm-0,model=MODEL,block-size=16,engine=vllm,\
         endpoint=tcp://HOST:5557,replay=tcp://HOST:5558";
    const CONFIG_VARIABLE: &'static str = "KVASIR_CONFIG";
    const DEFAULTS: Settings = Settings::DEFAULTS;
    const TABLES: &'static [&'static str] = &["worker"];

    fn over(self, settings: Settings) -> Settings {
        settings.overridden_by(self)
    }
}

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
