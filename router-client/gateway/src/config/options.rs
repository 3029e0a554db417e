use super::settings::{Limits, Timeouts};
use clap::Args;
use kvasir_process::config::{self, Retired};
use kvasir_process::options::{NATS_RETIRED, PROCESS_RETIRED, ProcessOptions};
use kvasir_process::text::{KeyValues, PAIRS, optional};
use kvasir_router::config::{ROUTING_RETIRED, RoutingOptions};
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Options, each available as a flag, an environment variable and a key of the file.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
#[command(next_help_heading = "Gateway")]
pub struct Options {
    /// Address of a worker's engine, WORKER=URL, such as gpu-0=http://10.0.0.7:8000. Overrides the worker's label http.
    /// Repeat the flag, or separate by commas, for more workers
    #[arg(long, value_name = "WORKER=URL", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub engine: Vec<String>,
    /// File with the key of the engines' APIs (vLLM --api-key), the same for all engines. The gateway sends the key to
    /// every engine that the index lists, and to --render-url. The file is read again when it changes
    #[arg(long, value_name = "FILE")]
    pub engine_key_file: Option<PathBuf>,
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
    /// Timeouts of engines and clients. connect=: for a connection to an engine. answer=: for the first bytes of an
    /// engine's stream, or for any other complete answer. stall=: between two events of a stream. body=: for the body
    /// of a client's request. render=: for rendered tokens, after which load alone decides
    #[arg(long, value_name = PAIRS, default_value_t)]
    pub timeouts: KeyValues<Timeouts>,
    /// Limits of requests, connections and memory. in-flight=: concurrent requests; more are refused. connections=: of
    /// clients; more are closed immediately. body-bytes=: size of a request. token-cache-bytes=: memory for tokens of
    /// earlier prompts. retries= (0 to 16): attempts on other workers if a worker fails before the first byte of its
    /// answer
    #[arg(long, value_name = PAIRS, default_value_t)]
    pub limits: KeyValues<Limits>,
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
    const RETIRED: &'static [&'static [Retired]] =
        &[PROCESS_RETIRED, NATS_RETIRED, ROUTING_RETIRED, GATEWAY_RETIRED];
    const SHORT_HELP: &'static [&'static str] = &[
        "engine",
        "tokenizer",
        "tokens",
        "limits",
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

const GATEWAY_RETIRED: &[Retired] = &[
    Retired::key("connect-timeout", "timeouts", "connect"),
    Retired::key("answer-timeout", "timeouts", "answer"),
    Retired::key("stall-timeout", "timeouts", "stall"),
    Retired::key("body-timeout", "timeouts", "body"),
    Retired::key("render-timeout", "timeouts", "render"),
    Retired::key("max-in-flight", "limits", "in-flight"),
    Retired::key("max-connections", "limits", "connections"),
    Retired::key("body-bytes", "limits", "body-bytes"),
    Retired::key("token-cache-bytes", "limits", "token-cache-bytes"),
    Retired::key("retries", "limits", "retries"),
];

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
