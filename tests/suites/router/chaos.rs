//! Three routers, two replicas of the index, six engines and a trace, while processes of every kind are killed at random:
//! routers, indexes, engines with the requests that run on them, and the NATS server.

use crate::fleet::{
    BLOCK_SIZE, MODEL, PATIENCE, Router, connect, free, loads, request, start_router_at, until,
};
use anyhow::{Context, Result, bail, ensure};
use kvasir_proto::pb;
use kvasir_sim::client;
use kvasir_sim::demo::metrics;
use kvasir_sim::engine::{EngineConfig, EngineProcess, Prompt};
use kvasir_sim::place::free_port;
use kvasir_sim::server::{Addresses, Server};
use kvasir_tests::nats::NatsServer;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::{RwLock, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::Code;

const SEED: u64 = 16;
const ROUTERS: usize = 3;
const INDEXES: usize = 2;
const ENGINES: usize = 6;
const REQUESTS: u32 = 900;
const UNDER_WAY: usize = 12;
/// One of so many requests is followed by a kill, or by the return of what was killed.
const STEP_EVERY: u32 = 12;
/// Tokens of an answer: enough that a request spends most of its time on its engine.
const ANSWER_TOKENS: u32 = 640;
/// Attempts of one request: each goes to another router.
const ATTEMPTS: usize = 3 * ROUTERS;

/// Of a broken connection, a router that stops, one that knows no worker, and one that knows none but excluded ones.
const FAILOVERS: [Code; 5] =
    [Code::Unknown, Code::Cancelled, Code::Unavailable, Code::NotFound, Code::FailedPrecondition];

/// Who is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    Router,
    /// One replica: the other one answers.
    Index,
    /// All replicas: load alone decides until one is back.
    Indexes,
    Engine,
    Nats,
}

const VICTIMS: [Victim; 5] =
    [Victim::Router, Victim::Index, Victim::Indexes, Victim::Engine, Victim::Nats];

/// What requests met with.
#[derive(Debug, Default)]
struct Told {
    /// Decisions by what the index contributed.
    outcomes: BTreeMap<&'static str, u32>,
    /// Attempts that ended because a router was gone or knew of no worker yet, by what it said.
    failovers: BTreeMap<String, u32>,
    /// Attempts that ended because an engine was dead.
    deaths: u32,
}

/// Where requests go.
struct Doors {
    routers: Vec<SocketAddr>,
    /// `w0` and so on. A new engine takes the place of a dead one.
    engines: RwLock<Vec<Arc<EngineProcess>>>,
    /// The engine to which a request went last.
    begun: watch::Sender<usize>,
}

/// All processes.
struct Fleet {
    doors: Arc<Doors>,
    routers: Vec<Server>,
    indexes: Vec<Server>,
    nats: NatsServer,
    /// The engine to which a request went last.
    begun: watch::Receiver<usize>,
    /// Who was killed and is not back yet. One at a time, so that there is always somebody to go on with.
    away: Option<(Victim, usize)>,
    kills: BTreeMap<Victim, u32>,
}

// === impl Told ===

impl Told {
    fn decided(&mut self, chosen: &pb::SelectWorkerResponse) -> Result<()> {
        let has_reason = !chosen.index_error.is_empty() || !chosen.missing_shards.is_empty();
        ensure!(chosen.index() == pb::IndexOutcome::Answered || has_reason, "{chosen:?}");
        // A list of an index that has just restarted takes no live worker away; a dead one is removed for a moment.
        let removed: u32 = chosen.removed.iter().map(|at| at.ranks).sum();
        let known = (chosen.eligible_ranks + removed) as usize;
        ensure!(known + 1 >= ENGINES, "{known} of {ENGINES} workers are known: {chosen:?}");
        *self.outcomes.entry(chosen.index().as_str_name()).or_default() += 1;
        Ok(())
    }

    /// A router that does not decide is gone, or knows no worker yet but dead ones; all else is an error.
    fn failed_over(&mut self, error: anyhow::Error) -> Result<()> {
        let said = match error.downcast_ref::<tonic::Status>().map(tonic::Status::code) {
            None => "no connection".to_owned(),
            Some(code) if FAILOVERS.contains(&code) => format!("{code:?}"),
            Some(_) => return Err(error),
        };
        *self.failovers.entry(said).or_default() += 1;
        Ok(())
    }

