//! The command line of `mock-engine`.

use super::remote::LoadFailure;
use super::server::{ANSWER_TOKENS, BODY_BYTES_MAX, EngineServer, ServerConfig};
use super::text::Text;
use crate::engine::live::LiveConfig;
use crate::engine::mock::EngineConfig;
use crate::engine::publisher::Endpoints;
use crate::engine::scheduler::{RUNNING_REQUESTS_MAX, STEP_TOKENS_MAX};
use crate::engine::timed::model::{
    CACHE_TOKENS, CONTEXT_TOKEN_NANOS, DECODE_SEQUENCE_NANOS, PREFILL_TOKEN_NANOS, STEP_NANOS,
    TRANSFER_NANOS, TRANSFER_TOKEN_NANOS,
};
use crate::engine::timed::{Nanos, StepModel, TransferModel};
use crate::engine::wire::WireForm;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncReadExt, stdin};
use tokio::select;
use tokio::signal::unix::{SignalKind, signal};

/// Mock inference engine: an exact block cache without a model. With --listen, it serves OpenAI's API over HTTP and
/// publishes KV events over ZMQ like vLLM, at the speed of the step model. Once ready, it prints one line of JSON with
/// its addresses; SIGTERM or SIGINT stop it. Without --listen, it reads requests as lines of JSON from standard input,
/// and answers in no time; the handle for this mode is kvasir_sim::engine::EngineProcess.
///
/// The time of a step is the sum of its step, prefill, decode and context times. The defaults are assumptions that
/// resemble an accelerator with 80 GB and a model of 8 billion parameters; the sweep has the same defaults.
#[derive(Debug, Clone, PartialEq, clap::Parser)]
#[command(name = "mock-engine", verbatim_doc_comment)]
pub struct Args {
    /// Address of the HTTP port; port 0 chooses a free port.
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// ZMQ endpoint that publishes KV events; port 0 chooses a free port.
    #[arg(long, value_name = "ENDPOINT", default_value = "tcp://127.0.0.1:0")]
    pub events: String,
    /// ZMQ endpoint that replays events; port 0 chooses a free port.
    #[arg(long, value_name = "ENDPOINT", default_value = "tcp://127.0.0.1:0")]
    pub replay: String,
    /// ZMQ topic of the events.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub topic: String,
    /// Wire format of the events: map (vLLM 0.33) or array (vLLM 0.23).
    #[arg(long, value_name = "FORM", value_enum, default_value_t = Form::Map)]
    pub form: Form,
    /// Data-parallel rank in events and metrics.
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    pub dp_rank: u32,
    /// Seed of block names. Engines with equal seeds give equal blocks equal names.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub name_seed: u64,
    /// Number of batches retained for replays.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub buffer_batches: usize,
    /// Name of the model.
    #[arg(long, value_name = "NAME", default_value = "mock")]
    pub model: String,
    /// Tokenizer of the model (tokenizer.json). If not set: prompts must be token ids, and the text of answers is token
    /// ids.
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// File with the chat template (tokenizer_config.json) [default: the file beside the tokenizer, or a simple
    /// template].
    #[arg(long, value_name = "FILE", requires = "tokenizer")]
    pub tokenizer_config: Option<PathBuf>,
    /// Maximum number of tokens of a prompt with its answer [default: the size of the cache].
    #[arg(long, value_name = "TOKENS")]
    pub max_model_len: Option<usize>,
    /// Tokens of an answer if the client sets no limit.
    #[arg(long, value_name = "TOKENS", default_value_t = ANSWER_TOKENS)]
    pub answer_tokens: usize,
    /// Maximum size of a request body, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = BODY_BYTES_MAX)]
    pub body_bytes_max: usize,
    /// Maximum number of waiting and running requests. Further requests receive status 503.
    #[arg(long, value_name = "N", default_value_t = LiveConfig::default().requests_max)]
    pub requests_max: usize,
    /// Tokens per block.
    #[arg(long, value_name = "TOKENS", default_value_t = 16)]
    pub block_size: usize,
    /// Size of the cache, in tokens.
    #[arg(long, value_name = "TOKENS", default_value_t = CACHE_TOKENS)]
    pub cache_tokens: usize,
    /// Maximum number of tokens that a step computes.
    #[arg(long, visible_alias = "max-num-batched-tokens", value_name = "TOKENS", default_value_t = STEP_TOKENS_MAX)]
    pub step_tokens_max: usize,
    /// Maximum number of requests that run concurrently.
    #[arg(long, visible_alias = "max-num-seqs", value_name = "N", default_value_t = RUNNING_REQUESTS_MAX)]
    pub running_max: usize,
    /// Factor by which the engine is faster than the step model.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub time_scale: f64,
    /// Fixed time of a step, in nanoseconds.
    #[arg(long, value_name = "NS", default_value_t = STEP_NANOS)]
    pub step_ns: Nanos,
    /// Time per prompt token of a step, in nanoseconds.
    #[arg(long, value_name = "NS", default_value_t = PREFILL_TOKEN_NANOS)]
    pub prefill_token_ns: Nanos,
    /// Time per sequence that decodes in a step, in nanoseconds.
    #[arg(long, value_name = "NS", default_value_t = DECODE_SEQUENCE_NANOS)]
    pub decode_sequence_ns: Nanos,
    /// Time per token of context that a step reads, in nanoseconds.
    #[arg(long, value_name = "NS", default_value_t = CONTEXT_TOKEN_NANOS)]
    pub context_token_ns: Nanos,
    /// Fixed time of a transfer from another engine, in nanoseconds.
    #[arg(long, value_name = "NS", default_value_t = TRANSFER_NANOS)]
    pub transfer_ns: Nanos,
    /// Time per token of a transfer between engines, in nanoseconds.
    #[arg(long, value_name = "NS", default_value_t = TRANSFER_TOKEN_NANOS)]
    pub transfer_token_ns: Nanos,
    /// Host at which other engines reach this engine [default: the host of --listen].
    #[arg(long, value_name = "HOST")]
    pub transfer_host: Option<String>,
    /// How long blocks are kept for another engine, in real milliseconds.
    #[arg(long, value_name = "MS", default_value_t = LiveConfig::default().hold_timeout.as_millis() as u64)]
    pub hold_timeout_ms: u64,
    /// Treatment of a prompt whose blocks cannot be fetched from another engine.
    #[arg(long, value_name = "POLICY", value_enum, default_value_t = LoadFailure::Recompute)]
    pub load_failure: LoadFailure,
    /// Number of prefills for other engines to answer. Later prefills fail with status 500. If not set: all are
    /// answered.
    #[arg(long, value_name = "N")]
    pub fail_prefill_after: Option<u64>,
    /// Answer 403 at /render, like vLLM without --enable-scale-out.
    #[arg(long)]
    pub render_closed: bool,
    /// Exit also when standard input ends, as when the parent process exits.
    #[arg(long)]
    pub until_stdin_ends: bool,
}

