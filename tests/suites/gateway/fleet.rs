//! An index, engines with an HTTP side that it reads, and a gateway that asks both.

use anyhow::{Context, Result, ensure};
use kvasir_proto::pb;
use kvasir_sim::client::{self, Indexer};
use kvasir_sim::demo::metrics;
use kvasir_sim::engine::EngineConfig;
use kvasir_sim::engine::live::LiveConfig;
use kvasir_sim::engine::openai::client::call;
use kvasir_sim::engine::openai::{EngineServer, ServerConfig, Text};
use kvasir_sim::engine::timed::{StepModel, TransferModel};
use kvasir_sim::place;
use kvasir_sim::server::Server;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::process::Command;
use tokio::time::{Instant, sleep};

pub const MODEL: &str = "m";
pub const BLOCK_SIZE: usize = 16;
/// Nothing in these tests takes nearly as long.
pub const PATIENCE: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Nanoseconds of an engine's step where nothing else is wanted.
pub const FAST: u64 = 100_000;

/// An index, engines, a gateway.
pub struct Fleet {
    pub server: Server,
    pub indexer: Indexer,
    pub engines: Vec<(String, EngineServer)>,
    pub gateway: Server,
}

/// The committed tokenizer.
pub fn tokenizer() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tokenizer/tokenizer.json")
}

/// An engine whose steps take so many nanoseconds.
pub fn engine(step: u64) -> ServerConfig {
    let engine =
        EngineConfig { block_size: BLOCK_SIZE, capacity_blocks: 4_096, ..EngineConfig::default() };
    let model = StepModel {
        step,
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
    ServerConfig { live, answer_tokens: 1 << 20, ..ServerConfig::default() }
}

/// What a worker states about itself: its role, and where its engine is.
pub fn profile(role: pb::WorkerRole, http: SocketAddr) -> pb::WorkerProfile {
    pb::WorkerProfile {
        role: role.into(),
        labels: vec![pb::Label { key: "http".to_owned(), value: format!("http://{http}") }],
        ..Default::default()
    }
}

/// Polls until a condition holds.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await? {
            return Ok(found);
        }
        ensure!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        sleep(POLL_INTERVAL).await;
    }
}

impl Fleet {
    /// Starts engines, `w0` and so on, each with its role, and a gateway with these flags.
    pub async fn start(
        engines: Vec<(pb::WorkerRole, ServerConfig)>,
        flags: &[&str],
    ) -> Result<Self> {
        let server = Server::start_anywhere().await?;
        let indexer = client::connect(server.addresses.grpc).await?;
        let index = server.addresses.grpc.to_string();
        let own = ["--indexer", &index, "--timing", "discovery-interval=100ms"];
        let gateway = Server::gateway(&[&own, flags].concat()).await?;
        metrics::ready(gateway.addresses.http).await.with_context(|| gateway.output())?;
        let mut fleet = Self { server, indexer, engines: Vec::new(), gateway };
        for (number, (role, config)) in engines.into_iter().enumerate() {
            let text = Text::load(&tokenizer(), None)?;
            let engine = EngineServer::start(config, text).await?;
            let id = format!("w{number}");
            let endpoints = engine.engine().endpoints().clone();
            let endpoint = pb::EngineEndpoint {
                endpoint: endpoints.live,
                replay_endpoint: endpoints.replay,
                ..Default::default()
            };
            fleet.register(&id, profile(role, engine.address()), vec![endpoint]).await?;
            fleet.engines.push((id, engine));
        }
        Ok(fleet)
    }

    /// Registers a worker, and waits until the gateway knows it.
    pub async fn register(
        &mut self,
        id: &str,
        profile: pb::WorkerProfile,
        endpoints: Vec<pb::EngineEndpoint>,
    ) -> Result<()> {
        let engine = match endpoints.is_empty() {
            true => pb::Engine::Unspecified,
            false => pb::Engine::Vllm,
        };
        self.register_engine(id, engine, profile, endpoints).await
    }

    /// Registers a worker with its engine, and waits until the gateway knows it.
    pub async fn register_engine(
        &mut self,
        id: &str,
        engine: pb::Engine,
        profile: pb::WorkerProfile,
        endpoints: Vec<pb::EngineEndpoint>,
    ) -> Result<()> {
        let request = pb::RegisterWorkerRequest {
            worker_id: id.to_owned(),
            model: MODEL.to_owned(),
            block_size: u32::try_from(BLOCK_SIZE)?,
            engine: engine.into(),
            endpoints,
            profile: Some(profile),
            ..Default::default()
        };
        self.indexer.register_worker(request).await?;
        let side = self.gateway.addresses.http;
        let label = format!("worker=\"{id}\"");
        until("the worker is known", async || {
            let samples = metrics::fetch(side).await?;
            let is_known = samples.iter().any(|at| {
                at.name.ends_with("router_active_requests") && at.labels.contains(&label)
            });
            Ok(is_known.then_some(()))
        })
        .await
    }

