//! `kvasir serve` and `kvasir check`: index, router and gateway in one process, before engines that describe themselves.

use crate::fleet::{BLOCK_SIZE, FAST, MODEL, PATIENCE, cached, engine, prompt, tokenizer, until};
use anyhow::{Context, Result, ensure};
use hyper::Method;
use kvasir_proto::pb;
use kvasir_sim::client;
use kvasir_sim::demo::metrics;
use kvasir_sim::engine::EngineConfig;
use kvasir_sim::engine::live::LiveConfig;
use kvasir_sim::engine::openai::client::call;
use kvasir_sim::engine::openai::{EngineServer, ServerConfig, Text};
use kvasir_sim::server::{Addresses, Server, binary_of};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Output;
use tokio::process::Command;

const QUICK: &[&str] =
    &["--timing", "discovery-interval=100ms", "--worker-health", "slow-start=0s"];

/// Engines that publish at ports of their own, and `kvasir serve` before them.
struct Served {
    engines: Vec<EngineServer>,
    kvasir: Server,
    state: tempfile::TempDir,
}

pub async fn start_engine(config: ServerConfig) -> Result<EngineServer> {
    EngineServer::start(config, Text::load(&tokenizer(), None)?).await
}

/// An engine as a user names it: these engines do not use the usual ports.
pub fn spec(engine: &EngineServer) -> String {
    let sockets = engine.engine().endpoints();
    let replay = sockets.replay.clone();
    format!("http://{},events={},replay={replay}", engine.address(), sockets.live)
}

impl Served {
    async fn start(configs: Vec<ServerConfig>, flags: &[&str]) -> Result<Self> {
        let mut engines = Vec::new();
        for config in configs {
            engines.push(start_engine(config).await?);
        }
        let specs: Vec<_> = engines.iter().map(spec).collect();
        let specs: Vec<_> = specs.iter().map(String::as_str).collect();
        let state = tempfile::tempdir()?;
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let flags = [&specs, flags].concat();
        let kvasir = serve(state.path(), Addresses { grpc: any, http: any }, &flags).await?;
        Ok(Self { engines, kvasir, state })
    }

    async fn post(&self, path: &str, body: &Value) -> Result<(u16, Value)> {
        let at = self.kvasir.addresses.grpc;
        let host = at.ip().to_string();
        let answer = call(Method::POST, (&host, at.port()), path, body.to_string(), PATIENCE).await;
        let (status, body) = answer.with_context(|| self.kvasir.output())?;
        Ok((status.as_u16(), serde_json::from_slice(&body)?))
    }

    async fn complete(&self, text: &str) -> Result<Value> {
        let body = json!({"model": MODEL, "prompt": text, "max_tokens": 4});
        let (status, answer) = self.post("/v1/completions", &body).await?;
        ensure!(status == 200, "{status}: {answer}\n{}", self.kvasir.output());
        Ok(answer)
    }

    async fn stop(mut self) -> Result<()> {
        self.kvasir.stop().await;
        for engine in self.engines {
            engine.stop().await?;
        }
        Ok(())
    }
}

/// Starts `kvasir serve` with a folder for its state, and waits until it is ready.
pub async fn serve(state: &Path, at: Addresses, flags: &[&str]) -> Result<Server> {
    let state = state.to_str().context("a path")?;
    let own = ["--checkpoint-dir", state];
    let kvasir = Server::serve_at(at, &[QUICK, &own, flags].concat()).await?;
    metrics::ready(kvasir.addresses.http).await.with_context(|| kvasir.output())?;
    Ok(kvasir)
}

/// Runs `kvasir check`.
async fn check(engines: &[&str]) -> Result<(Output, String)> {
    let output = Command::new(binary_of("kvasir")?)
        .arg("check")
        .args(engines)
        .kill_on_drop(true)
        .output()
        .await?;
    let text = String::from_utf8(output.stdout.clone())?;
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok((output, format!("{text}{log}")))
}

