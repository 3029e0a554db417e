//! The complete path: an engine's publisher, a real agent in a separate process, and an index.

use super::cores::Cores;
use super::index::Index;
use super::publisher::GrpcPublisher;
use super::stream::{BLOCK_SIZE, Batch, NAME, Stream};
use crate::load::child::{cpu_time, resident_bytes};
use anyhow::{Context, Result, ensure};
use kvasir_proto::pb;
use kvasir_sim::client::{self, Indexer};
use kvasir_sim::demo::metrics;
use kvasir_sim::engine::WireForm;
use kvasir_sim::engine::publisher::{Endpoints, EpochForm, Publisher, PublisherConfig};
use kvasir_sim::server::Server;
use kvasir_tests::nats::NatsServer;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// Maximum number of block operations in flight. It is large enough that the agent never waits, and smaller than the
/// replay buffer, in case its connection is lost on a busy machine.
const AHEAD_OPERATIONS: u64 = 1 << 14;
/// Polling interval of the applied operations.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Interval of batches until the first one has arrived: before that, the agent may not have subscribed.
const FIRST_EVERY: Duration = Duration::from_millis(20);
/// Number of batches that can be replayed.
const REPLAYED_BATCHES: usize = 2_048;
/// Timeout for batches in flight.
const PATIENCE: Duration = Duration::from_secs(60);
/// Metrics of the agent that show where batches were lost.
const LOSS_METRICS: [&str; 5] = [
    "source_losses_total",
    "source_batches_total",
    "source_lag_batches",
    "uplink_lag_batches",
    "uplink_skipped_batches_total",
];

/// Receiver of the agent's events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    /// A minimal index, in this process.
    Bare,
    /// A minimal index; the agent also has its journal on disk.
    BareFromDisk,
    /// The real indexer-server.
    Server,
    /// The real indexer-server, over NATS.
    ServerByNats,
    /// The real indexer-server, which subscribes to the engine directly, without an agent.
    ServerAlone,
    /// The real indexer-server, to which the engine publishes directly over gRPC.
    ServerByGrpc,
}

impl To {
    /// Name of the path.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::BareFromDisk => "bare, journal on disk",
            Self::Server => "server",
            Self::ServerByNats => "server, by NATS",
            Self::ServerAlone => "server, without an agent",
            Self::ServerByGrpc => "server, without an agent, by gRPC",
        }
    }
}

/// All parts between an engine and an index.
pub struct Way {
    /// Events of the engine.
    pub stream: Stream,
    /// Socket of the engine.
    pub engine: Publisher,
    /// Publisher of the engine over gRPC, if it uses gRPC.
    publisher: Option<GrpcPublisher>,
    agent: Option<Server>,
    server: Option<Server>,
    _broker: Option<NatsServer>,
    _folder: TempDir,
    /// Number of block operations that the engine has published.
    published: u64,
    arrived: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

/// Resource use of the agent's process so far.
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    at: Instant,
    cpu: Duration,
    arrived: u64,
}

/// Resource use between two marks.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// Number of blocks stored and removed.
    pub operations: f64,
    /// Processor time of the agent, in seconds.
    pub cpu_seconds: f64,
    /// Wall time, in seconds.
    pub wall_seconds: f64,
}

impl Way {
    /// Starts all parts, and waits until the first batches have arrived.
    pub async fn start(to: To, index: Index, stream: Stream, cores: &Cores) -> Result<Self> {
        let config = PublisherConfig {
            topic: String::new(),
            buffer_batches: REPLAYED_BATCHES,
            form: WireForm::Map,
            epoch: EpochForm::None,
        };
        let engine = Publisher::bind(config, &Endpoints::any()).await?;
        let mut tasks = JoinSet::new();
        let folder = tempfile::tempdir()?;
        let broker = match to {
            To::ServerByNats => Some(NatsServer::start(folder.path()).await?),
            To::Bare | To::BareFromDisk | To::Server | To::ServerAlone | To::ServerByGrpc => None,
        };
        let nats = broker.as_ref().map(NatsServer::url);
        let nats: Vec<_> = nats.iter().flat_map(|url| ["--nats-url", url]).collect();
        let (address, server) = match to {
            To::Bare | To::BareFromDisk => (index.start(&mut tasks).await?, None),
            To::Server | To::ServerByNats | To::ServerAlone | To::ServerByGrpc => {
                let any = SocketAddr::from(([127, 0, 0, 1], 0));
                let server = Server::start_with(any, any, &nats).await?;
                (server.addresses.grpc, Some(server))
            }
        };
        let arrived = Arc::clone(index.operations());
        if server.is_some() {
            let indexer = client::connect(address).await?;
            let arrived = Arc::clone(&arrived);
            tasks.spawn(look(indexer, arrived));
        }
        let publisher = if to == To::ServerByGrpc {
            Some(GrpcPublisher::start(address, &mut tasks).await?)
        } else {
            None
        };
        let agent = match to {
            To::ServerByGrpc => None,
            To::ServerAlone => {
                let mut indexer = client::connect(address).await?;
                let at = engine.endpoints();
                let sockets = (&*at.live, &*at.replay);
                client::register_endpoints(&mut indexer, (NAME, NAME), BLOCK_SIZE, sockets).await?;
                None
            }
            To::Bare | To::BareFromDisk | To::Server | To::ServerByNats => {
                let target = format!("http://{address}");
                let mut flags = if nats.is_empty() { vec!["--indexers", &target] } else { nats };
                if to == To::BareFromDisk {
                    flags.extend(["--journal-dir", folder.path().to_str().context("a name")?]);
                }
                Some(start_agent(&engine, &flags, cores).await?)
            }
        };
        let mut way = Self {
            stream,
            engine,
            publisher,
            agent,
            server,
            _broker: broker,
            _folder: folder,
            published: 0,
            arrived,
            _tasks: tasks,
        };
        let begin = Instant::now();
        while way.arrived() == 0 {
            ensure!(begin.elapsed() < PATIENCE, "nothing arrives at the index");
            way.say().await?;
            sleep(FIRST_EVERY).await;
        }
        way.settle().await?;
        Ok(way)
    }

    fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Acquire)
    }

    /// Publishes the engine's next batch.
    pub async fn say(&mut self) -> Result<()> {
        let next = self.stream.next_batch();
        self.publish(next).await
    }

    /// Publishes this batch.
    pub async fn publish(&mut self, batch: Batch) -> Result<()> {
        self.published += batch.operations;
        match &mut self.publisher {
            Some(publisher) => publisher.publish(&batch).await,
            None => self.engine.publish(batch.payload()).await.context("publish a batch"),
        }
    }

    /// A client of the real index.
    pub async fn indexer(&self) -> Result<Indexer> {
        client::connect(self.server.as_ref().context("a real index")?.addresses.grpc).await
    }

    /// Publishes as fast as batches arrive, while `go_on` returns true.
    pub async fn say_while(&mut self, mut go_on: impl FnMut(&Stream) -> bool) -> Result<()> {
        while go_on(&self.stream) {
            self.say().await?;
            let begin = Instant::now();
            let before = self.arrived();
            while self.published - self.arrived() > AHEAD_OPERATIONS {
                let stuck = begin.elapsed() > PATIENCE && self.arrived() == before;
                ensure!(!stuck, "nothing arrives at the index any more");
                sleep(LOOK_EVERY).await;
            }
        }
        Ok(())
    }

    /// Waits until everything published has arrived, each block once.
    pub async fn settle(&self) -> Result<()> {
        let begin = Instant::now();
        while self.arrived() < self.published && begin.elapsed() < PATIENCE {
            sleep(LOOK_EVERY).await;
        }
        let arrived = self.arrived();
        let published = self.published;
        ensure!(arrived == published, "{arrived} of {published} came; {}", self.account().await?);
        Ok(())
    }

    /// Describes losses and where they occurred, from the agent's metrics.
    async fn account(&self) -> Result<String> {
        let mut account = String::new();
        if self.agent.is_some() {
            account += "the agent:";
            for name in LOSS_METRICS {
                account += &format!(" {name} {},", self.metric(name).await?);
            }
        }
        let last = self.engine.last_sequence();
        Ok(format!("{account} the engine's last batch {last:?}"))
    }

    /// Resource use of the agent so far.
    pub fn mark(&self) -> Result<Mark> {
        let cpu = cpu_time(self.process_id()?)?;
        Ok(Mark { at: Instant::now(), cpu, arrived: self.arrived() })
    }

    fn agent(&self) -> Result<&Server> {
        self.agent.as_ref().context("there is no agent")
    }

    fn process_id(&self) -> Result<u32> {
        self.agent()?.process_id().context("the agent has ended")
    }

    /// Resident memory of the agent, in bytes.
    pub fn resident_bytes(&self) -> Result<u64> {
        resident_bytes(self.process_id()?)
    }

    /// The value of one of the agent's metrics.
    pub async fn metric(&self, name: &str) -> Result<f64> {
        let samples = metrics::fetch(self.agent()?.addresses.http).await?;
        let at = samples.iter().find(|at| at.name.ends_with(name));
        Ok(at.with_context(|| format!("no metric {name}"))?.value)
    }

    /// Stops all processes.
    pub async fn stop(mut self) -> Result<()> {
        if self.agent.is_some() {
            let losses = self.metric("source_losses_total").await?;
            ensure!(losses == 0.0, "the agent lost events {losses} times");
        }
        for process in self.agent.iter_mut().chain(&mut self.server) {
            process.kill().await;
        }
        Ok(())
    }
}

impl Mark {
    /// Resource use since `before`.
    pub fn since(self, before: Self) -> Cost {
        Cost {
            operations: (self.arrived - before.arrived) as f64,
            cpu_seconds: (self.cpu - before.cpu).as_secs_f64(),
            wall_seconds: (self.at - before.at).as_secs_f64(),
        }
    }
}

async fn start_agent(engine: &Publisher, more: &[&str], cores: &Cores) -> Result<Server> {
    let at = engine.endpoints();
    let source = format!("endpoint={},replay={}", at.live, at.replay);
    let block_size = BLOCK_SIZE.to_string();
    let flags = [
        ["--worker-id", NAME],
        ["--model", NAME],
        ["--block-size", &block_size],
        ["--engine", "vllm"],
        ["--source", &source],
    ];
    let flags = [flags.as_flattened(), more].concat();
    // Processes started here inherit the processors.
    cores.enter_agents()?;
    let agent = Server::agent(&flags).await;
    cores.enter_others()?;
    agent
}

/// Polls a server for the number of applied operations.
async fn look(mut indexer: Indexer, arrived: Arc<AtomicU64>) {
    loop {
        let stats = indexer.get_stats(pb::GetStatsRequest::default()).await;
        // The task that waits for the operations reports the error.
        let Ok(stats) = stats else { return };
        let counters = stats.into_inner().counters;
        let applied = counters.iter().filter(|at| at.unit == "block" && at.outcome == "applied");
        arrived.store(applied.map(|at| at.count).sum(), Ordering::Release);
        sleep(LOOK_EVERY).await;
    }
}
