use clap::Args;
use kvasir_process::config;
use kvasir_process::options::ProcessOptions;
use kvasir_process::text::{ByteCount, Span, optional};
use kvasir_router::config::RoutingOptions;
use serde::Serialize;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Options, each available as a flag, an environment variable and a key of the file.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Options {
    /// Address of a worker's engine, WORKER=URL, such as gpu-0=http://10.0.0.7:8000. Overrides the worker's label http.
    /// Repeat the flag, or separate by commas, for more workers
    #[arg(long, value_name = "WORKER=URL", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub engine: Vec<String>,
    /// Tenant whose models the gateway serves. If not set: the tenant without a name
    #[arg(long, value_name = "TENANT", default_value = "")]
    pub tenant: String,
    /// Source of a prompt's tokens: file, render or none. file uses --tokenizer, render calls the engines or
    /// --render-url, and none routes by load alone. If not set: file with --tokenizer, else render
    #[arg(long, value_name = "SOURCE")]
    #[serde(serialize_with = "optional::serialize")]
    pub tokens: Option<TokenSource>,
    /// Tokenizer for all models, a tokenizer.json; MODEL=FILE for one model. A tokenizer_config.json beside it provides
    /// the chat template. Repeat the flag, or separate by semicolons, for more models
    #[arg(long, value_name = "FILE", value_delimiter = ';')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tokenizer: Vec<String>,
    /// URL of a server that renders prompts, such as vllm launch render. If not set: the engines render prompts
    #[arg(long, value_name = "URL")]
    pub render_url: Option<String>,
    /// Maximum wait for rendered tokens, after which load alone decides
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(5))]
    pub render_timeout: Span,
    /// Maximum memory for the cached tokens of earlier prompts
    #[arg(long, value_name = "BYTES", default_value_t = ByteCount(64 << 20))]
    pub token_cache_bytes: ByteCount,
    /// Maximum retries of a request on other workers, 0 to 16. The gateway retries if the worker fails before the first
    /// byte of its answer
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    pub retries: u32,
    /// Maximum wait for a connection to an engine
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(2))]
    pub connect_timeout: Span,
    /// Maximum wait for an engine's answer. For a stream: the wait for the first bytes; otherwise: for the complete
    /// answer
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(600))]
    pub answer_timeout: Span,
    /// Maximum time between two events of an engine's stream
    #[arg(long, value_name = "TIME", default_value_t = Span(Duration::from_secs(120)))]
    pub stall_timeout: Span,
    /// Maximum wait for the body of a client's request
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(30))]
    pub body_timeout: Span,
    /// Maximum size of a client's request
    #[arg(long, value_name = "BYTES", default_value_t = ByteCount(16 << 20))]
    pub body_bytes: ByteCount,
    /// Maximum number of concurrent requests. Further requests are refused
    #[arg(long, value_name = "COUNT", default_value_t = 4_096)]
    pub max_in_flight: usize,
    /// Maximum number of client connections. Further connections are closed immediately
    #[arg(long, value_name = "COUNT", default_value_t = 8_192)]
    pub max_connections: usize,
    /// How workers are found and chosen.
    #[command(flatten)]
    #[serde(flatten)]
    pub routing: RoutingOptions,
    /// Ports, logs and how the process stops.
    #[command(flatten)]
    #[serde(flatten)]
    pub process: ProcessOptions,
}

impl config::Options for Options {
    const PROGRAM: &'static str = "gateway";
    const ABOUT: &'static str = "Example gateway of Kvasir, the KV-cache index: an OpenAI-compatible front of a fleet that \
         sends each request to the worker that has most of its prompt cached and least to do";
    const EXAMPLE: &'static str = "--indexer http://127.0.0.1:50051";
    const VARIABLE_PREFIX: &'static str = "KVASIR_GATEWAY_";
    const DEFAULTS: &'static [(&'static str, &'static str)] =
        &[("listen", "127.0.0.1:8000"), ("http-listen", "127.0.0.1:9094")];
    const SHORT_HELP: &'static [&'static str] = &[
        "engine",
        "tokenizer",
        "tokens",
        "retries",
        "indexer",
        "mode",
        "overlap-score-weight",
        "kv-events",
        "replica-sync",
        "nats-url",
        "listen",
        "http-listen",
    ];
}

/// Source of a prompt's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenSource {
    /// Tokenizer files.
    File,
    /// The engines' render endpoint.
    Render,
    /// No tokens: load alone decides.
    None,
}

impl TokenSource {
    const ALL: [(Self, &'static str); 3] =
        [(Self::File, "file"), (Self::Render, "render"), (Self::None, "none")];
}

impl fmt::Display for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(source, _)| source == self);
        f.write_str(name.map_or("", |(_, name)| name))
    }
}

impl FromStr for TokenSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text);
        found
            .map(|(source, _)| *source)
            .ok_or_else(|| format!("{text:?} is not one of file, render, none"))
    }
}
