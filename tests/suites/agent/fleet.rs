//! A fleet of engines, each with its agent, over every transport: whoever is killed, an index ends with what the
//! engines hold.

use crate::harness::{MODEL, PATIENCE, url};
use crate::relay::{engine_config, prompt};
use anyhow::{Context, Result, ensure};
use kvasir_sim::client::{self, Indexer};
use kvasir_sim::demo::metrics;
use kvasir_sim::engine::EngineProcess;
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
use tokio::time::{sleep, timeout};
use tokio::try_join;

const ENGINES: usize = 3;
/// Requests of each engine before, during and after a kill.
const REQUESTS: u64 = 15;
/// An engine is killed within so much of a request.
const REQUEST_TIME: Duration = Duration::from_millis(3);
/// How often the index is looked at.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Grpc,
    Core,
    Jetstream,
    /// The agents play engines; the index is configured for these.
    Zmq,
}

/// One worker.
struct Member {
    worker: String,
    engine: Arc<EngineProcess>,
    agent: Server,
    flags: Vec<String>,
}

struct Fleet {
    transport: Transport,
    index: Server,
    index_flags: Vec<String>,
    broker: Option<NatsServer>,
    members: Vec<Member>,
    _folder: TempDir,
}

fn any() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn anywhere() -> Addresses {
    Addresses { grpc: any(), http: any() }
}

/// Where a process listens that comes back.
fn free() -> Result<SocketAddr> {
    Ok(SocketAddr::from(([127, 0, 0, 1], free_port()?)))
}

fn owned(flags: &[&str]) -> Vec<String> {
    flags.iter().map(|flag| (*flag).to_owned()).collect()
}

fn borrowed(flags: &[String]) -> Vec<&str> {
    flags.iter().map(String::as_str).collect()
}

impl Fleet {
    async fn start(transport: Transport) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let broker = match transport {
            Transport::Core | Transport::Jetstream => Some(NatsServer::start(folder.path()).await?),
            Transport::Grpc | Transport::Zmq => None,
        };
        let delivery = if transport == Transport::Core { "core" } else { "jetstream" };
        let broker_flags = broker
            .as_ref()
            .map(|broker| owned(&["--nats-url", &broker.url(), "--nats-delivery", delivery]));
        let broker_flags = broker_flags.unwrap_or_default();
        let mut index_flags = broker_flags.clone();
        let mut played = Vec::new();
        for number in 0..ENGINES {
            let live = free()?.to_string();
            let replay = free()?.to_string();
            if transport == Transport::Zmq {
                let worker = format!(
                    "id=w-{number},model={MODEL},block-size={},engine=custom,copy-mode=counted,\
                     endpoint=tcp://{live},replay=tcp://{replay},topic=kv-events",
                    crate::engine::BLOCK_SIZE
                );
                index_flags.extend(["--worker".to_owned(), worker]);
            }
            played.push((live, replay));
        }
        let index = Server::start_with(any(), any(), &borrowed(&index_flags)).await?;
        let mut members = Vec::new();
        for (number, (live, replay)) in played.into_iter().enumerate() {
            let worker = format!("w-{number}");
            let engine = Arc::new(EngineProcess::start(engine_config()).await?);
            let source =
                format!("endpoint={},replay={}", engine.endpoint(), engine.replay_endpoint());
            let block_size = crate::engine::BLOCK_SIZE.to_string();
            let mut flags = owned(&[
                "--worker-id",
                &worker,
                "--model",
                MODEL,
                "--block-size",
                &block_size,
                "--engine",
                "vllm",
                "--source",
                &source,
                "--lease",
                "10s",
            ]);
            match transport {
                Transport::Grpc => {
                    flags.extend(["--indexers".to_owned(), url(index.addresses.grpc)]);
                }
                Transport::Core | Transport::Jetstream => flags.extend(broker_flags.clone()),
                Transport::Zmq => {
                    let sockets = format!("listen={live},replay-listen={replay}");
                    flags.extend(["--zmq".to_owned(), sockets]);
                }
            }
            let agent = Server::agent_at(anywhere(), &borrowed(&flags)).await?;
            members.push(Member { worker, engine, agent, flags });
        }
        Ok(Self { transport, index, index_flags, broker, members, _folder: folder })
    }

    fn engines(&self) -> Vec<Arc<EngineProcess>> {
        self.members.iter().map(|member| Arc::clone(&member.engine)).collect()
    }

    /// Waits until the index holds of each worker what its engine does.
    async fn equal(&self, what: &str) -> Result<()> {
        let mut client = client::connect(self.index.addresses.grpc).await?;
        for member in &self.members {
            let truth = member.engine.truth().await?.copies;
            assert!(truth.len() > 50, "{} blocks", truth.len());
            let same = async {
                while held(&mut client, &member.worker).await != truth {
                    sleep(LOOK).await;
                }
            };
            let context =
                || format!("{:?}, {what}: {} never is equal", self.transport, member.worker);
            timeout(PATIENCE, same).await.with_context(context)?;
        }
        // What is lost on the way is noticed as lost, and fetched; nothing is left for audits to find.
        let differs = metrics::sum(self.index.addresses.http, "_audits_total", "differs").await?;
        ensure!(differs == 0.0, "{:?}, {what}: {differs} audits", self.transport);
        Ok(())
    }

    async fn kill_agent(&mut self, number: usize) -> Result<()> {
        let member = self.members.get_mut(number).context("a member")?;
        member.agent.kill().await;
        let addresses = member.agent.addresses;
        member.agent = Server::agent_at(addresses, &borrowed(&member.flags)).await?;
        Ok(())
    }

    async fn kill_index(&mut self) -> Result<()> {
        self.index.kill().await;
        let Addresses { grpc, http } = self.index.addresses;
        self.index = Server::start_with(grpc, http, &borrowed(&self.index_flags)).await?;
        Ok(())
    }
}

