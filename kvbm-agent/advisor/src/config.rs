//! Configuration from flags, then environment, then file, then defaults. All options are checked before any port opens.

use crate::hook::HookConfig;
use crate::state::Rules;
use clap::{ArgAction, Args};
use kvasir_process::config::{self, Action, ConfigError, read as read_options};
use kvasir_process::http::HttpConfig;
use kvasir_process::nats::NatsServers;
use kvasir_process::options::{EntryOptions, NatsAccessOptions, positive};
use kvasir_process::telemetry::{LogConfig, LogFormat};
use kvasir_process::text::{self, ServerUrl, Span, SpanOrOff};
use serde::Serialize;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Upper limit of `--blocks-max`.
const BLOCKS_MAX: usize = 100_000_000;
/// Upper limit of `--advice-max`.
const ADVICE_MAX: usize = 10_000;
/// Upper limit of `--hooks-max`.
const HOOKS_MAX: usize = 256;
/// Maximum age of a connection to the side port, so that a removed identity loses access.
const CONNECTION_AGE: Span = Span::seconds(1_800);

/// Options, each available as a flag, an environment variable and a key of the file.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Options {
    /// URL of the NATS server on which agents publish storage events. Separate several servers of a cluster by commas.
    /// If not set: the variable NATS_SERVER, else nats://127.0.0.1:4222
    #[arg(long, hide_env_values = true, hide_default_value = true, value_name = "URL")]
    pub nats_url: Option<ServerUrl>,
    /// Credentials for NATS, and the prefix of all subjects and stored names.
    #[command(flatten)]
    #[serde(flatten)]
    pub access: NatsAccessOptions,
    /// Maximum number of blocks to track, 1 to 100,000,000. The limit on copies is four times as high. The advisor
    /// requests further blocks again once there is room
    #[arg(long, value_name = "COUNT", default_value_t = 1_000_000)]
    pub blocks_max: usize,
    /// Time without a message after which a location's blocks expire. Set it to several times the agents'
    /// --storage-batch-interval
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(60))]
    pub worker_timeout: Span,
    /// Minimum time between two image requests to one agent. An image lists all blocks of the agent
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(1))]
    pub ask_interval: Span,
    /// Time between two rounds of advice
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(60))]
    pub advice_interval: Span,
    /// Maximum pieces of advice of each kind per round, 1 to 10,000. The most urgent come first
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    pub advice_max: usize,
    /// Minimum time before a piece of advice is repeated
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(600))]
    pub repeat_after: Span,
    /// Classes of locations, fastest first, separated by commas. The class is the part of a location's name before the
    /// colon
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "device,host,disk,volume"
    )]
    pub location_order: Vec<String>,
    /// Number of recent uses from which a block is hot. A hot block belongs in the fastest location. A use is a STORE
    /// of the block, or of a block that continues it
    #[arg(long, value_name = "NUMBER", default_value_t = 4.0)]
    pub hot_uses: f64,
    /// Time after which the weight of a block's use is halved
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(600))]
    pub half_life: Span,
    /// Time without use after which a block is cold. A cold block should move to a slower location
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(1_800))]
    pub cold_after: Span,
    /// Maximum number of locations with copies of one block. A named volume counts as one location
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    pub copies_max: usize,
    /// Program to run for each piece of advice. It receives the advice as JSON on standard input. If not set: advice is
    /// only printed
    #[arg(long, value_name = "FILE")]
    pub hook: Option<PathBuf>,
    /// Maximum run time of the --hook program, which is then killed
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(30))]
    pub hook_timeout: Span,
    /// Maximum number of --hook programs that run concurrently, 1 to 256
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    pub hooks_max: usize,
    /// Address of the HTTP side port: /metrics, /livez, /readyz and /tree
    #[arg(long, value_name = "ADDRESS", required = false)]
    pub http_listen: SocketAddr,
    /// Access control of the HTTP side port.
    #[command(flatten)]
    #[serde(flatten)]
    pub entry: EntryOptions,
    /// DANGEROUS: listens without TLS on an address that other machines reach. The process logs a warning at each start
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", default_value_t = false)]
    pub insecure: bool,
    /// Format of log lines on standard error: text or json
    #[arg(long, value_name = "FORMAT", default_value_t = LogFormat::Text)]
    #[serde(serialize_with = "text::serialize")]
    pub log_format: LogFormat,
    /// Log filter: a level, or module=level pairs separated by commas
    #[arg(long, value_name = "FILTER", default_value = "info")]
    pub log_filter: String,
    /// Maximum time for a graceful shutdown, after which the process exits. With --hook, set more than --hook-timeout
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(35))]
    pub drain_timeout: Span,
}

impl config::Options for Options {
    const PROGRAM: &'static str = "storage-advisor";
    const ABOUT: &'static str = "Example subscriber to the storage events of Kvasir's agents: knows which KV blocks are \
         stored where, and prints advice on promotion, demotion and compaction, one line of JSON each";
    const EXAMPLE: &'static str = "--nats-url nats://127.0.0.1:4222";
    const VARIABLE_PREFIX: &'static str = "KVASIR_ADVISOR_";
    const DEFAULTS: &'static [(&'static str, &'static str)] = &[("http-listen", "127.0.0.1:9095")];
}