/// Wire format of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// Maps.
    Map,
    /// Arrays.
    Array,
}

/// Addresses of an engine, as printed on its standard output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Addresses {
    /// Address of the HTTP port.
    pub http: SocketAddr,
    /// Address of the PUB socket, `tcp://host:port`.
    pub events: String,
    /// Address of the replay socket, `tcp://host:port`.
    pub replay: String,
}

// === impl Args ===

impl Args {
    /// Configuration of the engine for these options, with an HTTP port at `listen`.
    #[must_use]
    pub fn server(&self, listen: SocketAddr) -> ServerConfig {
        let engine = EngineConfig {
            block_size: self.block_size,
            capacity_blocks: self.cache_tokens.checked_div(self.block_size).unwrap_or(0),
            name_seed: self.name_seed,
            topic: self.topic.clone(),
            form: match self.form {
                Form::Map => WireForm::Map,
                Form::Array => WireForm::Array,
            },
            dp_rank: self.dp_rank,
            buffer_batches: self.buffer_batches,
            ..EngineConfig::default()
        };
        let model = StepModel {
            step: self.step_ns,
            prefill_token: self.prefill_token_ns,
            decode_sequence: self.decode_sequence_ns,
            context_token: self.context_token_ns,
            ..StepModel::default()
        };
        let live = LiveConfig {
            engine: engine.today(),
            model_name: self.model.clone(),
            model,
            transfer: TransferModel { begin: self.transfer_ns, token: self.transfer_token_ns },
            step_tokens_max: self.step_tokens_max,
            running_max: self.running_max,
            time_scale: self.time_scale,
            requests_max: self.requests_max,
            hold_timeout: Duration::from_millis(self.hold_timeout_ms),
        };
        ServerConfig {
            live,
            endpoints: Endpoints { live: self.events.clone(), replay: self.replay.clone() },
            listen,
            transfer_host: self.transfer_host.clone(),
            model_tokens_max: self.max_model_len,
            answer_tokens: self.answer_tokens,
            body_bytes_max: self.body_bytes_max,
            load_failure: self.load_failure,
            prefills_max: self.fail_prefill_after,
            is_render_closed: self.render_closed,
        }
    }

    /// Prints the addresses, then serves at `listen` until a signal.
    ///
    /// # Errors
    /// If an option is invalid, a file cannot be read, or a socket cannot be bound.
    pub async fn serve(&self, listen: SocketAddr) -> Result<()> {
        let text = match &self.tokenizer {
            Some(file) => Text::load(file, self.tokenizer_config.as_deref())?,
            None => Text::plain()?,
        };
        let mut terminate = signal(SignalKind::terminate()).context("listen to signals")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("listen to signals")?;
        let server = EngineServer::start(self.server(listen), text).await?;
        let endpoints = server.engine().endpoints();
        let events = endpoints.live.clone();
        let replay = endpoints.replay.clone();
        let addresses = Addresses { http: server.address(), events, replay };
        let mut line = serde_json::to_vec(&addresses)?;
        line.push(b'\n');
        let mut output = std::io::stdout();
        output.write_all(&line)?;
        output.flush()?;
        select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = end_of_input(), if self.until_stdin_ends => {}
        }
        server.stop().await
    }
}

/// Waits for the end of standard input; its content is ignored.
async fn end_of_input() {
    let mut input = stdin();
    let mut skipped = [0; 1_024];
    while input.read(&mut skipped).await.is_ok_and(|bytes| bytes > 0) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_definition_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_defaults_are_those_of_the_model() {
        let args = Args::parse_from(["mock-engine"]);
        let config = args.server(SocketAddr::from(([127, 0, 0, 1], 0)));
        let engine = config.live.engine.clone();
        let default = LiveConfig { engine, ..LiveConfig::default() };
        assert_eq!(config.live, default);
        assert_eq!(config.live.cache_tokens(), CACHE_TOKENS);
    }
}
