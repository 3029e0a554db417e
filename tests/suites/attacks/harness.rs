//! A server under attack, with what must hold meanwhile.

use anyhow::{Context, Result, ensure};
use kvasir_feed::uplink::{SourceIdentity, Uplink};
use kvasir_proto::pb;
use kvasir_proto::types::{
    BlockName, Incarnation, KvEvent, PartitionKey, StoredBlock, Tier, WorkerId,
};
use kvasir_sim::client;
use kvasir_sim::demo::metrics;
use kvasir_sim::server::Server;
use router_client::{Calls, ClientConfig, IndexerClient, Prompt};
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Most memory that the server may take while it is attacked, in bytes.
pub const MEMORY_MAX: u64 = 1 << 30;
/// Longest wait for `/livez`.
pub const LIVEZ_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest time until the server has back what a client held that has left.
pub const RELEASE_TIMEOUT: Duration = Duration::from_secs(40);
/// Nothing in these tests takes nearly as long.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// How often a condition is looked at that nothing announces.
pub const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How often metrics are read.
const SCRAPE_INTERVAL: Duration = Duration::from_millis(200);
/// How often the healthy client asks.
const ASK_INTERVAL: Duration = Duration::from_millis(20);
/// Longest wait of the healthy client for an answer.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);
/// How often `/livez` is read.
const LIVEZ_INTERVAL: Duration = Duration::from_millis(100);

/// The healthy client's model, worker and blocks.
pub const MODEL: &str = "healthy";
/// The healthy client's worker.
pub const WORKER: &str = "w";
const BLOCK_SIZE: u32 = 4;
const BLOCKS: u32 = 64;

/// A server that is attacked. Until [`Siege::end`] a healthy client asks it every 20 ms, in a stream and by a single call in
/// turn, each over a connection of its own; and `/livez` is read every 100 ms over a new connection each time.
pub struct Siege {
    /// The server.
    pub server: Server,
    /// Memory that it took before the attack, in bytes.
    pub memory_before: u64,
    /// The healthy worker's publisher: its blocks stay as long as it is there.
    _uplink: Uplink,
    stop: CancellationToken,
    healthy: JoinHandle<Result<Vec<Duration>>>,
    lives: JoinHandle<Result<u64>>,
}

impl Siege {
    /// Starts a server with these flags, a healthy client and the reader of `/livez`.
    pub async fn begin(flags: &[&str]) -> Result<Self> {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self::around(Server::start_with(any, any, flags).await?).await
    }

    /// The same for a server that runs already, such as one that was prepared for the attack.
    pub async fn around(server: Server) -> Result<Self> {
        let addresses = server.addresses;
        let (routers, uplink) = healthy_client(addresses.grpc).await?;
        let stop = CancellationToken::new();
        let healthy = tokio::spawn(ask(routers, stop.clone()));
        let lives = tokio::spawn(read_livez(addresses.http, stop.clone()));
        let memory_before = memory(&server)?.now;
        Ok(Self { server, memory_before, _uplink: uplink, stop, healthy, lives })
    }

    /// Address of the gRPC port.
    pub const fn grpc(&self) -> SocketAddr {
        self.server.addresses.grpc
    }

    /// Address of the side port.
    pub const fn http(&self) -> SocketAddr {
        self.server.addresses.http
    }

    /// Memory of the server.
    pub fn memory(&self) -> Result<Memory> {
        memory(&self.server)
    }

    /// The sum of the samples of a metric whose labels contain a text.
    pub async fn metric(&self, name: &str, labels: &str) -> Result<f64> {
        metrics::sum(self.http(), name, labels).await
    }

    /// Waits until a metric, as [`Siege::metric`] reads it, fulfils a condition.
    pub async fn until(
        &self,
        (name, labels): (&str, &str),
        condition: impl Fn(f64) -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let value = self.metric(name, labels).await?;
            if condition(value) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{name} of {labels:?} is {value}");
            sleep(SCRAPE_INTERVAL).await;
        }
    }

    /// Waits until the server's memory is at most `slack` bytes above what it was before the attack. To be called
    /// when the attackers have left.
    pub async fn released(&self, slack: u64) -> Result<()> {
        let limit = self.memory_before + slack;
        let what = || Ok(self.memory()?.now <= limit);
        let released = wait_for(RELEASE_TIMEOUT, what).await;
        released.with_context(|| format!("{:?} left, at most {limit} expected", self.memory()))
    }

    /// Ends the attack's witnesses and the server.
    ///
    /// # Errors
    /// If the server took more than [`MEMORY_MAX`], `/livez` was late, or the healthy client failed.
    pub async fn end(self) -> Result<()> {
        self.end_within(ASK_TIMEOUT).await
    }

    /// The same, if all but one in a hundred of the healthy client's answers came within a time. It is to be generous:
    /// tests share the machine.
    pub async fn end_within(mut self, late: Duration) -> Result<()> {
        let memory = self.memory().context("the server has ended")?;
        self.stop.cancel();
        let mut times = self.healthy.await?.context("the healthy client")?;
        let lives = self.lives.await?.context("/livez")?;
        times.sort_unstable();
        let answers = times.len();
        let share =
            |percent: usize| times.get((answers * percent).div_ceil(100).max(1) - 1).copied();
        let [half, most] = [50, 99].map(|percent| share(percent).unwrap_or_default());
        println!(
            "{answers} answers, p50 {half:?}, p99 {most:?}; {lives} times alive, memory {memory:?}"
        );
        ensure!(most <= late, "p99 of the healthy client is {most:?}");
        ensure!(memory.peak <= MEMORY_MAX, "the server took {memory:?} bytes");
        ensure!(answers > 0 && lives > 0, "the attack was too short to be witnessed");
        self.server.stop().await;
        Ok(())
    }
}