/// Checked options.
#[derive(Debug, Clone)]
pub struct Config {
    /// Log format and filter.
    pub log: LogConfig,
    /// Address and access control of the HTTP side port.
    pub http: HttpConfig,
    /// NATS servers on which agents publish.
    pub servers: NatsServers,
    /// Maximum number of tracked blocks.
    pub blocks_max: usize,
    /// Time without a message after which a location's blocks expire.
    pub worker_timeout: Duration,
    /// Minimum time between two image requests to one agent.
    pub ask_interval: Duration,
    /// Time between two rounds of advice.
    pub advice_interval: Duration,
    /// Minimum time before a piece of advice is repeated.
    pub repeat_after: Duration,
    /// Time after which the weight of a use is halved.
    pub half_life: Duration,
    /// Thresholds of the advice.
    pub rules: Rules,
    /// Program to run for each piece of advice. `None`: advice is only printed.
    pub hook: Option<HookConfig>,
    /// Maximum time for a graceful shutdown.
    pub drain_timeout: Duration,
}

/// Reads and checks the command line, the environment and the file.
///
/// # Errors
/// If a value cannot be read, parsed or used. The error names it.
pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Action<Config>, ConfigError> {
    read_options::<Options, Config>(arguments, Config::check)
}

impl Config {
    /// Checks options.
    ///
    /// # Errors
    /// If an option is missing or cannot be used. The error names it.
    pub fn check(options: &Options) -> Result<Self, ConfigError> {
        let listen = options.http_listen;
        let age = SpanOrOff(Some(CONNECTION_AGE));
        let guard = options.entry.guard(&[("http-listen", listen)], options.insecure, age)?;
        let format = options.log_format;
        let filter = options.log_filter.clone();
        Ok(Self {
            log: LogConfig { format, filter, otlp_endpoint: None },
            http: HttpConfig { listen, guard },
            servers: options.access.servers(options.nats_url.as_ref())?,
            blocks_max: within("blocks-max", options.blocks_max, BLOCKS_MAX)?,
            worker_timeout: positive("worker-timeout", options.worker_timeout)?,
            ask_interval: positive("ask-interval", options.ask_interval)?,
            advice_interval: positive("advice-interval", options.advice_interval)?,
            repeat_after: options.repeat_after.0,
            half_life: positive("half-life", options.half_life)?,
            rules: rules(options)?,
            hook: hook(options)?,
            drain_timeout: positive("drain-timeout", options.drain_timeout)?,
        })
    }
}

fn rules(options: &Options) -> Result<Rules, ConfigError> {
    let order = options.location_order.clone();
    let mut seen = BTreeSet::new();
    if order.iter().any(|name| name.is_empty() || name.contains(':') || !seen.insert(name)) {
        let why = "must have classes such as host, without :, each once";
        return Err(ConfigError::invalid("location-order", why));
    }
    if !options.hot_uses.is_finite() || options.hot_uses <= 0.0 {
        let why = format!("is {}, must be more than 0", options.hot_uses);
        return Err(ConfigError::invalid("hot-uses", why));
    }
    Ok(Rules {
        order,
        hot_uses: options.hot_uses,
        cold_after: options.cold_after.0,
        copies_max: within("copies-max", options.copies_max, usize::MAX)?,
        advice_max: within("advice-max", options.advice_max, ADVICE_MAX)?,
    })
}

fn hook(options: &Options) -> Result<Option<HookConfig>, ConfigError> {
    let timeout = positive("hook-timeout", options.hook_timeout)?;
    let running_max = within("hooks-max", options.hooks_max, HOOKS_MAX)?;
    let hook = |program: PathBuf| HookConfig { program, timeout, running_max };
    Ok(options.hook.clone().map(hook))
}

fn within(field: &str, count: usize, max: usize) -> Result<usize, ConfigError> {
    if (1..=max).contains(&count) {
        return Ok(count);
    }
    Err(ConfigError::invalid(field, format!("is {count}, must be 1 to {max}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(arguments: &[&str]) -> Result<Action<Config>, ConfigError> {
        let program = std::iter::once("storage-advisor").chain(arguments.iter().copied());
        read(program.map(OsString::from))
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let url = "--nats-url=nats://127.0.0.1:4222";
        assert!(matches!(check(&[url]), Ok(Action::Run(_))));
        assert!(matches!(check(&[]), Ok(Action::Run(_))), "NATS has a default address");
        for (arguments, expected) in [
            (&["--nats-url=a:1"][..], "nats-url: a server must start with nats://"),
            (&[url, "--http-listen=0.0.0.0:1"], "http-listen: 0.0.0.0:1 can be reached"),
            (&[url, "--tls-cert=a"], "tls-key: is required with tls-cert"),
            (&[url, "--blocks-max=0"], "blocks-max: is 0, must be 1 to"),
            (&[url, "--location-order=host,host"], "location-order: must have classes"),
            (&[url, "--hot-uses=NaN"], "hot-uses: is NaN, must be more than 0"),
            (&[url, "--hook-timeout=0s"], "hook-timeout: is 0s, must be longer"),
        ] {
            let error = check(arguments).expect_err(expected).to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