    /// A metric of the gateway, summed over the labels that contain a text.
    pub async fn metric(&self, name: &str, labels: &str) -> Result<f64> {
        metrics::sum(self.gateway.addresses.http, name, labels).await
    }

    /// Waits until a metric of the gateway has this value.
    pub async fn metric_is(&self, name: &str, labels: &str, expected: f64) -> Result<()> {
        let what = format!("{name}{{{labels}}} is {expected}");
        let found =
            until(&what, async || Ok((self.metric(name, labels).await? == expected).then_some(())));
        found.await.with_context(|| self.gateway.output())
    }

    /// A metric of an engine, summed over the labels that contain a text.
    pub async fn of_engine(&self, number: usize, name: &str, labels: &str) -> Result<f64> {
        let (_, engine) = self.engines.get(number).context("an engine")?;
        metrics::sum(engine.address(), name, labels).await
    }

    /// Waits until the index knows everything that an engine has done.
    pub async fn exact(&mut self) -> Result<()> {
        for (id, engine) in &self.engines {
            let Some(sequence) = engine.engine().truth().await?.last_sequence else { continue };
            let exact = |source: &pb::SourceInfo| client::is_exact_at(source, sequence);
            let worker = (MODEL, id.as_str());
            client::wait_for_sources(&mut self.indexer, worker, "exact", PATIENCE, exact).await?;
        }
        Ok(())
    }

    /// Runs cases of the Python client, with commas between, and returns what they printed.
    pub async fn ask(&self, cases: &str) -> Result<String> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("gateway/check");
        let url = format!("http://{}", self.gateway.addresses.grpc);
        let output = Command::new(script)
            .arg(place::cache().join("openai-client"))
            .args([cases, &url, MODEL])
            .kill_on_drop(true)
            .output()
            .await?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let gateway = self.gateway.output();
        ensure!(output.status.success(), "{cases}: {}\n{gateway}", text(&output.stderr));
        Ok(text(&output.stdout))
    }

    /// Status and JSON of a request by hand.
    pub async fn post(&self, path: &str, body: &Value) -> Result<(u16, Value)> {
        let at = self.gateway.addresses.grpc;
        let body = body.to_string();
        let host = at.ip().to_string();
        let answer = call(hyper::Method::POST, (&host, at.port()), path, body, PATIENCE).await;
        let (status, body) = answer.with_context(|| self.gateway.output())?;
        Ok((status.as_u16(), serde_json::from_slice(&body)?))
    }

    /// The text of a stream.
    pub async fn stream(&self, path: &str, body: &Value) -> Result<String> {
        let at = self.gateway.addresses.grpc;
        let body = body.to_string();
        let host = at.ip().to_string();
        let answer = call(hyper::Method::POST, (&host, at.port()), path, body, PATIENCE).await;
        let (status, body) = answer.with_context(|| self.gateway.output())?;
        ensure!(status.is_success(), "{status}\n{}", self.gateway.output());
        Ok(String::from_utf8(body.to_vec())?)
    }

    /// A completion that succeeds.
    pub async fn complete(&self, prompt: &str) -> Result<Value> {
        let body = json!({"model": MODEL, "prompt": prompt, "max_tokens": 4});
        let (status, answer) = self.post("/v1/completions", &body).await?;
        ensure!(status == 200, "{status}: {answer}\n{}", self.gateway.output());
        Ok(answer)
    }

    /// Waits until no request is under way at the gateway or its workers.
    pub async fn idle(&self) -> Result<()> {
        self.metric_is("gateway_in_flight_requests", "", 0.0).await?;
        self.metric_is("router_active_requests", "", 0.0).await
    }

    pub async fn stop(mut self) -> Result<()> {
        self.gateway.stop().await;
        self.server.stop().await;
        for (_, engine) in self.engines {
            engine.stop().await?;
        }
        Ok(())
    }
}

/// A prompt of some blocks that begins in its own way.
pub fn prompt(name: &str) -> String {
    let text = "The licensor grants a licence to use, to copy, to change and to hand on the work. ";
    format!("{name}: {}", text.repeat(10))
}

/// Tokens of a prompt that its worker had cached, as the engine says.
pub fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0)
}
