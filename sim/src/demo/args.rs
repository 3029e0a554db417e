//! The command line of the demo.

use std::net::SocketAddr;
use std::path::PathBuf;

/// Runs an indexer-server with two fleets of mock engines and checks the index. FindMatches chooses the engine of each
/// request in the first fleet; in the second fleet, engines take turns. The demo then compares the index with the
/// engines' caches.
#[derive(Debug, Clone, PartialEq, clap::Parser)]
#[command(name = "demo")]
pub struct Args {
    /// Number of engines in each of the two fleets.
    #[arg(long, default_value_t = 8, value_parser = in_range(1, 64))]
    pub engines: usize,
    /// Requests per pass [default: 4000 generated requests, or the complete trace].
    #[arg(long, value_name = "N", value_parser = in_range(1, 10_000_000))]
    pub requests: Option<usize>,
    /// Seed of all text and of the generated workload. Equal seeds give equal requests.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Trace in the Mooncake JSONL form [default: generated conversations].
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Replay arrival times, this many times faster than recorded. If not set: each engine receives its next request
    /// when a request ends.
    #[arg(long, value_name = "FACTOR", value_parser = positive)]
    pub speed: Option<f64>,
    /// Active requests per engine. Without effect if --speed is set.
    #[arg(long, default_value_t = 4, value_parser = in_range(1, 256))]
    pub concurrency: usize,
    /// Capacity of each engine in blocks. The default is the cache of a model of 8 billion parameters on an 80 GB
    /// accelerator, half a million tokens: small enough that engines evict.
    #[arg(long, default_value_t = 32_768, value_parser = in_range(1, 10_000_000))]
    pub capacity_blocks: usize,
    /// Tokens per block.
    #[arg(long, default_value_t = 16, value_parser = in_range(1, 1_024))]
    pub block_size: usize,
    /// Tokens in the sliding window of each engine's second KV cache group. If not set: one group.
    #[arg(long, value_name = "TOKENS", value_parser = in_range(1, 1 << 20))]
    pub sliding_window: Option<usize>,
    /// gRPC address of the server. If the port is in use: another port.
    #[arg(long, default_value = "127.0.0.1:50051")]
    pub listen: SocketAddr,
    /// HTTP address of the server. If the port is in use: another port.
    #[arg(long, default_value = "127.0.0.1:9091")]
    pub http_listen: SocketAddr,
    /// Also print all measurements, the comparison of each engine, and counters. --report writes them as JSON.
    #[arg(long, short)]
    pub verbose: bool,
    /// Exit when done. If not set: server and engines run until Ctrl-C.
    #[arg(long)]
    pub exit: bool,
    /// File for the report as JSON, besides the printed report.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// File for some prompts of the run, to try with a gateway. Each line has the token ids of one prompt.
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

    /// `scripts/demo --help` prints this file without building the demo.
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