#[tokio::test]
async fn one_command_routes_by_cache_and_proves_its_wiring() -> Result<()> {
    let port = kvasir_sim::place::free_port()?;
    let index = format!("--listen-index=127.0.0.1:{port}");
    let served = Served::start(vec![engine(FAST), engine(FAST)], &[&index]).await?;
    let ready = metrics::get(served.kvasir.addresses.http, "/readyz").await?.1;
    ensure!(!ready.contains("check"), "{ready}\n{}", served.kvasir.output());
    // Each engine has served the two requests of its check.
    for engine in &served.engines {
        let hits = metrics::sum(engine.address(), "prefix_cache_hits_total", "").await?;
        ensure!(hits >= BLOCK_SIZE as f64, "{hits}: {}", served.kvasir.output());
    }
    served.complete(&prompt("same")).await?;
    let mut indexer = client::connect(SocketAddr::from(([127, 0, 0, 1], port))).await?;
    for engine in &served.engines {
        let sequence = engine.engine().truth().await?.last_sequence.context("events")?;
        let exact = |source: &pb::SourceInfo| client::is_exact_at(source, sequence);
        let name = engine.address().to_string();
        client::wait_for_sources(&mut indexer, (MODEL, &name), "exact", PATIENCE, exact).await?;
    }
    for number in 0..6 {
        let answer = served.complete(&prompt("same")).await?;
        ensure!(cached(&answer) > 0, "{number}: {answer}");
    }
    let at = served.kvasir.addresses.http;
    // Both parts of the process show their metrics, each once.
    let page = metrics::get(at, "/metrics").await?.1;
    let families = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let families: Vec<_> = families.collect();
    let distinct: BTreeSet<_> = families.iter().collect();
    ensure!(families.len() == distinct.len(), "{families:?}");
    for name in ["kvasir_workers", "kvasir_gateway_requests", "kvasir_build"] {
        ensure!(distinct.contains(&name), "{name}: {families:?}");
    }
    served.stop().await
}

#[tokio::test]
async fn a_restart_keeps_the_blocks_and_an_index_port_shows_them() -> Result<()> {
    // The engine can replay its last batch only: everything before is in the checkpoint, or lost.
    let mut config = engine(FAST);
    config.live.engine.buffer_batches = 1;
    let mut served = Served::start(vec![config], &["--listen-index=127.0.0.1:0"]).await?;
    for text in ["kept", "kept, too", "last"] {
        served.complete(&prompt(text)).await?;
    }
    let truth = served.engines[0].engine().truth().await?;
    let sequence = truth.last_sequence.context("events")?;
    let addresses = served.kvasir.addresses;
    served.kvasir.stop().await;
    let port = kvasir_sim::place::free_port()?;
    let index = format!("--listen-index=127.0.0.1:{port}");
    let specs = spec(&served.engines[0]);
    let flags = [specs.as_str(), index.as_str(), "--self-check=off"];
    served.kvasir = serve(served.state.path(), addresses, &flags).await?;
    let index = SocketAddr::from(([127, 0, 0, 1], port));
    let mut indexer = client::connect(index).await?;
    let name = served.engines[0].address().to_string();
    let exact = |source: &pb::SourceInfo| client::is_exact_at(source, sequence);
    let worker = (MODEL, name.as_str());
    client::wait_for_sources(&mut indexer, worker, "exact", PATIENCE, exact).await?;
    let held = client::dump_device_copies(&mut indexer, MODEL, &name).await?;
    ensure!(held == truth.copies, "{} of {} blocks", held.len(), truth.copies.len());
    served.stop().await
}

#[tokio::test]
async fn engines_come_and_go_with_their_file() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("engines");
    let first = start_engine(engine(FAST)).await?;
    let second = start_engine(engine(FAST)).await?;
    tokio::fs::write(&file, format!("{}\n", spec(&first))).await?;
    let from = format!("file:{}", file.display());
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let both = Addresses { grpc: any, http: any };
    let mut kvasir =
        serve(folder.path().join("state").as_path(), both, &["--engines-from", &from]).await?;
    let at = kvasir.addresses.http;
    let workers = async |count: f64| {
        let what = format!("{count} workers");
        let counted = async || {
            let found = metrics::sum(at, "kvasir_workers", "").await?;
            Ok((found == count).then_some(()))
        };
        until(&what, counted).await
    };
    workers(1.0).await.with_context(|| kvasir.output())?;
    tokio::fs::write(&file, format!("{}\n{}\n", spec(&first), spec(&second))).await?;
    kvasir.signal(rustix::process::Signal::HUP)?;
    workers(2.0).await.with_context(|| kvasir.output())?;
    // A broken file changes nothing, and is shown.
    tokio::fs::write(&file, "no port\n").await?;
    kvasir.signal(rustix::process::Signal::HUP)?;
    until("the file's fault is shown", async || {
        let ready = metrics::get(at, "/readyz").await?.1;
        Ok(ready.contains("engines-from: ").then_some(()))
    })
    .await?;
    workers(2.0).await?;
    tokio::fs::write(&file, format!("{}\n", spec(&second))).await?;
    kvasir.signal(rustix::process::Signal::HUP)?;
    workers(1.0).await.with_context(|| kvasir.output())?;
    kvasir.stop().await;
    first.stop().await?;
    second.stop().await
}