/// Memory of a process in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// Now (`VmRSS`).
    pub now: u64,
    /// The most since its start (`VmHWM`).
    pub peak: u64,
}

/// Memory of a server.
pub fn memory(server: &Server) -> Result<Memory> {
    let id = server.process_id().context("the server has ended")?;
    let status = fs::read_to_string(format!("/proc/{id}/status"))?;
    let field = |name: &str| -> Result<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|rest| rest.split_whitespace().next());
        Ok(kib.with_context(|| format!("no {name} in {status}"))?.parse::<u64>()? << 10)
    };
    Ok(Memory { now: field("VmRSS:")?, peak: field("VmHWM:")? })
}

/// Waits until a condition holds.
pub async fn wait_for(limit: Duration, condition: impl Fn() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + limit;
    while !condition()? {
        ensure!(Instant::now() < deadline, "not within {limit:?}");
        sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

fn tokens() -> Vec<u32> {
    (0..BLOCKS * BLOCK_SIZE).collect()
}

/// A client of a server that holds all blocks of the client's prompt.
async fn healthy_client(address: SocketAddr) -> Result<([IndexerClient; 2], Uplink)> {
    let mut indexer = client::connect(address).await?;
    let request = pb::RegisterWorkerRequest {
        worker_id: WORKER.to_owned(),
        model: MODEL.to_owned(),
        block_size: BLOCK_SIZE,
        ..Default::default()
    };
    indexer.register_worker(request).await.context("register the healthy client's worker")?;
    let source = SourceIdentity {
        partition: PartitionKey::new(MODEL, "")?,
        worker: WorkerId::new(WORKER)?,
        source: "agent".to_owned(),
        block_size: BLOCK_SIZE,
        incarnation: Incarnation(1),
    };
    let url = format!("http://{address}");
    let mut uplink = Uplink::open(&url, source).await?;
    let tokens = tokens();
    let blocks = (1..).zip(Prompt::new(MODEL, BLOCK_SIZE, &tokens).local_hashes());
    let blocks = blocks.map(|(name, local)| StoredBlock { name: BlockName(name), local });
    let stored = KvEvent::Stored { parent: None, tier: Tier::Device, blocks: blocks.collect() };
    uplink.publish(0, &[stored]).await?;
    let client = |calls| {
        let config = ClientConfig { deadline: ASK_TIMEOUT, calls, ..ClientConfig::default() };
        IndexerClient::connect(&url, config)
    };
    Ok(([client(Calls::Pipelined)?, client(Calls::Single)?], uplink))
}

/// Asks until it is told to stop; how long each answer took.
async fn ask(routers: [IndexerClient; 2], stop: CancellationToken) -> Result<Vec<Duration>> {
    let tokens = tokens();
    let prompt = Prompt::new(MODEL, BLOCK_SIZE, &tokens);
    let mut ticks = interval(ASK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut times = Vec::new();
    for router in routers.iter().cycle() {
        // Once at least, however short the attack was.
        if stop.run_until_cancelled(ticks.tick()).await.is_none() && !times.is_empty() {
            break;
        }
        let answers = times.len();
        let begun = Instant::now();
        let answer = router.find(&prompt).await.with_context(|| format!("answer {answers}"))?;
        let held = answer.best().map_or(0, |best| best.blocks);
        ensure!(held == BLOCKS, "answer {answers}: {held} of {BLOCKS} blocks");
        times.push(begun.elapsed());
    }
    Ok(times)
}

/// Reads `/livez` until it is told to stop; counts the answers.
async fn read_livez(address: SocketAddr, stop: CancellationToken) -> Result<u64> {
    let mut ticks = interval(LIVEZ_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut answers = 0;
    while stop.run_until_cancelled(ticks.tick()).await.is_some() || answers == 0 {
        let page = timeout(LIVEZ_TIMEOUT, metrics::get(address, "/livez")).await;
        let (status, _) = page.context("late")?.with_context(|| format!("answer {answers}"))?;
        ensure!(status == 200, "status {status}");
        answers += 1;
    }
    Ok(answers)
}
