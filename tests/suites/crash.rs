//! indexer-server killed with SIGKILL at random moments under load, again and again, and started anew
//! on its checkpoints: at the end it holds exactly what the engines hold. The engines' replay buffers
//! are far too short for all that they have published, so that only a checkpoint can lead there.

use anyhow::{Context, Result, ensure};
use kvasir_proto::pb;
use kvasir_sim::client::{self, Indexer};
use kvasir_sim::demo::fleet::Verdict;
use kvasir_sim::engine::publisher::EpochForm;
use kvasir_sim::engine::{EngineConfig, EngineError, HashForm, MockEngine, Prompt, WireForm};
use kvasir_sim::server::{Addresses, Server};
use kvasir_sim::workload::Conversations;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

const MODEL: &str = "m";
const BLOCK_SIZE: usize = 16;
const ENGINES: usize = 4;
/// The one that restarts.
const RESTARTED: usize = ENGINES - 1;
const ROUNDS: usize = 25;
const SEED: u64 = 4;
/// Batches that an engine can replay: more than it publishes from one checkpoint to the start after
/// the next kill, and less than it publishes in all.
const BUFFER_BATCHES: usize = 4_000;
/// Time between two requests to an engine, so that its buffer is not overrun, on a busy machine too.
const PACE: Duration = Duration::from_millis(6);
/// Longest time that the server is let run before it is killed.
const LIFE_MAX: Duration = Duration::from_millis(900);
/// Longest wait for the server to be where the engines are.
const PATIENCE: Duration = Duration::from_secs(60);

fn config(number: usize) -> EngineConfig {
    EngineConfig {
        block_size: BLOCK_SIZE,
        capacity_blocks: 2_048,
        sliding_window: (number == 1).then_some(64),
        hashes: if number == 2 { HashForm::Integer } else { HashForm::Bytes },
        form: if number == 3 { WireForm::Array } else { WireForm::Map },
        // The one that restarts is among those that state their life.
        epoch: [EpochForm::None, EpochForm::None, EpochForm::Topic, EpochForm::Frame][number],
        buffer_batches: BUFFER_BATCHES,
        ..EngineConfig::default()
    }
}

fn worker_id(number: usize) -> String {
    format!("engine-{number}")
}

struct Fleet {
    engines: Vec<Arc<MockEngine>>,
    stop: CancellationToken,
    load: JoinSet<Result<()>>,
}

impl Fleet {
    async fn start() -> Result<Self> {
        let mut engines = Vec::new();
        for number in 0..ENGINES {
            engines.push(Arc::new(MockEngine::start(config(number)).await?));
        }
        let stop = CancellationToken::new();
        let mut load = JoinSet::new();
        for (number, engine) in engines.iter().enumerate() {
            load.spawn(serve(Arc::clone(engine), SEED + number as u64, stop.clone()));
        }
        Ok(Self { engines, stop, load })
    }

    async fn register(&self, client: &mut Indexer) -> Result<()> {
        for (number, engine) in self.engines.iter().enumerate() {
            let id = worker_id(number);
            client::register_engine(client, (MODEL, &id), BLOCK_SIZE, engine).await?;
        }
        Ok(())
    }

    /// Ends the load and compares what every engine holds with what the server says.
    async fn verify(mut self, client: &mut Indexer) -> Result<()> {
        self.stop.cancel();
        while let Some(ended) = self.load.join_next().await {
            ended??;
        }
        for (number, engine) in self.engines.iter().enumerate() {
            let id = worker_id(number);
            let truth = engine.truth().await?;
            let last = truth.last_sequence.context("the engine has published")?;
            let published_enough = last > BUFFER_BATCHES as u64;
            ensure!(published_enough || number == RESTARTED, "{id} published {last} batches only");
            let what = format!("exact at batch {last}");
            let exact = |source: &pb::SourceInfo| client::is_exact_at(source, last);
            client::wait_for_sources(client, (MODEL, &id), &what, PATIENCE, exact).await?;
            let dumped = client::dump_device_copies(client, MODEL, &id).await?;
            let verdict = Verdict::compare(&id, &truth, &dumped);
            ensure!(verdict.is_equal(), "{verdict:?}");
            ensure!(verdict.blocks > 500, "{id} holds next to nothing: {verdict:?}");
        }
        Ok(())
    }
}

/// Has an engine serve conversations until it is told to stop.
async fn serve(engine: Arc<MockEngine>, seed: u64, stop: CancellationToken) -> Result<()> {
    let mut conversations = Conversations::new(seed);
    let mut pace = interval(PACE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !stop.is_cancelled() {
        pace.tick().await;
        let turn = conversations.next_turn();
        let request = conversations.request(&turn);
        let prompt = Prompt {
            tokens: request.prompt.into_iter().take(8 * 1_024).collect(),
            answer: request.answer.into_iter().take(64).collect(),
        };
        match engine.run(prompt).await {
            // It was restarted meanwhile.
            Ok(_) | Err(EngineError::Gone) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

async fn start_server(at: Option<Addresses>, folder: &Path) -> Result<Server> {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let (grpc, http) = at.map_or((any, any), |at| (at.grpc, at.http));
    let folder = folder.to_str().context("a path in UTF-8")?;
    let flags = ["--checkpoint-dir", folder, "--checkpoint-interval", "200ms"];
    Server::start_with(grpc, http, &flags).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_any_moment_the_server_comes_back_with_what_the_engines_hold() -> Result<()> {
    println!("seed {SEED}");
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    let folder = TempDir::new()?;
    let fleet = Fleet::start().await?;
    let mut server = start_server(None, folder.path()).await?;
    fleet.register(&mut client::connect(server.addresses.grpc).await?).await?;
    for round in 0..ROUNDS {
        sleep(random.random_range(Duration::ZERO..LIFE_MAX)).await;
        server.kill().await;
        if round % 10 == 5 {
            // A new life, which begins while nobody listens.
            fleet.engines[RESTARTED].restart().await?;
        }
        server = start_server(Some(server.addresses), folder.path()).await?;
    }
    let mut client = client::connect(server.addresses.grpc).await?;
    let listed = client::list_workers(&mut client, pb::ListWorkersRequest::default()).await?;
    let ids: BTreeSet<_> = listed.into_iter().map(|worker| worker.worker_id).collect();
    assert_eq!(ids, (0..ENGINES).map(worker_id).collect(), "all are known without being told");
    let checked = fleet.verify(&mut client).await;
    server.stop().await;
    checked
}
