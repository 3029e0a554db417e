//! A fleet under load whose programs are replaced one by one, as an operator upgrades it.

use anyhow::{Context, Result, anyhow, ensure};
use hyper::Method;
use kvasir_sim::client;
use kvasir_sim::demo::metrics;
use kvasir_sim::engine::EngineConfig;
use kvasir_sim::engine::live::LiveConfig;
use kvasir_sim::engine::openai::client::call;
use kvasir_sim::engine::openai::{EngineServer, ServerConfig, Text};
use kvasir_sim::engine::timed::StepModel;
use kvasir_sim::place::free_port;
use kvasir_sim::server::{Addresses, Server, binary_of};
use kvasir_tests::nats::NatsServer;
use serde_json::{Value, json};
use std::env;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const MODEL: &str = "m";
const BLOCK_SIZE: usize = 16;
/// Indexes, agents with their engines, and gateways: so many of each.
const REPLICAS: usize = 2;
const CLIENTS: usize = 4;
/// Conversations that each client goes on with.
const PROMPTS: u64 = 8;
/// Requests that are answered before the next program is replaced.
const REQUESTS: u64 = 40;
const PATIENCE: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A kind of program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Index,
    Agent,
    Gateway,
}

impl Kind {
    const fn program(self) -> &'static str {
        match self {
            Self::Index => "indexer-server",
            Self::Agent => "kvbm-agent",
            Self::Gateway => "gateway",
        }
    }
}

/// The programs of a version.
#[derive(Debug, Clone)]
pub struct Version {
    /// Folder of the programs; `None` for this build.
    folder: Option<PathBuf>,
    /// Version that the programs state.
    version: String,
}

impl Version {
    /// This build.
    pub fn this() -> Self {
        Self { folder: None, version: env!("CARGO_PKG_VERSION").to_owned() }
    }

    /// The version in the folder `KVASIR_OLDER_PROGRAMS`, else this one.
    ///
    /// # Errors
    /// If the variable `KVASIR_OLDER_VERSION` does not say which version that is.
    pub fn older() -> Result<Self> {
        let Some(folder) = env::var_os("KVASIR_OLDER_PROGRAMS") else { return Ok(Self::this()) };
        let version = env::var("KVASIR_OLDER_VERSION").context("KVASIR_OLDER_VERSION")?;
        Ok(Self { folder: Some(folder.into()), version })
    }

    async fn start(&self, kind: Kind, at: Addresses, flags: &[String]) -> Result<Server> {
        let program = match &self.folder {
            None => binary_of(kind.program())?,
            Some(folder) => folder.join(kind.program()),
        };
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let started = Server::program_at(Command::new(&program), at, &flags).await;
        let process = started.with_context(|| format!("{kind:?} of {self:?}"))?;
        ensure!(process.addresses == at, "{kind:?} has its ports: {:?}", process.addresses);
        let samples = metrics::fetch(process.addresses.http).await?;
        let build = samples.iter().find(|at| at.name == "kvasir_build_info");
        let labels = &build.context("metric kvasir_build_info")?.labels;
        ensure!(labels.contains(&format!("version=\"{}\"", self.version)), "{self:?}: {labels}");
        Ok(process)
    }
}

/// A running program, with what it is started with again.
struct Member {
    kind: Kind,
    process: Server,
    flags: Vec<String>,
}

/// The gateways as a load balancer sees them, which takes a gateway out before it is stopped.
#[derive(Debug, Clone)]
struct Balancer(watch::Sender<Vec<Backend>>);

#[derive(Debug, Clone)]
struct Backend {
    at: SocketAddr,
    is_in: bool,
    in_flight: usize,
}

/// What the clients have got so far.
#[derive(Debug, Clone, Default)]
struct Answers {
    answered: u64,
    failed: Vec<String>,
}

pub struct Fleet {
    members: Vec<Member>,
    engines: Vec<EngineServer>,
    balancer: Balancer,
    nats: NatsServer,
    _folder: TempDir,
}

fn tokenizer() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tokenizer/tokenizer.json")
}

async fn engine() -> Result<EngineServer> {
    let engine =
        EngineConfig { block_size: BLOCK_SIZE, capacity_blocks: 4_096, ..EngineConfig::default() };
    let model = StepModel { step: 2_000_000, prefill_token: 1_000, ..StepModel::default() };
    let live = LiveConfig { engine, model_name: MODEL.to_owned(), model, ..LiveConfig::default() };
    let config = ServerConfig { live, ..ServerConfig::default() };
    EngineServer::start(config, Text::load(&tokenizer(), None)?).await
}

/// Ports that a restarted program gets again.
fn free() -> Result<Addresses> {
    let free = || anyhow::Ok(SocketAddr::from(([127, 0, 0, 1], free_port()?)));
    Ok(Addresses { grpc: free()?, http: free()? })
}

fn owned(flags: &[&str]) -> Vec<String> {
    flags.iter().map(|flag| (*flag).to_owned()).collect()
}

