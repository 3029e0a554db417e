//! Options of `kvasir serve` and `kvasir check`: options of the gateway, of the index and of the engines.

use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args};
use indexer_server::config::{Config as IndexConfig, Options as IndexOptions};
use kvasir_discovery::{EngineSource, EngineSpec, distinct};
use kvasir_engine_http::need_authority;
use kvasir_gateway::config::{Config as GatewayConfig, Options as GatewayOptions};
use kvasir_process::config::{self, Action, ConfigError, Retired, defaults};
use kvasir_process::options::positive;
use kvasir_process::text::{ByteCount, Span};
use kvasir_tls::IN_PROCESS;
use serde::Serialize;
use std::env;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Maximum time between two listings of the workers: the index is in this process.
const DISCOVERY_INTERVAL: Duration = Duration::from_millis(250);
/// Where `kvasir check` would listen, if it did.
const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// Value of `--checkpoint-dir` for no checkpoints.
const OFF: &str = "off";

/// Options, each available as a flag, an environment variable and a key of the file.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
#[command(next_help_heading = "Engines")]
#[group(skip)]
pub struct Options {
    /// Engines: URLs of their OpenAI APIs, such as http://gpu-0:8000. After a comma, state what the engine does not
    /// answer itself: events=tcp://HOST:PORT (default: port 5557 of the engine's host, plus the rank; * is the engine's
    /// host), replay=tcp://HOST:PORT (default: the port after events), block-size=TOKENS, model=NAME, key-file=PATH
    /// (key of the engine's API)
    #[arg(value_name = "ENGINE")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub engines: Vec<String>,
    /// List of further engines that may change: file:PATH (one engine per line, as on the command line), dns:NAME:PORT
    /// (all addresses of a name), dns:_PORT._tcp.NAME (hosts and ports in SRV records) or
    /// kubernetes:[NAMESPACE/]SERVICE:PORT (pods of a service; PORT is the pods' port, or its name in the service).
    /// Facts about each engine, such as key-file=PATH, follow after commas. Files and DNS are read every 5 seconds and
    /// at SIGHUP, Kubernetes is watched
    #[arg(long, value_name = "SOURCE")]
    pub engines_from: Option<String>,
    /// Check each engine with two short requests before it is ready: do events arrive, do tokens and block size agree,
    /// does the engine reuse what the index predicts? Values: on, off
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, value_parser = BoolishValueParser::new(), hide_possible_values = true, default_value = "on")]
    pub self_check: bool,
    /// Folder for checkpoints of the index, or off. If not set: a folder in the user's state directory
    /// ($XDG_STATE_HOME, else ~/.local/state), named after the port
    #[arg(long, value_name = "FOLDER", help_heading = "Index")]
    pub checkpoint_dir: Option<PathBuf>,
    /// Address at which the index also serves gRPC, for routers and gateways in other processes. If not set: only this
    /// process reaches the index
    #[arg(long, value_name = "ADDRESS", help_heading = "Index")]
    pub listen_index: Option<SocketAddr>,
    /// Time after which an engine that does not answer is removed with its blocks
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(60), help_heading = "Index")]
    pub worker_timeout: Span,
    /// Memory limit of the index, such as 8GiB. At the limit, the index evicts the blocks stored longest ago. If not
    /// set: no limit
    #[arg(long, value_name = "BYTES", help_heading = "Index")]
    pub max_index_bytes: Option<ByteCount>,
    /// The gateway's options.
    #[command(flatten)]
    #[serde(flatten)]
    pub gateway: GatewayOptions,
}

