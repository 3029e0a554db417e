//! Dynamo's server, `python -m dynamo.indexer`: JSON over HTTP.

use super::{Dump, Form, Latencies, MODEL, Programs, Subject, free_address, listening};
use super::http::Connection;
use crate::process::Server;
use crate::stream::{BLOCK_TOKENS, EVENT_BLOCKS, Prompt};
use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};
use std::path::Path;
use tokio::process::Command;
use tokio::time::Instant;

/// Value of the server's `--threads`.
const THREADS: &str = "2";
/// Counter of the events that reached the index.
const APPLIED: &str = "dynamo_kvrouter_kv_cache_events_applied";
/// A key that each block of a dump has exactly once.
const BLOCK_KEY: &[u8] = b"\"block_hash\":";

/// The server and the connection to it.
#[derive(Debug)]
pub struct Dynamo {
    server: Server,
    connection: Connection,
}

impl Dynamo {
    async fn post(&mut self, path: &str, body: &Value) -> Result<()> {
        let request = self.connection.request("POST", path, &body.to_string());
        self.connection.exchange(&request).await.map(drop)
    }

    fn query(&self, form: Form, prompt: &Prompt) -> Vec<u8> {
        let (path, body) = match form {
            Form::Hashes => {
                let hashes: Vec<i64> =
                    prompt.local_hashes.iter().map(|hash| hash.cast_signed()).collect();
                ("/query_by_hash", json!({ "model_name": MODEL, "block_hashes": hashes }))
            }
            Form::Tokens => ("/query", json!({ "model_name": MODEL, "token_ids": prompt.tokens })),
        };
        self.connection.request("POST", path, &body.to_string())
    }
}

/// Blocks of each holder, by worker and rank.
fn scores(answer: &Value) -> Result<&Map<String, Value>> {
    answer.get("scores").and_then(Value::as_object).context("scores")
}

/// True if the answer names exactly the prompt's holder, with all its tokens.
fn is_right(answer: &[u8], prompt: &Prompt) -> Result<bool> {
    names_holder(&serde_json::from_slice(answer)?, prompt)
}

fn names_holder(answer: &Value, prompt: &Prompt) -> Result<bool> {
    let scores = scores(answer)?;
    let holder = scores.get(&prompt.worker.to_string()).and_then(|ranks| ranks.get("0"));
    let tokens = holder.and_then(Value::as_u64);
    Ok(scores.len() == 1 && tokens == Some(prompt.tokens.len() as u64))
}

impl Subject for Dynamo {
    const NAME: &'static str = "dynamo";
    type Question = Vec<u8>;

    async fn start(programs: &Programs, log: &Path) -> Result<Self> {
        let address = free_address()?;
        let mut command = Command::new(&programs.dynamo_python);
        command
            .args(["-m", "dynamo.indexer", "--port", &address.port().to_string()])
            .args(["--threads", THREADS]);
        let mut server = Server::start(command, log)?;
        let connection = Connection::new(listening(&mut server, address, log).await?)?;
        Ok(Self { server, connection })
    }

    fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    async fn register(&mut self, worker: usize, port: u16) -> Result<()> {
        let body = json!({
            "instance_id": worker,
            "endpoint": format!("tcp://127.0.0.1:{port}"),
            "model_name": MODEL,
            "block_size": BLOCK_TOKENS,
        });
        self.post("/register", &body).await
    }

    async fn applied_pairs(&mut self) -> Result<u64> {
        let request = self.connection.request("GET", "/metrics", "");
        let text = std::str::from_utf8(self.connection.exchange(&request).await?)?;
        let counters = text.lines().filter(|line| line.starts_with(APPLIED));
        let applied = counters.filter(|line| line.contains("status=\"ok\""));
        let events = applied.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        Ok(events.sum::<u64>() * EVENT_BLOCKS)
    }

    async fn ask(&mut self, form: Form, prompts: &[Prompt], requests: usize) -> Result<Latencies> {
        let prepared: Vec<_> = prompts.iter().map(|prompt| self.query(form, prompt)).collect();
        let mut latencies = Latencies::default();
        for (prompt, request) in prompts.iter().zip(&prepared).cycle().take(requests) {
            let asked = Instant::now();
            let answer = self.connection.exchange(request).await?;
            latencies.each.push(asked.elapsed());
            latencies.wrong += u64::from(!is_right(answer, prompt)?);
        }
        Ok(latencies)
    }

    async fn ask_pipelined(
        &mut self,
        _form: Form,
        _prompts: &[Prompt],
        _requests: usize,
        _in_flight: usize,
    ) -> Result<Option<Latencies>> {
        Ok(None)
    }

    fn question(&self, prompt: &Prompt) -> Vec<u8> {
        self.query(Form::Hashes, prompt)
    }

    async fn holds(
        &mut self,
        question: &Vec<u8>,
        prompt: &Prompt,
        is_streamed: bool,
    ) -> Result<Option<bool>> {
        if is_streamed {
            return Ok(None);
        }
        let answer: Value = serde_json::from_slice(self.connection.exchange(question).await?)?;
        let is_held = names_holder(&answer, prompt)?;
        ensure!(is_held || scores(&answer)?.is_empty(), "other workers hold it: {answer}");
        Ok(Some(is_held))
    }

    async fn dump(&mut self) -> Result<Dump> {
        let request = self.connection.request("GET", "/dump", "");
        let started = Instant::now();
        let body = self.connection.exchange(&request).await?;
        let wall = started.elapsed();
        let pairs = body.windows(BLOCK_KEY.len()).filter(|window| *window == BLOCK_KEY).count();
        Ok(Dump { pairs: pairs as u64, bytes: body.len() as u64, wall })
    }

    async fn stop(self) -> Result<()> {
        self.server.stop().await
    }
}