/// Name of an agent's worker.
fn worker(number: usize) -> String {
    format!("w{number}")
}

async fn until(what: &str, mut look: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let wait = async {
        while !look().await? {
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    };
    timeout(PATIENCE, wait).await.map_err(|_late| anyhow!("not in time: {what}"))?
}

impl Fleet {
    /// Starts all programs in a version: agents publish to both indexes, gateways ask both and tell each other of
    /// their requests.
    pub async fn start(version: &Version) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let nats = NatsServer::start(folder.path()).await?;
        let mut members: Vec<Member> = Vec::new();
        for number in 0..REPLICAS {
            let checkpoints = folder.path().join(format!("index-{number}"));
            let flags = vec![format!("--checkpoint-dir={}", checkpoints.display())];
            let process = version.start(Kind::Index, free()?, &flags).await?;
            members.push(Member { kind: Kind::Index, process, flags });
        }
        let indexes = members.iter().map(|at| format!("http://{}", at.process.addresses.grpc));
        let indexes = indexes.collect::<Vec<_>>().join(",");
        let mut engines = Vec::new();
        for number in 0..REPLICAS {
            let engine = engine().await?;
            let sockets = engine.engine().endpoints();
            let journal = folder.path().join(format!("agent-{number}"));
            let mut flags = owned(&["--model", MODEL, "--engine", "vllm", "--indexers", &indexes]);
            flags.extend([
                format!("--worker-id={}", worker(number)),
                format!("--block-size={BLOCK_SIZE}"),
                format!("--source=endpoint={},replay={}", sockets.live, sockets.replay),
                format!("--label=http=http://{}", engine.address()),
                format!("--journal-dir={}", journal.display()),
            ]);
            let process = version.start(Kind::Agent, free()?, &flags).await?;
            members.push(Member { kind: Kind::Agent, process, flags });
            engines.push(engine);
        }
        let flags = owned(&["--indexer", &indexes, "--replica-sync", "--nats-url", &nats.url()]);
        let mut gateways = Vec::new();
        for _ in 0..REPLICAS {
            let process = version.start(Kind::Gateway, free()?, &flags).await?;
            let at = process.addresses.grpc;
            gateways.push(Backend { at, is_in: true, in_flight: 0 });
            members.push(Member { kind: Kind::Gateway, process, flags: flags.clone() });
        }
        let balancer = Balancer(watch::Sender::new(gateways));
        let fleet = Self { members, engines, balancer, nats, _folder: folder };
        for member in &fleet.members {
            fleet.ready(member).await?;
        }
        Ok(fleet)
    }

    /// Waits until a program does its work; for a gateway, until it knows all workers.
    async fn ready(&self, member: &Member) -> Result<()> {
        let http = member.process.addresses.http;
        metrics::ready(http).await.with_context(|| member.process.output())?;
        if member.kind != Kind::Gateway {
            return Ok(());
        }
        let known = async || {
            let samples = metrics::fetch(http).await?;
            let known = |at: &&metrics::Sample| at.name.ends_with("router_active_requests");
            Ok(samples.iter().filter(known).count() == REPLICAS)
        };
        until("the gateway knows all workers", known).await.with_context(|| member.process.output())
    }

    /// Replaces all programs, kind by kind in this order, by another version, under load. Returns the number of
    /// answers, none of which is an error.
    pub async fn roll(&mut self, version: &Version, order: [Kind; 3]) -> Result<u64> {
        let answers = watch::Sender::new(Answers::default());
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS as u64 {
            clients.spawn(client(number, self.balancer.clone(), answers.clone()));
        }
        let mut seen = answers.subscribe();
        for kind in order {
            for at in 0..self.members.len() {
                if self.members[at].kind == kind {
                    progress(&mut seen).await?;
                    self.replace(at, version).await?;
                }
            }
        }
        progress(&mut seen).await?;
        clients.shutdown().await;
        let Answers { answered, failed } = answers.borrow().clone();
        ensure!(failed.is_empty(), "{} of {answered} failed: {failed:#?}", failed.len());
        Ok(answered)
    }

    async fn replace(&mut self, at: usize, version: &Version) -> Result<()> {
        let member = &mut self.members[at];
        let addresses = member.process.addresses;
        if member.kind == Kind::Gateway {
            self.balancer.take_out(addresses.grpc).await?;
        }
        member.process.stop().await;
        member.process = version.start(member.kind, addresses, &member.flags).await?;
        self.ready(&self.members[at]).await?;
        self.balancer.set(addresses.grpc, |backend| backend.is_in = true);
        Ok(())
    }

    /// Waits until each index holds what the engines do.
    async fn settled(&self) -> Result<()> {
        for member in self.members.iter().filter(|at| at.kind == Kind::Index) {
            let mut indexer = client::connect(member.process.addresses.grpc).await?;
            for (number, engine) in self.engines.iter().enumerate() {
                let worker = worker(number);
                // Engines may still end requests whose clients are gone.
                until(&format!("{worker} is equal"), async || {
                    let truth = engine.engine().truth().await?.copies;
                    ensure!(!truth.is_empty(), "{worker} has no blocks");
                    Ok(client::dump_device_copies(&mut indexer, MODEL, &worker).await? == truth)
                })
                .await
                .with_context(|| member.process.output())?;
            }
        }
        Ok(())
    }

    /// Checks that each gateway sends a prompt to the worker that has it.
    pub async fn check(&self) -> Result<()> {
        self.settled().await?;
        let gateways = self.balancer.0.borrow().clone();
        for (number, gateway) in (1..).zip(gateways) {
            ensure!(gateway.is_in, "all gateways are back");
            for round in 0..4 {
                let prompt = prompt(1_000 * number, round);
                ask(gateway.at, &prompt).await?;
                self.settled().await?;
                let answer = ask(gateway.at, &prompt).await?;
                let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
                ensure!(cached.is_some_and(|tokens| tokens > 0), "{answer}");
            }
        }
        Ok(())
    }

    pub async fn stop(mut self) -> Result<()> {
        for member in self.members.iter_mut().rev() {
            member.process.stop().await;
        }
        for engine in self.engines {
            engine.stop().await?;
        }
        self.nats.terminate().await
    }
}

