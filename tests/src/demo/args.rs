//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

/// Starts an indexer-server and a fleet of mock engines, drives them with a workload routed by
/// FindMatches and, on a second fleet, in turn, compares what the index says with what the engines
/// hold, and prints what happened.
#[derive(Debug, Clone, PartialEq, clap::Parser)]
#[command(name = "demo")]
pub struct Args {
    /// Number of engines in each of the two fleets.
    #[arg(long, default_value_t = 8, value_parser = in_range(1, 64))]
    pub engines: usize,
    /// Requests per pass [default: 4000 generated ones, or the whole trace].
    #[arg(long, value_name = "N", value_parser = in_range(1, 10_000_000))]
    pub requests: Option<usize>,
    /// Seed of all text, and of the generated workload. The same seed gives the same requests.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Trace in the Mooncake JSONL form to drive the engines with, instead of generated
    /// conversations.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Send requests at their times of arrival, so many times faster. Without it, each engine gets
    /// its next request as soon as one is done.
    #[arg(long, value_name = "FACTOR", value_parser = positive)]
    pub speed: Option<f64>,
    /// Requests under way per engine, unless --speed is given.
    #[arg(long, default_value_t = 4, value_parser = in_range(1, 256))]
    pub concurrency: usize,
    /// Physical blocks of each engine. The default is what a model of 8 billion parameters leaves
    /// on an 80 GB accelerator, half a million tokens, and small enough that engines evict.
    #[arg(long, default_value_t = 32_768, value_parser = in_range(1, 10_000_000))]
    pub capacity_blocks: usize,
    /// Tokens per block.
    #[arg(long, default_value_t = 16, value_parser = in_range(1, 1_024))]
    pub block_size: usize,
    /// Give each engine a second group with a sliding window of so many tokens.
    #[arg(long, value_name = "TOKENS", value_parser = in_range(1, 1 << 20))]
    pub sliding_window: Option<usize>,
    /// gRPC address of the server; another port is taken if it is in use.
    #[arg(long, default_value = "127.0.0.1:50051")]
    pub listen: SocketAddr,
    /// HTTP address of the server; another port is taken if it is in use.
    #[arg(long, default_value = "127.0.0.1:9091")]
    pub http_listen: SocketAddr,
    /// End when done, instead of keeping server and engines up until Ctrl-C.
    #[arg(long)]
    pub exit: bool,
    /// Write the report to a file, too, as JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Write some prompts of the run to a file, as token ids, a line each: for a gateway to try.
    #[arg(long, value_name = "FILE")]
    pub prompts: Option<PathBuf>,
}

fn in_range(least: usize, most: usize) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| match text.parse() {
        Ok(value) if (least..=most).contains(&value) => Ok(value),
        _ => Err(format!("expected a number from {least} to {most}")),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if f64::is_normal(value) && value > 0.0 => Ok(value),
        _ => Err("expected a number above 0".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_definition_is_sound() {
        Args::command().debug_assert();
    }

    /// `.ci/demo --help` prints this file, and builds nothing.
    #[test]
    fn the_help_that_is_printed_without_a_build_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/demo/help.txt");
        let fresh = Args::command().render_long_help().to_string();
        if std::env::var_os("KVASIR_REGENERATE").is_some() {
            std::fs::write(path, &fresh).expect("write the file");
        }
        let present = std::fs::read_to_string(path).expect("the file");
        assert_eq!(present, fresh, "run again with KVASIR_REGENERATE=1");
    }

    #[test]
    fn wrong_values_are_refused() {
        for wrong in [
            ["--engines", "0"],
            ["--speed", "-1"],
            ["--speed", "NaN"],
            ["--block-size", "x"],
            ["--capacity-blocks", "0"],
        ] {
            assert!(Args::try_parse_from(["demo"].into_iter().chain(wrong)).is_err(), "{wrong:?}");
        }
    }
}