#[tokio::test]
async fn a_corrected_engine_is_checked_again() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("engines");
    let right = start_engine(engine(FAST)).await?;
    let other = start_engine(engine(FAST)).await?;
    let sockets = other.engine().endpoints().clone();
    let wrong = format!("http://{},events={}", right.address(), sockets.live);
    tokio::fs::write(&file, format!("{wrong}\n")).await?;
    let from = format!("file:{}", file.display());
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let both = Addresses { grpc: any, http: any };
    let state = folder.path().join("state");
    let mut kvasir = serve(&state, both, &["--engines-from", &from]).await?;
    let text = readiness(&kvasir).await?.1;
    ensure!(text.contains("no event came"), "{text}");
    tokio::fs::write(&file, format!("{}\n", spec(&right))).await?;
    kvasir.signal(rustix::process::Signal::HUP)?;
    let passes = async || {
        let text = readiness(&kvasir).await?.1;
        Ok((!text.contains("no event came")).then_some(()))
    };
    until("the fault is gone", passes).await.with_context(|| kvasir.output())?;
    kvasir.stop().await;
    right.stop().await?;
    other.stop().await
}

#[tokio::test]
async fn a_check_names_each_wrong_wiring_with_its_fix() -> Result<()> {
    let right = start_engine(engine(FAST)).await?;
    let (output, text) = check(&[&spec(&right)]).await?;
    ensure!(output.status.success(), "{text}");
    ensure!(text.contains("tokens, as predicted") && !text.contains('✗'), "{text}");
    // The table is all there is to read.
    ensure!(output.stderr.is_empty() && text.starts_with(&right.address().to_string()), "{text}");
    let other = start_engine(engine(FAST)).await?;
    let http = right.address();
    let sockets = right.engine().endpoints().clone();
    let others = other.engine().endpoints().clone();
    // Its replay socket has earlier events, which say nothing of the check's prompt.
    let busy = json!({"model": MODEL, "prompt": prompt("earlier"), "max_tokens": 1}).to_string();
    let (host, port) = (other.address().ip().to_string(), other.address().port());
    call(Method::POST, (&host, port), "/v1/completions", busy, PATIENCE).await?;
    let closed = kvasir_sim::place::free_port()?;
    for (spec, fixes) in [
        // A dead engine.
        (format!("http://127.0.0.1:{closed}"), ["no answer at /v1/models", "correct its URL"]),
        // No events at this port.
        (
            format!("http://{http},events=tcp://127.0.0.1:{closed}"),
            ["no connection to tcp://127.0.0.1", "state its address with events=tcp://HOST:PORT"],
        ),
        // Another engine's events: these say nothing of this prompt.
        (
            format!("http://{http},events={},replay={}", others.live, others.replay),
            ["no event came", "state the right address with events=tcp://HOST:PORT"],
        ),
        // Blocks of another size than the engine's.
        (
            format!(
                "http://{http},events={},replay={},block-size=32",
                sockets.live, sockets.replay
            ),
            ["32 tokens per block (stated; its /metrics says 16)", "remove block-size=32"],
        ),
        // No replay socket at this port.
        (
            format!("http://{http},events={},replay=tcp://127.0.0.1:{closed}", sockets.live),
            ["✗ replay socket: ", "state its address with replay=tcp://HOST:PORT"],
        ),
        // A model that the engine does not serve.
        (
            format!("http://{http},model=other"),
            ["the engine serves m, not \"other\"", "correct model=NAME"],
        ),
        // No OpenAI server at all: the events' socket.
        (
            format!("http://{}", sockets.live.trim_start_matches("tcp://")),
            ["no answer at /v1/models", "correct its URL"],
        ),
    ] {
        let (output, text) = check(&[&spec]).await?;
        ensure!(output.status.code() == Some(1), "{spec}: {text}");
        ensure!(output.stderr == b"kvasir check: failed checks: 1\n", "{spec}: {text}");
        for fix in fixes {
            ensure!(text.contains(fix), "{spec}: {fix:?} is not in {text}");
        }
    }
    // Two engines with one socket, however its host is named: the first one has it.
    let name = right.address().to_string();
    for live in [sockets.live.clone(), sockets.live.replace("127.0.0.1", "localhost")] {
        let second = format!("http://{},events={live}", other.address());
        let (output, text) = check(&[&spec(&right), &second]).await?;
        ensure!(output.status.code() == Some(1), "{text}");
        let why = format!("is the event socket of {name}, another engine");
        ensure!(text.contains(&why) && text.contains("✓ cache hit"), "{text}");
    }
    // A wrong block size keeps out the engines with the right one: the fault names the first.
    let wrong = format!("{},block-size=32", spec(&right));
    let (output, text) = check(&[&wrong, &spec(&other)]).await?;
    ensure!(output.status.code() == Some(1), "{text}");
    let why = format!("16 tokens per block, but {name} of the same model {MODEL} has 32");
    ensure!(text.contains(&why) && text.contains("remove block-size="), "{text}");
    let (output, text) = check(&["--engines-from", "file:/no/such/file"]).await?;
    ensure!(output.status.code() == Some(1) && text.contains("/no/such/file"), "{text}");
    right.stop().await?;
    other.stop().await
}

