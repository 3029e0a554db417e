//! Engines in process, and clients by hand.

use kvasir_sim::engine::EngineConfig;
use kvasir_sim::engine::live::LiveConfig;
use kvasir_sim::engine::openai::client::call;
use kvasir_sim::engine::openai::training::train;
use kvasir_sim::engine::openai::{EngineServer, ServerConfig, Text};
use kvasir_sim::engine::timed::{StepModel, TransferModel};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::Duration;
use tokenizers::Tokenizer;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longest wait for anything; a test that reaches it fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Tokens per block.
pub(crate) const BLOCK: usize = 4;
pub(crate) const MODEL: &str = "m";

/// A tokenizer of the project's own words.
pub(crate) static TOKENIZER: LazyLock<Tokenizer> =
    LazyLock::new(|| train(include_str!("../../../README.md"), 1_000).expect("a tokenizer"));

/// A fast engine: a step takes 100 µs, a transfer 1 ms.
pub(crate) fn config() -> ServerConfig {
    let engine = EngineConfig {
        block_size: BLOCK,
        capacity_blocks: 1_000,
        topic: "kv-events".to_owned(),
        ..EngineConfig::default()
    };
    let model = StepModel {
        step: 100_000,
        prefill_token: 100,
        decode_sequence: 100,
        context_token: 0,
        ..StepModel::default()
    };
    let transfer = TransferModel { begin: 1_000_000, token: 100 };
    let live = LiveConfig {
        engine,
        model_name: MODEL.to_owned(),
        model,
        transfer,
        ..LiveConfig::default()
    };
    ServerConfig { live, answer_tokens: 20, ..ServerConfig::default() }
}

/// An engine with the tokenizer.
pub(crate) async fn start(config: ServerConfig) -> EngineServer {
    let text = Text::new(TOKENIZER.clone(), &Value::Null).expect("a text");
    EngineServer::start(config, text).await.expect("an engine")
}

/// The tokens of a text.
pub(crate) fn tokens(text: &str) -> Vec<u32> {
    TOKENIZER.encode(text, true).expect("tokens").get_ids().to_vec()
}

/// A whole answer: its status and JSON.
pub(crate) async fn post(at: SocketAddr, path: &str, body: impl Into<String>) -> (u16, Value) {
    let host = at.ip().to_string();
    let body = body.into();
    let answer = call(hyper::Method::POST, (&host, at.port()), path, body, PATIENCE).await;
    let (status, body) = answer.expect("an answer");
    (status.as_u16(), serde_json::from_slice(&body).unwrap_or(Value::Null))
}

/// The text of a page.
pub(crate) async fn get(at: SocketAddr, path: &str) -> (u16, String) {
    let host = at.ip().to_string();
    let answer = call(hyper::Method::GET, (&host, at.port()), path, "", PATIENCE).await;
    let (status, body) = answer.expect("an answer");
    (status.as_u16(), String::from_utf8(body.to_vec()).expect("text"))
}

/// A completion of token ids that succeeds.
pub(crate) async fn complete(at: SocketAddr, prompt: &[u32], max_tokens: usize) -> Value {
    let body = json!({"model": MODEL, "prompt": prompt, "max_tokens": max_tokens});
    let (status, answer) = post(at, "/v1/completions", body.to_string()).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

/// A client that reads a stream by itself.
pub(crate) struct Streaming {
    lines: BufReader<TcpStream>,
}

impl Streaming {
    /// Sends a request; the head of the answer is read.
    pub(crate) async fn post(at: SocketAddr, path: &str, body: &Value) -> Self {
        let mut stream = TcpStream::connect(at).await.expect("a connection");
        let body = body.to_string();
        let head =
            format!("POST {path} HTTP/1.1\r\nHost: m\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all((head + &body).as_bytes()).await.expect("a request");
        let mut streaming = Self { lines: BufReader::new(stream) };
        let status = streaming.line().await.expect("a status");
        assert_eq!(status, "HTTP/1.1 200 OK");
        while streaming.line().await.is_some_and(|line| !line.is_empty()) {}
        streaming
    }

    /// The next event; `None` for the end marker.
    pub(crate) async fn event(&mut self) -> Option<Value> {
        loop {
            let line = self.line().await.expect("the end marker");
            match line.strip_prefix("data: ") {
                Some("[DONE]") => return None,
                Some(data) => return Some(serde_json::from_str(data).expect("JSON")),
                None => {}
            }
        }
    }

    /// All events up to the end marker.
    pub(crate) async fn events(mut self) -> Vec<Value> {
        let mut events = Vec::new();
        while let Some(event) = self.event().await {
            events.push(event);
        }
        events
    }

    async fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read =
            timeout(PATIENCE, self.lines.read_line(&mut line)).await.expect("a line in time");
        (read.expect("a line") > 0).then(|| line.trim_end().to_owned())
    }
}

/// Waits until an engine has neither requests nor blocks in use, by its own metrics.
pub(crate) async fn until_idle(at: SocketAddr) {
    let idle = async {
        loop {
            let (_, text) = get(at, "/metrics").await;
            let names = ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"];
            if names.iter().all(|name| metric(&text, &format!("vllm:{name}")) == 0.0) {
                break;
            }
        }
    };
    timeout(PATIENCE, idle).await.expect("an idle engine");
}

/// The value of the first sample that begins so.
pub(crate) fn metric(text: &str, begin: &str) -> f64 {
    let line = text.lines().find(|line| line.starts_with(begin));
    let line = line.unwrap_or_else(|| panic!("no {begin} in {text}"));
    let value = line.rsplit(' ').next().and_then(|value| value.parse().ok());
    value.unwrap_or_else(|| panic!("no value in {line}"))
}