/// Waits until some more requests are answered.
async fn progress(answers: &mut watch::Receiver<Answers>) -> Result<()> {
    let enough = answers.borrow().answered + REQUESTS;
    let wait = answers.wait_for(|at| at.answered >= enough || !at.failed.is_empty());
    timeout(PATIENCE, wait).await.map_err(|_late| anyhow!("no answers"))??;
    Ok(())
}

/// A turn of a conversation: the same beginning, and one more line than the turn before.
fn prompt(conversation: u64, turn: u64) -> String {
    let text = "The licensor grants a licence to use, to copy, to change and to hand on the work. ";
    format!("{conversation}: {}{turn}", text.repeat(8))
}

async fn ask(gateway: SocketAddr, prompt: &str) -> Result<Value> {
    let body = json!({"model": MODEL, "prompt": prompt, "max_tokens": 4}).to_string();
    let host = gateway.ip().to_string();
    let at = (host.as_str(), gateway.port());
    let (status, answer) = call(Method::POST, at, "/v1/completions", body, PATIENCE).await?;
    ensure!(status == 200, "{status}: {}", String::from_utf8_lossy(&answer));
    Ok(serde_json::from_slice(&answer)?)
}

/// A request at a gateway, until it is dropped.
struct Place {
    balancer: Balancer,
    at: SocketAddr,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.balancer.set(self.at, |backend| backend.in_flight -= 1);
    }
}

impl Balancer {
    fn set(&self, at: SocketAddr, change: impl Fn(&mut Backend)) {
        self.0
            .send_modify(|all| all.iter_mut().filter(|backend| backend.at == at).for_each(change));
    }

    /// Sends no more requests to a gateway, and waits until it has answered those under way.
    async fn take_out(&self, at: SocketAddr) -> Result<()> {
        self.set(at, |backend| backend.is_in = false);
        let mut backends = self.0.subscribe();
        let is_idle = |all: &Vec<Backend>| {
            all.iter().filter(|backend| backend.at == at).all(|backend| backend.in_flight == 0)
        };
        let idle = timeout(PATIENCE, backends.wait_for(is_idle)).await;
        idle.map_err(|_late| anyhow!("the gateway does not answer"))??;
        Ok(())
    }

    /// Chooses a gateway for the request with this number.
    async fn choose(&self, number: usize) -> Option<Place> {
        let mut backends = self.0.subscribe();
        loop {
            let mut chosen = None;
            self.0.send_modify(|all| {
                let mut open: Vec<_> = all.iter_mut().filter(|backend| backend.is_in).collect();
                let len = open.len().max(1);
                if let Some(backend) = open.get_mut(number % len) {
                    backend.in_flight += 1;
                    chosen = Some(backend.at);
                }
            });
            if let Some(at) = chosen {
                return Some(Place { balancer: self.clone(), at });
            }
            backends.wait_for(|all| all.iter().any(|backend| backend.is_in)).await.ok()?;
        }
    }
}

/// Sends requests, one after the other, until it is dropped.
async fn client(number: u64, balancer: Balancer, answers: watch::Sender<Answers>) {
    for turn in 0.. {
        let Some(place) = balancer.choose((number + turn) as usize).await else { return };
        let prompt = prompt(number * PROMPTS + turn % PROMPTS, turn);
        let asked = ask(place.at, &prompt).await;
        drop(place);
        answers.send_modify(|answers| match asked {
            Ok(_answer) => answers.answered += 1,
            Err(error) => answers.failed.push(format!("{error:#}")),
        });
    }
}