impl config::Options for Options {
    const PROGRAM: &'static str = "kvasir serve";
    const ABOUT: &'static str = "Serves the OpenAI API in front of inference engines, and sends each request to the engine that has \
         most of its prompt cached and least to do. Index, router and gateway run in this process";
    const EXAMPLE: &'static str = "http://gpu-0:8000 http://gpu-1:8000";
    const VARIABLE_PREFIX: &'static str = "KVASIR_SERVE_";
    // `--engines-from` logs each problem with Kubernetes once.
    const DEFAULTS: &'static [(&'static str, &'static str)] = &[
        ("listen", "127.0.0.1:8080"),
        ("http-listen", "127.0.0.1:9095"),
        ("log-filter", "info,kube_client=off,kube_runtime=off"),
    ];
    const HIDDEN: &'static [&'static str] = &["engine", "engine-key-file", "indexer", "tenant"];
    const RETIRED: &'static [&'static [Retired]] = GatewayOptions::RETIRED;
    const SHORT_HELP: &'static [&'static str] = &[
        "engines-from",
        "self-check",
        "checkpoint-dir",
        "listen-index",
        "worker-timeout",
        "tokenizer",
        "tokens",
        "mode",
        "listen",
        "http-listen",
        "tls-cert",
        "insecure",
    ];
}

/// Options of `kvasir check`: those of `kvasir serve`, of which the check ignores what only serving needs.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[group(skip)]
pub struct CheckOptions {
    /// The options of `kvasir serve`.
    #[command(flatten)]
    #[serde(flatten)]
    pub serve: Options,
}

impl config::Options for CheckOptions {
    const PROGRAM: &'static str = "kvasir check";
    const ABOUT: &'static str = "Checks what kvasir serve needs of inference engines, and prints a table: do events arrive, do tokens \
         and block size agree, does each engine reuse what the index predicts? Each fault comes with its fix. The exit code is 1 if \
         an engine fails. Takes all options of kvasir serve";
    const EXAMPLE: &'static str = Options::EXAMPLE;
    const VARIABLE_PREFIX: &'static str = Options::VARIABLE_PREFIX;
    // The table names each fault. Warnings about options and variables are shown beside it.
    const DEFAULTS: &'static [(&'static str, &'static str)] = &[
        ("listen", "127.0.0.1:8080"),
        ("http-listen", "127.0.0.1:9095"),
        ("log-filter", "kvasir_process=warn"),
    ];
    const HIDDEN: &'static [&'static str] = &[
        "engine",
        "engine-key-file",
        "indexer",
        "tenant",
        "self-check",
        "checkpoint-dir",
        "listen-index",
        "worker-timeout",
        "max-index-bytes",
        "listen",
        "http-listen",
    ];
    const RETIRED: &'static [&'static [Retired]] = GatewayOptions::RETIRED;
    const SHORT_HELP: &'static [&'static str] =
        &["engines-from", "tokenizer", "tokens", "tls-ca", "log-filter"];
}

/// Checked options.
#[derive(Debug, Clone)]
pub struct Config {
    /// Engines on the command line.
    pub engines: Vec<EngineSpec>,
    /// Further engines.
    pub source: Option<EngineSource>,
    /// Whether engines are checked.
    pub self_check: bool,
    /// Time after which an engine that does not answer is removed.
    pub worker_timeout: Duration,
    /// The index.
    pub index: IndexConfig,
    /// Router and gateway.
    pub gateway: GatewayConfig,
}

/// Reads and checks the command line, the environment and the file.
///
/// # Errors
/// If an input cannot be read or parsed, or is invalid; the error names it.
pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Action<Config>, ConfigError> {
    config::read::<Options, Config>(arguments, Config::check)
}