/// Has all engines answer prompts; those under which an engine is killed have no answer.
async fn load_all(engines: &[Arc<EngineProcess>], random: &mut ChaCha8Rng) -> Result<()> {
    for engine in engines {
        for _ in 0..REQUESTS {
            engine.run(prompt(random)).await?;
        }
    }
    Ok(())
}

/// Kills an engine within the request after those that are waited for.
async fn kill_engine(
    engine: &EngineProcess,
    answered: impl Future<Output = ()>,
    pause: Duration,
) -> Result<()> {
    answered.await;
    sleep(pause).await;
    engine.kill().await
}

/// What the index holds of a worker; nothing where it cannot say.
async fn held(client: &mut Indexer, worker: &str) -> BTreeMap<u64, u32> {
    client::dump_device_copies(client, MODEL, worker).await.unwrap_or_default()
}

/// Each of them in turn, twice, under load.
async fn survive(transport: Transport) -> Result<()> {
    let seed = transport as u64;
    println!("seed {seed}");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut fleet = Fleet::start(transport).await?;
    let engines = fleet.engines();
    load_all(&engines, &mut random).await?;
    fleet.equal("at first").await?;
    for round in 0..2 {
        let number = random.random_range(0..ENGINES);
        let mut during = ChaCha8Rng::from_rng(&mut random);

        try_join!(load_all(&engines, &mut during), fleet.kill_agent(number))?;
        load_all(&engines, &mut random).await?;
        fleet.equal(&format!("round {round}, agent {number} killed")).await?;

        let engine = engines.get(number).context("an engine")?;
        // Counted from before the load, of which requests may be answered before the other is looked at.
        let answered = engine.answered(random.random_range(1..REQUESTS));
        let pause = random.random_range(Duration::ZERO..REQUEST_TIME);
        try_join!(load_all(&engines, &mut during), kill_engine(engine, answered, pause))?;
        load_all(&engines, &mut random).await?;
        fleet.equal(&format!("round {round}, engine {number} killed")).await?;

        try_join!(load_all(&engines, &mut during), fleet.kill_index())?;
        load_all(&engines, &mut random).await?;
        fleet.equal(&format!("round {round}, index killed")).await?;

        if let Some(broker) = &mut fleet.broker {
            broker.kill().await;
            load_all(&engines, &mut during).await?;
            try_join!(load_all(&engines, &mut during), broker.restart())?;
            load_all(&engines, &mut random).await?;
            fleet.equal(&format!("round {round}, broker killed")).await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_grpc() -> Result<()> {
    survive(Transport::Grpc).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_core_nats() -> Result<()> {
    survive(Transport::Core).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_jetstream() -> Result<()> {
    survive(Transport::Jetstream).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_zmq() -> Result<()> {
    survive(Transport::Zmq).await
}