    fn add(&mut self, other: Self) {
        for (outcome, times) in other.outcomes {
            *self.outcomes.entry(outcome).or_default() += times;
        }
        for (said, times) in other.failovers {
            *self.failovers.entry(said).or_default() += times;
        }
        self.deaths += other.deaths;
    }
}

// === impl Doors ===

impl Doors {
    async fn engine(&self, number: usize) -> Result<Arc<EngineProcess>> {
        let engines = self.engines.read().await;
        engines.get(number).map(Arc::clone).context("an engine of this number")
    }

    /// Sends a request to one router after the other until one decides, and to that router's worker. If that one dies,
    /// begins again without it.
    async fn serve(self: Arc<Self>, number: u32, tokens: Vec<u32>) -> Result<Told> {
        let mut told = Told::default();
        let mut dead = Vec::new();
        for attempt in 0..ATTEMPTS {
            let address = self.routers[(number as usize + attempt) % self.routers.len()];
            let (chosen, router) = match decide(address, &tokens, &dead).await {
                Ok(decided) => decided,
                Err(error) => {
                    told.failed_over(error)?;
                    sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            told.decided(&chosen)?;
            ensure!(!dead.contains(&chosen.worker_id), "it was excluded: {chosen:?}");
            let at_engine = number_of(&chosen.worker_id)?;
            let engine = self.engine(at_engine).await?;
            self.begun.send_replace(at_engine);
            let answer = (0..ANSWER_TOKENS).map(|at| number * 10_000 + at).collect();
            // An engine that ends by itself, unlike one that was killed, is an error.
            let done = engine.run(Prompt { tokens: tokens.clone(), answer }).await?;
            end(router, &chosen.request_id, done.is_none()).await;
            if done.is_some() {
                return Ok(told);
            }
            told.deaths += 1;
            dead.push(chosen.worker_id);
        }
        bail!("request {number} was not served in {ATTEMPTS} attempts: {told:?}, dead {dead:?}")
    }
}

/// Asks a router for a worker other than these.
async fn decide(
    address: SocketAddr,
    tokens: &[u32],
    dead: &[String],
) -> Result<(pb::SelectWorkerResponse, Router)> {
    let mut router = connect(address).await?;
    let excluded_worker_ids = dead.to_vec();
    let request = pb::SelectWorkerRequest { excluded_worker_ids, ..request(tokens.to_vec()) };
    Ok((router.select_worker(request).await?.into_inner(), router))
}

/// A router that was killed meanwhile does not hear of the end; its replicas forget the request with its lease.
async fn end(mut router: Router, request_id: &str, has_failed: bool) {
    let failed = Some(has_failed);
    let _gone = router.free(pb::FreeRequest { failed, ..free(request_id) }).await;
}

// === impl Fleet ===

impl Fleet {
    async fn start(nats: NatsServer) -> Result<Self> {
        let mut engines = Vec::new();
        let mut indexes = Vec::new();
        let mut routers = Vec::new();
        for _ in 0..ENGINES {
            engines.push(Arc::new(start_engine(0).await?));
        }
        for _ in 0..INDEXES {
            indexes.push(start_index(addresses()?, &engines).await?);
        }
        let flags = router_flags(&nats);
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        for _ in 0..ROUTERS {
            routers.push(start_router_at(addresses()?, &urls(&indexes), &flags).await?.0);
        }
        let ports = routers.iter().map(|at| at.addresses.grpc).collect();
        let (begun, seen) = watch::channel(0);
        let doors = Arc::new(Doors { routers: ports, engines: RwLock::new(engines), begun });
        let kills = BTreeMap::new();
        Ok(Self { doors, routers, indexes, nats, begun: seen, away: None, kills })
    }

    /// Kills somebody; or, if somebody is away, brings it back. So there is time with somebody away, and at the kill there
    /// are requests under way.
    async fn step(&mut self, rng: &mut ChaCha8Rng) -> Result<()> {
        if self.away.is_some() {
            return self.restore().await;
        }
        let victim = rng.random::<u32>() as usize;
        let draw = rng.random::<u32>() as usize;
        self.kill(VICTIMS[victim % VICTIMS.len()], draw).await
    }

    async fn kill(&mut self, victim: Victim, draw: usize) -> Result<()> {
        let number = match victim {
            Victim::Router => draw % ROUTERS,
            Victim::Index => draw % INDEXES,
            // That on which a request begins now: it dies under this request.
            Victim::Engine => {
                let begins = timeout(PATIENCE, self.begun.changed()).await;
                begins.context("no request reaches an engine")??;
                *self.begun.borrow()
            }
            Victim::Indexes | Victim::Nats => 0,
        };
        match victim {
            Victim::Router => self.routers[number].kill().await,
            Victim::Index => self.indexes[number].kill().await,
            Victim::Indexes => {
                for index in &mut self.indexes {
                    index.kill().await;
                }
            }
            Victim::Engine => self.doors.engine(number).await?.crash().await?,
            Victim::Nats => self.nats.kill().await,
        }
        *self.kills.entry(victim).or_default() += 1;
        self.away = Some((victim, number));
        Ok(())
    }

    /// Brings back who is away, if anybody is.
    async fn restore(&mut self) -> Result<()> {
        let Some((victim, number)) = self.away.take() else { return Ok(()) };
        match victim {
            Victim::Router => {
                let again = self.routers[number].addresses;
                let replicas = urls(&self.indexes);
                let own = ["--indexer", &replicas, "--timing", "discovery-interval=100ms"];
                let flags = router_flags(&self.nats);
                let flags: Vec<_> =
                    own.into_iter().chain(flags.iter().map(String::as_str)).collect();
                self.routers[number] = Server::router_at(again, &flags).await?;
                ensure!(self.routers[number].addresses == again, "another process took the port");
            }
            Victim::Index => self.restart_index(number).await?,
            Victim::Indexes => {
                for number in 0..INDEXES {
                    self.restart_index(number).await?;
                }
            }
            Victim::Engine => self.replace_engine(number).await?,
            Victim::Nats => self.nats.restart().await?,
        }
        Ok(())
    }

    /// It comes back with nothing: its engines are registered again.
    async fn restart_index(&mut self, number: usize) -> Result<()> {
        let again = self.indexes[number].addresses;
        let engines = self.doors.engines.read().await;
        self.indexes[number] = start_index(again, &engines).await?;
        Ok(())
    }

    /// A new engine elsewhere becomes the worker. Until now, nobody told the indexes that the old one is dead.
    async fn replace_engine(&self, number: usize) -> Result<()> {
        let id = worker_id(number);
        for index in &self.indexes {
            let model = MODEL.to_owned();
            let worker_id = id.clone();
            let gone =
                pb::RemoveWorkerRequest { worker_id, model, tenant: client::TENANT.to_owned() };
            client::connect(index.addresses.grpc).await?.remove_worker(gone).await?;
        }
        let lives = self.kills.get(&Victim::Engine).copied().unwrap_or_default();
        let engine = Arc::new(start_engine(lives).await?);
        self.doors.engines.write().await[number] = Arc::clone(&engine);
        for index in &self.indexes {
            register(index, &id, &engine).await?;
        }
        Ok(())
    }

    /// Waits until every router knows all engines, and so many requests under way on them all together.
    async fn knows(&self, requests: u64) -> Result<()> {
        for router in &self.routers {
            let mut client = connect(router.addresses.grpc).await?;
            until(&format!("{requests} requests under way"), async || {
                let loads = loads(&mut client).await?;
                let known: u64 = loads.iter().map(|(_, requests)| requests).sum();
                Ok((loads.len() == ENGINES && known == requests).then_some(()))
            })
            .await?;
        }
        Ok(())
    }

    async fn stop(mut self) -> Result<()> {
        for mut process in self.routers.into_iter().chain(self.indexes) {
            process.stop().await;
        }
        self.nats.terminate().await
    }
}

fn worker_id(number: usize) -> String {
    format!("w{number}")
}

fn number_of(worker_id: &str) -> Result<usize> {
    let number =
        worker_id.strip_prefix('w').with_context(|| format!("{worker_id} is no worker"))?;
    Ok(number.parse()?)
}

/// Addresses that a restarted process takes again.
fn addresses() -> Result<Addresses> {
    let at = || Ok::<_, anyhow::Error>(SocketAddr::from(([127, 0, 0, 1], free_port()?)));
    Ok(Addresses { grpc: at()?, http: at()? })
}

fn urls(indexes: &[Server]) -> String {
    let urls: Vec<_> = indexes.iter().map(|index| index.addresses.grpc.to_string()).collect();
    urls.join(",")
}

fn router_flags(nats: &NatsServer) -> Vec<String> {
    let mut flags = vec!["--replica-sync".to_owned(), "--nats-url".to_owned(), nats.url()];
    flags.extend(["--timing", "sync-digest-interval=300ms,request-lease=3s"].map(str::to_owned));
    flags
}

/// An engine on ports that no other one had; `lives` engines died before it.
async fn start_engine(lives: u32) -> Result<EngineProcess> {
    let config =
        EngineConfig { block_size: BLOCK_SIZE, restarts: lives, ..EngineConfig::default() };
    EngineProcess::start(config).await
}

/// An index that knows nothing but the workers.
async fn start_index(at: Addresses, engines: &[Arc<EngineProcess>]) -> Result<Server> {
    let index = Server::start(at.grpc, at.http).await?;
    ensure!(index.addresses == at, "another process took the port");
    for (number, engine) in engines.iter().enumerate() {
        register(&index, &worker_id(number), engine).await?;
    }
    Ok(index)
}

async fn register(index: &Server, worker_id: &str, engine: &EngineProcess) -> Result<()> {
    let request = pb::RegisterWorkerRequest {
        worker_id: worker_id.to_owned(),
        model: MODEL.to_owned(),
        tenant: client::TENANT.to_owned(),
        block_size: BLOCK_SIZE as u32,
        engine: pb::Engine::Vllm as i32,
        endpoints: vec![pb::EngineEndpoint {
            endpoint: engine.endpoint().to_owned(),
            replay_endpoint: engine.replay_endpoint().to_owned(),
            ..Default::default()
        }],
        ..Default::default()
    };
    let mut indexer = client::connect(index.addresses.grpc).await?;
    let registered = indexer.register_worker(request).await?.into_inner();
    ensure!(registered.created, "{worker_id} was registered before");
    Ok(())
}

/// Sends all requests, while processes are killed and come back.
async fn trace(fleet: &mut Fleet, rng: &mut ChaCha8Rng) -> Result<Told> {
    let mut told = Told::default();
    let mut under_way = JoinSet::new();
    for number in 0..REQUESTS {
        while under_way.len() >= UNDER_WAY {
            told.add(next(&mut under_way).await?);
        }
        // Twenty conversations, each growing.
        let conversation = rng.random_range(0..20_u32);
        let turns = rng.random_range(1..12);
        let prompt = (0..turns * BLOCK_SIZE as u32).map(|at| conversation * 10_000 + at).collect();
        fleet.begun.mark_unchanged();
        under_way.spawn(Arc::clone(&fleet.doors).serve(number, prompt));
        if rng.random_ratio(1, STEP_EVERY) {
            fleet.step(rng).await?;
        }
    }
    while !under_way.is_empty() {
        told.add(next(&mut under_way).await?);
    }
    Ok(told)
}

/// The next request that ends.
async fn next(under_way: &mut JoinSet<Result<Told>>) -> Result<Told> {
    let ended = timeout(PATIENCE, under_way.join_next()).await.context("no request ends")?;
    ended.context("a request under way")??
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_is_lost_while_processes_are_killed() -> Result<()> {
    println!("seed {SEED}");
    let mut rng = ChaCha8Rng::seed_from_u64(SEED);
    let folder = TempDir::new()?;
    let mut fleet = Fleet::start(NatsServer::start(folder.path()).await?).await?;
    let told = trace(&mut fleet, &mut rng).await?;
    println!("kills {:?}, {told:?}", fleet.kills);
    let decisions: u32 = told.outcomes.values().sum();
    ensure!(decisions == REQUESTS + told.deaths, "{decisions} decisions");
    ensure!(fleet.kills.len() == VICTIMS.len(), "somebody was never killed: {:?}", fleet.kills);
    ensure!(
        !told.failovers.is_empty(),
        "no request met a killed router: the test tries too little"
    );
    ensure!(told.outcomes.len() > 1, "the index answered always: the test tries too little");
    ensure!(told.deaths > 0, "no request met a killed engine: the test tries too little");

    fleet.restore().await?;
    for router in &fleet.routers {
        metrics::ready(router.addresses.http).await?;
        until("connected to NATS", async || {
            let up = metrics::sum(router.addresses.http, "router_nats_connected", "").await?;
            Ok((up == 1.0).then_some(()))
        })
        .await?;
    }
    // Nothing is under way: all routers agree on that, once leases of killed routers are over.
    fleet.knows(0).await.context("a ghost load")?;
    // They tell each other again, too.
    let (chosen, mut router) = decide(fleet.doors.routers[0], &[1; BLOCK_SIZE], &[]).await?;
    fleet.knows(1).await?;
    router.free(free(&chosen.request_id)).await?;
    fleet.knows(0).await?;
    fleet.stop().await
}