/// Like [`read`], for `kvasir check`: always with the check, without ports and checkpoints of the index.
///
/// # Errors
/// See [`read`].
pub fn read_for_check(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<Action<Config>, ConfigError> {
    config::read::<CheckOptions, Config>(arguments, |options| {
        let checkpoint_dir = Some(PathBuf::from(OFF));
        let mut options = options.serve.clone();
        options.gateway.process.listen = LOOPBACK;
        options.gateway.process.http_listen = LOOPBACK;
        let options = Options { self_check: true, checkpoint_dir, listen_index: None, ..options };
        Config::check(&options)
    })
}

impl Config {
    /// Checks options.
    ///
    /// # Errors
    /// If an option is missing or invalid; the error names it.
    pub fn check(options: &Options) -> Result<Self, ConfigError> {
        let gateway = &options.gateway;
        let elsewhere = [
            ("engine", !gateway.engine.is_empty()),
            ("indexer", !gateway.routing.indexer.is_empty()),
            ("tenant", !gateway.tenant.is_empty()),
        ];
        if gateway.engine_key_file.is_some() {
            let why = "is an option of kvasir gateway: state the key with the engine, as URL,key-file=PATH";
            return Err(ConfigError::invalid("engine-key-file", why));
        }
        if let Some((field, _)) = elsewhere.into_iter().find(|(_, is_set)| *is_set) {
            let why = "is an option of kvasir gateway: kvasir serve has its own index, and takes engines as URLs";
            return Err(ConfigError::invalid(field, why));
        }
        let named = options.engines.iter().map(|text| {
            text.parse::<EngineSpec>()
                .map_err(|why| ConfigError::invalid("engine", format!("{text:?}: {why}")))
        });
        let engines = distinct(named.collect::<Result<_, _>>()?)
            .map_err(|why| ConfigError::invalid("engine", why))?;
        let source = options.engines_from.as_deref().map(str::parse).transpose();
        let source = source.map_err(|why| ConfigError::invalid("engines-from", why))?;
        if engines.is_empty() && source.is_none() {
            let why = "is required: the URL of an engine, such as http://gpu-0:8000";
            return Err(ConfigError::invalid("engine", why));
        }
        let mut gateway = gateway.clone();
        gateway.routing.indexer = vec![IN_PROCESS.to_owned()];
        let mut gateway = GatewayConfig::check(&gateway)?;
        for spec in &engines {
            let checked = need_authority(&spec.url, &gateway.process.dialer);
            checked.map_err(|why| ConfigError::invalid("engine", why))?;
        }
        let routing = &mut gateway.routing;
        routing.discovery_interval = routing.discovery_interval.min(DISCOVERY_INTERVAL);
        Ok(Self {
            engines,
            source,
            self_check: options.self_check,
            worker_timeout: positive("worker-timeout", options.worker_timeout)?,
            index: index(options)?,
            gateway,
        })
    }
}

/// The configuration of the index: defaults, except for the options of this program.
fn index(options: &Options) -> Result<IndexConfig, ConfigError> {
    let mut index: IndexOptions = defaults()?;
    index.worker_timeout = options.worker_timeout;
    index.max_index_bytes = options.max_index_bytes;
    index.checkpoint_dir = checkpoint_dir(options)?;
    let mut process = options.gateway.process.clone();
    if let Some(listen) = options.listen_index {
        process.listen = listen;
    }
    index.process = process;
    let mut config = IndexConfig::check(&index).map_err(of_index)?;
    config.grpc.listen = options.listen_index;
    Ok(config)
}

/// The index's address is another option here.
fn of_index(error: ConfigError) -> ConfigError {
    if let ConfigError::Invalid { field, problem } = &error
        && field == "listen"
    {
        return ConfigError::invalid("listen-index", problem);
    }
    error
}

/// Folder of the checkpoints: the stated folder, or a folder in the user's state directory. `None`: no checkpoints.
fn checkpoint_dir(options: &Options) -> Result<Option<PathBuf>, ConfigError> {
    match &options.checkpoint_dir {
        Some(folder) if folder.as_os_str() == OFF => return Ok(None),
        Some(folder) => return Ok(Some(folder.clone())),
        None => {}
    }
    let folder = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")));
    let Some(state) = state else {
        let why =
            "is needed, because neither XDG_STATE_HOME nor HOME is set: name a folder, or off";
        return Err(ConfigError::invalid("checkpoint-dir", why));
    };
    let port = options.gateway.process.listen.port();
    Ok(Some(state.join("kvasir").join(format!("serve-{port}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(flags: &[&str]) -> Result<Config, String> {
        let arguments = ["kvasir serve"].iter().chain(flags).map(OsString::from);
        match read(arguments) {
            Ok(Action::Run(config, _)) => Ok(*config),
            Ok(Action::Print(text)) => Err(text),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn urls_of_engines_are_enough() {
        let config = check(&["http://a:1", "b:2,block-size=16"]).expect("engines");
        assert_eq!(config.engines.len(), 2);
        assert!(config.self_check);
        assert_eq!(config.gateway.process.listen.to_string(), "127.0.0.1:8080");
        assert_eq!(config.gateway.routing.shards, [[IN_PROCESS]]);
        assert_eq!(config.index.grpc.listen, None);
        let folder = config.index.checkpoints.expect("on by default").folder;
        assert!(folder.ends_with("kvasir/serve-8080"), "{folder:?}");
    }

    #[test]
    fn a_switch_takes_no_engine_as_its_value() {
        let config = check(&["--listen=0.0.0.0:8080", "--insecure", "http://a:1"]);
        assert_eq!(config.expect("an engine").engines.len(), 1);
        let error = check(&["http://a:1", "--listen=0.0.0.0:8080", "--insecure=false"]);
        assert!(error.expect_err("no TLS").contains("0.0.0.0:8080"));
    }

    #[test]
    fn the_check_names_itself_and_hides_what_only_serving_needs() {
        let arguments = |flags: &[&str]| {
            ["kvasir check"].iter().chain(flags).map(OsString::from).collect::<Vec<_>>()
        };
        let Ok(Action::Print(help)) = read_for_check(arguments(&["--help"])) else {
            panic!("no help")
        };
        assert!(help.contains("Usage: kvasir check"), "{help}");
        for hidden in ["--listen", "--checkpoint-dir", "--worker-timeout"] {
            assert!(!help.contains(&format!("{hidden} ")), "{hidden}: {help}");
        }
        // The command line of kvasir serve works: no port is opened.
        let flags = ["http://a:1", "--listen=0.0.0.0:8080", "--self-check=off"];
        let Ok(Action::Run(config, _)) = read_for_check(arguments(&flags)) else {
            panic!("refused")
        };
        assert!(config.self_check && config.index.checkpoints.is_none());
        assert_eq!(config.gateway.process.log.filter, "kvasir_process=warn");
    }

    #[test]
    fn options_change_the_index() {
        let config = check(&[
            "a:1",
            "--self-check=off",
            "--checkpoint-dir=off",
            "--listen-index=127.0.0.1:50051",
            "--worker-timeout=5s",
        ]);
        let config = config.expect("valid");
        assert!(!config.self_check && config.index.checkpoints.is_none());
        assert_eq!(config.index.grpc.listen.map(|at| at.port()), Some(50_051));
        assert_eq!(config.index.ingest.worker_timeout, Duration::from_secs(5));
    }

    #[test]
    fn errors_name_the_option_and_the_fix() {
        for (flags, part) in [
            (&[][..], "engine: is required: the URL of an engine"),
            (&["a"], "engine: \"a\": http://a/ has no port"),
            (&["a:1", "a:1"], "engine: a:1 is listed twice"),
            (&["--insecure", "false", "a:1"], "write it with its option: --OPTION=false"),
            (&["https://a:1"], "engine: https://a:1/ needs the certificate of the authority"),
            (&["a:1", "--indexer=http://h:1"], "indexer: is an option of kvasir gateway"),
            (&["a:1", "--engine-key-file=/k"], "engine-key-file: is an option of kvasir gateway"),
            (
                &["a:1", "--engines-from=x"],
                "engines-from: \"x\" must be file:PATH, dns:NAME:PORT, dns:_PORT._tcp.NAME for SRV records, or",
            ),
            (
                &["a:1", "--listen=0.0.0.0:8080"],
                "listen: 0.0.0.0:8080 can be reached from other machines",
            ),
            (&["a:1", "--listen-index=0.0.0.0:1"], "listen-index: 0.0.0.0:1 can be reached"),
            (&["a:1", "--worker-timeout=0s"], "worker-timeout: is 0s"),
        ] {
            let error = check(flags).expect_err("refused");
            assert!(error.contains(part), "{flags:?}: {error}");
        }
    }
}