#[tokio::test]
async fn a_long_block_fits_into_the_check() -> Result<()> {
    let config = engine(FAST);
    let large =
        EngineConfig { block_size: 512, capacity_blocks: 128, ..config.live.engine.clone() };
    let live = LiveConfig { engine: large, ..config.live.clone() };
    let engine =
        start_engine(ServerConfig { live, model_tokens_max: Some(1_300), ..config }).await?;
    let (output, text) = check(&[&spec(&engine)]).await?;
    ensure!(output.status.success() && text.contains("✓ cache hit"), "{text}");
    engine.stop().await
}

/// The state of the side port: whether it is ready, and its lines.
async fn readiness(kvasir: &Server) -> Result<(u16, String)> {
    metrics::get(kvasir.addresses.http, "/readyz").await
}

#[tokio::test]
async fn only_named_engines_stay_and_without_any_it_is_not_ready() -> Result<()> {
    let mut served =
        Served::start(vec![engine(FAST), engine(FAST)], &["--worker-timeout=1s"]).await?;
    served.complete(&prompt("some")).await?;
    let addresses = served.kvasir.addresses;
    served.kvasir.stop().await;
    // The checkpoint has both engines.
    let second = spec(&served.engines[1]);
    let flags = [second.as_str(), "--worker-timeout=1s"];
    served.kvasir = serve(served.state.path(), addresses, &flags).await?;
    let workers = metrics::sum(addresses.http, "kvasir_workers", "").await?;
    ensure!(workers == 1.0, "{workers}: {}", served.kvasir.output());
    served.engines.pop().context("an engine")?.stop().await?;
    let gone = async || {
        let (status, text) = readiness(&served.kvasir).await?;
        Ok((status == 503 && text.contains("no engine answers")).then_some(()))
    };
    until("the process is not ready", gone).await.with_context(|| served.kvasir.output())?;
    let workers = metrics::sum(addresses.http, "kvasir_workers", "").await?;
    ensure!(workers == 0.0, "{workers}: {}", served.kvasir.output());
    // A client may try again: the model is not wrong, its engines are away.
    let refused = async || {
        let body = json!({"model": MODEL, "prompt": "hi"});
        let (status, answer) = served.post("/v1/completions", &body).await?;
        ensure!([404, 502, 503].contains(&status), "{status}: {answer}");
        Ok((status == 503 && answer["error"]["code"] == "no_engine").then_some(()))
    };
    until("no engine is left", refused).await.with_context(|| served.kvasir.output())?;
    served.stop().await
}

#[tokio::test]
async fn a_wrong_tokenizer_is_found_by_the_check() -> Result<()> {
    let right = start_engine(engine(FAST)).await?;
    // The same tokens with another template.
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("tokenizer.json");
    tokio::fs::copy(tokenizer(), &file).await?;
    let template =
        json!({"chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %} so"});
    tokio::fs::write(folder.path().join("tokenizer_config.json"), template.to_string()).await?;
    let file = file.display().to_string();
    let (output, text) = check(&[&spec(&right), "--tokenizer", &file]).await?;
    ensure!(output.status.code() == Some(1), "{text}");
    ensure!(text.contains("✗ tokens: ") && text.contains("tokenizer_config.json"), "{text}");
    right.stop().await
}
