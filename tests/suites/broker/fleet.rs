//! Agents, a broker and real indexes together.

use crate::agents::{self, Broker, MODEL, PATIENCE};
use crate::engine::Engine;
use kvasir_proto::pb::WorkerInfo;
use kvasir_proto::types::{Incarnation, WorkerId};
use kvasir_sim::client::{self, Indexer};
use kvasir_sim::demo::metrics;
use kvasir_sim::server::Server;
use kvbm_agent::agent::{Agent, AgentConfig};
use kvbm_agent::broker::Delivery;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Where nobody listens: an agent there cannot be asked.
pub const NOBODY: &str = "http://127.0.0.1:9";
pub const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// How often something is looked at that nothing announces.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// An engine with its agent.
pub struct Holder {
    pub worker: String,
    pub agent: Agent,
    pub engine: Engine,
    pub last: u64,
}

impl Holder {
    /// Number `number` of a fleet. With `local`, indexes are told to ask there.
    pub async fn start(
        broker: &Broker,
        number: u64,
        delivery: Delivery,
        local: Option<&str>,
    ) -> Self {
        let config = configured(broker, &format!("w.{number}"), delivery, local);
        let mut holder = Self::with(config, number).await;
        holder.publish(30);
        holder
    }

    /// Nothing is published yet.
    pub async fn with(config: AgentConfig, seed: u64) -> Self {
        let worker = config.source.address.worker.as_str().to_owned();
        Self { worker, agent: agents::start(config).await, engine: Engine::new(seed), last: 0 }
    }

    pub fn publish(&mut self, batches: u64) {
        self.last = agents::publish(&self.agent, &mut self.engine, batches);
    }

    /// A new life, with other content.
    pub fn restart(&mut self, life: u128, seed: u64) {
        self.agent.begin_incarnation(Incarnation(life), 0);
        self.engine = Engine::new(seed);
        self.publish(30);
    }

    pub async fn delivered(&self) {
        agents::delivered(&self.agent, self.last).await;
    }
}

pub fn configured(
    broker: &Broker,
    worker: &str,
    delivery: Delivery,
    local: Option<&str>,
) -> AgentConfig {
    let mut config = agents::config(broker, delivery);
    let id = WorkerId::new(worker).expect("a name");
    config.source.address.worker = id.clone();
    let registration = &mut config.broker.as_mut().expect("a broker").registration;
    registration.worker = id;
    if let Some(local) = local {
        registration.local_indexer = Some(local.to_owned());
    }
    config
}

pub async fn fleet(broker: &Broker, delivery: Delivery, local: Option<&str>) -> Vec<Holder> {
    let mut holders = Vec::new();
    for number in 0..4 {
        holders.push(Holder::start(broker, number, delivery, local).await);
    }
    holders
}

/// Flags of an index that hears a broker.
pub fn flags(broker: &Broker, delivery: &str, more: &[&str]) -> Vec<String> {
    let url = broker.server.url();
    let flags = ["--nats-url", &url, "--nats-delivery", delivery];
    flags.iter().chain(more).map(ToString::to_string).collect()
}

/// With checkpoints, often.
pub fn kept(broker: &Broker, folder: &Path, more: &[&str]) -> Vec<String> {
    let folder = folder.to_string_lossy();
    let checkpoints = ["--checkpoint-dir", &*folder, "--checkpoint-interval", "100ms"];
    flags(broker, "jetstream", &[&checkpoints, more].concat())
}

pub async fn index(flags: &[String]) -> Server {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Server::start_with(ANY, ANY, &flags).await.expect("a server")
}

pub async fn connect(server: &Server) -> Indexer {
    client::connect(server.addresses.grpc).await.expect("a server that listens")
}

/// Waits until the index is exact about all of them, and equal to their engines.
pub async fn check(server: &Server, holders: &[Holder]) {
    let mut indexer = connect(server).await;
    for holder in holders {
        let at = (MODEL, holder.worker.as_str());
        client::wait_until_exact_at(&mut indexer, at, holder.last, PATIENCE)
            .await
            .unwrap_or_else(|error| panic!("{error:#}; {:?}", holder.agent.broker()));
        assert_eq!(held(server, &holder.worker).await, holder.engine.truth(), "{}", holder.worker);
    }
}

/// What an index holds for a worker: names with their copies.
pub async fn held(server: &Server, worker: &str) -> BTreeMap<u64, u32> {
    let mut indexer = connect(server).await;
    client::dump_device_copies(&mut indexer, MODEL, worker).await.expect("a dump")
}

/// What an index says of a worker.
pub async fn known(server: &Server, worker: &str) -> Option<WorkerInfo> {
    client::find_worker(&mut connect(server).await, MODEL, worker).await.expect("an answer")
}

/// What `/readyz` says.
pub async fn readiness(server: &Server) -> (u16, String) {
    metrics::get(server.addresses.http, "/readyz").await.expect("an answer")
}

/// Waits until something is so that nothing announces.
pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let waited = timeout(PATIENCE, async {
        while !is_so().await {
            sleep(POLL_INTERVAL).await;
        }
    });
    waited.await.unwrap_or_else(|_late| panic!("{what}: not within {PATIENCE:?}"));
}
