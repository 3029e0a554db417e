use super::{Options, TokenSource};
use hyper::Uri;
use kvasir_engine_http::{EngineKeys, need_authority, read_address};
use kvasir_process::config::ConfigError;
use kvasir_process::options::{ProcessConfig, count, positive, unusable};
use kvasir_proto::limits::NAME_BYTES_MAX;
use kvasir_proto::types::WorkerId;
use kvasir_router::config::RoutingConfig;
use kvasir_tls::{Dialer, Token};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Maximum retries of one request.
const RETRIES_MAX: u32 = 16;

/// Checked options.
#[derive(Debug, Clone)]
pub struct Config {
    /// Ports, logs and shutdown.
    pub process: ProcessConfig,
    /// Discovery and choice of workers.
    pub routing: RoutingConfig,
    /// Tenant whose models the gateway serves.
    pub tenant: String,
    /// Source of tokens.
    pub tokens: TokensConfig,
    /// Connections to engines.
    pub engines: EngineConfig,
    /// Maximum retries of a request on other workers.
    pub retries: u32,
    /// Maximum wait for the body of a client's request.
    pub body_timeout: Duration,
    /// Maximum size of a client's request body.
    pub body_bytes_max: usize,
    /// Maximum concurrent requests.
    pub in_flight_max: usize,
    /// Maximum client connections.
    pub connections_max: usize,
}

/// Source of the prompts' tokens.
#[derive(Debug, Clone)]
pub struct TokensConfig {
    /// Kind of the source.
    pub source: TokenSource,
    /// Tokenizer files by model; "" for all models.
    pub files: BTreeMap<String, PathBuf>,
    /// Render server; `None` for the engines.
    pub render_url: Option<Uri>,
    /// Maximum wait for a rendered prompt.
    pub render_timeout: Duration,
    /// Maximum memory for the tokens of earlier prompts.
    pub cache_bytes: usize,
}

/// Addresses and timeouts of engines.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Configured addresses, by worker.
    pub addresses: BTreeMap<WorkerId, Uri>,
    /// Maximum wait for a connection.
    pub connect_timeout: Duration,
    /// Maximum wait for the first bytes of a stream, or for any other complete answer.
    pub answer_timeout: Duration,
    /// Maximum time between two events of a stream.
    pub stall_timeout: Duration,
    /// Keys for the engines' APIs.
    pub keys: EngineKeys,
    /// Authorities of engines at `https://` addresses.
    pub dialer: Dialer,
}

impl Config {
    /// Checks options.
    ///
    /// # Errors
    /// If an option is missing or invalid; the error names it.
    pub fn check(options: &Options) -> Result<Self, ConfigError> {
        let process = options.process.check()?;
        let timeouts = &options.timeouts.0;
        let limits = &options.limits.0;
        if limits.retries > RETRIES_MAX {
            let why = format!("is {}, at most {RETRIES_MAX}", limits.retries);
            return Err(ConfigError::invalid("limits: retries", why));
        }
        if options.tenant.len() > NAME_BYTES_MAX {
            let why = format!("must have at most {NAME_BYTES_MAX} bytes");
            return Err(ConfigError::invalid("tenant", why));
        }
        let mut routing = RoutingConfig::check(&options.routing, &process.dialer)?;
        let addresses = addresses(&options.engine, &process.dialer)?;
        routing.engines = addresses.iter().map(|(id, url)| (id.clone(), url.to_string())).collect();
        let tokens = tokens(options, &process.dialer)?;
        let key = options.engine_key_file.clone().map(|file| Token::open("engine-key-file", file));
        let key = key.transpose().map_err(unusable)?;
        let engines = EngineConfig {
            addresses,
            connect_timeout: positive("timeouts: connect", timeouts.connect)?,
            answer_timeout: positive("timeouts: answer", timeouts.answer)?,
            stall_timeout: positive("timeouts: stall", timeouts.stall)?,
            keys: EngineKeys::of_all(key),
            dialer: process.dialer.clone(),
        };
        Ok(Self {
            routing,
            process,
            tenant: options.tenant.clone(),
            tokens,
            engines,
            retries: limits.retries,
            body_timeout: positive("timeouts: body", timeouts.body)?,
            body_bytes_max: count("limits: body-bytes", limits.body_bytes.0)?,
            in_flight_max: count("limits: in-flight", limits.in_flight)?,
            connections_max: count("limits: connections", limits.connections)?,
        })
    }
}

/// Reads the addresses of engines, `WORKER=URL`, each worker once.
fn addresses(given: &[String], dialer: &Dialer) -> Result<BTreeMap<WorkerId, Uri>, ConfigError> {
    const FIELD: &str = "engine";
    let mut addresses = BTreeMap::new();
    for text in given {
        let refused = |why: String| ConfigError::invalid(FIELD, format!("{text:?}: {why}"));
        let Some((worker, url)) = text.split_once('=') else {
            return Err(refused("must be WORKER=URL".to_owned()));
        };
        let worker = WorkerId::new(worker).map_err(|error| refused(error.to_string()))?;
        let url = read_address(url).map_err(refused)?;
        need_authority(&url, dialer).map_err(refused)?;
        if addresses.insert(worker, url).is_some() {
            return Err(refused("this worker has an address already".to_owned()));
        }
    }
    Ok(addresses)
}

/// Checks how the gateway gets a prompt's tokens: from tokenizer files, or from a server.
fn tokens(options: &Options, dialer: &Dialer) -> Result<TokensConfig, ConfigError> {
    const FIELD: &str = "tokenizer";
    let mut files = BTreeMap::new();
    for text in &options.tokenizer {
        let (model, file) = text.split_once('=').unwrap_or(("", text));
        if file.is_empty() || files.insert(model.to_owned(), PathBuf::from(file)).is_some() {
            let why = format!("{text:?}: must be one FILE, or MODEL=FILE once for each model");
            return Err(ConfigError::invalid(FIELD, why));
        }
    }
    let default = if files.is_empty() { TokenSource::Render } else { TokenSource::File };
    let source = options.tokens.unwrap_or(default);
    if (source == TokenSource::File) == files.is_empty() {
        let why = format!("is {source}, which goes {} tokenizer", with(files.is_empty()));
        return Err(ConfigError::invalid("tokens", why));
    }
    let refused = |why| ConfigError::invalid("render-url", why);
    let render_url = options.render_url.as_deref().map(read_address).transpose();
    let render_url = render_url.map_err(refused)?;
    render_url.iter().try_for_each(|url| need_authority(url, dialer)).map_err(refused)?;
    Ok(TokensConfig {
        source,
        files,
        render_url,
        render_timeout: positive("timeouts: render", options.timeouts.0.render)?,
        cache_bytes: options.limits.0.token_cache_bytes.0,
    })
}

const fn with(is_with: bool) -> &'static str {
    if is_with { "with a" } else { "without a" }
}
