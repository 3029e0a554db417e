//! Agents: a replica that copies asks them for nothing but what came since.

use crate::harness::{BLOCK_SIZE, MODEL, PATIENCE, anywhere, metric, url};
use anyhow::{Context, Result, ensure};
use kvasir_feed::feed::SourceConfig;
use kvasir_feed::journal::JournalConfig;
use kvasir_proto::convert::WorkerAddress;
use kvasir_proto::pb;
use kvasir_proto::types::{
    BlockName, CopyMode, Incarnation, KvEvent, LocalHash, PartitionKey, StoredBlock, Tier, WorkerId,
};
use kvasir_sim::client;
use kvasir_sim::demo::metrics;
use kvasir_sim::place::free_port;
use kvasir_sim::server::Server;
use kvasir_tls::Dialer;
use kvbm_agent::agent::{Agent, AgentConfig, HEARTBEAT_INTERVAL_DEFAULT, SourcesConfig};
use kvbm_agent::load::LoadConfig;
use kvbm_agent::service::ServiceConfig;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use tokio::time::timeout;

/// Batches that an agent can send again: far from all.
const JOURNAL_BATCHES: usize = 20;
const INCARNATION: Incarnation = Incarnation(7);

async fn agent(indexers: Vec<String>) -> Result<Agent> {
    let address =
        WorkerAddress { partition: PartitionKey::new(MODEL, "")?, worker: WorkerId::new("w")? };
    let journal = JournalConfig {
        copy_mode: CopyMode::Counted,
        batches_max: JOURNAL_BATCHES,
        ..JournalConfig::DEFAULT
    };
    let source = SourceConfig {
        address,
        name: "agent".to_owned(),
        block_size: BLOCK_SIZE as u32,
        incarnation: INCARNATION,
        first_sequence: 0,
        journal,
    };
    Ok(Agent::start(AgentConfig {
        source,
        indexers,
        engine_pool: None,
        pool_indexers: Vec::new(),
        dialer: Dialer::default(),
        broker: None,
        zmq: None,
        journal_dir: None,
        sources: SourcesConfig::default(),
        blocks: None,
        loads: LoadConfig::DEFAULT,
        registration: None,
        deregister: false,
        heartbeat_interval: HEARTBEAT_INTERVAL_DEFAULT,
        listen: Some(anywhere()),
        guard: kvasir_process::access::Guard::default(),
        service: ServiceConfig::DEFAULT,
    })
    .await?)
}

/// A chain of eight blocks, in host memory as well if its number is even; every third store drops a
/// block of the one before. Returns the batch's number.
fn publish(agent: &Agent, chain: u64) -> Result<u64> {
    let block =
        |at| StoredBlock { name: BlockName(chain << 8 | at), local: LocalHash(chain * 9 + at) };
    let stored = |tier| {
        let blocks = (1..9).map(block).collect();
        KvEvent::Stored { parent: None, tier, blocks }
    };
    let mut events = vec![stored(Tier::Device)];
    if chain.is_multiple_of(2) {
        events.push(stored(Tier::Host));
    }
    if chain.is_multiple_of(3) && chain > 0 {
        let names = vec![BlockName((chain - 1) << 8 | 8)];
        events.push(KvEvent::Removed { tier: Tier::Device, names });
    }
    Ok(agent.publish(0, events)?)
}

async fn register(server: &Server, agent: &Agent) -> Result<()> {
    let mut indexer = client::connect(server.addresses.grpc).await?;
    let request = pb::RegisterWorkerRequest {
        worker_id: "w".to_owned(),
        model: MODEL.to_owned(),
        block_size: BLOCK_SIZE as u32,
        local_indexer_endpoint: agent.local_address().map(url).unwrap_or_default(),
        ..Default::default()
    };
    indexer.register_worker(request).await?;
    Ok(())
}

async fn held(server: &Server, sequence: u64) -> Result<BTreeMap<u64, u32>> {
    let mut indexer = client::connect(server.addresses.grpc).await?;
    client::wait_until_exact_at(&mut indexer, (MODEL, "w"), sequence, PATIENCE).await?;
    client::dump_device_copies(&mut indexer, MODEL, "w").await
}

#[tokio::test]
async fn agents_are_asked_for_no_dump() -> Result<()> {
    let mut elder = Server::start_anywhere().await?;
    let [younger, lone] = [free_port()?, free_port()?];
    let [younger, lone] = [younger, lone].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let indexers = [elder.addresses.grpc, younger, lone].map(url).to_vec();
    let agent = agent(indexers).await?;
    register(&elder, &agent).await?;
    let mut last = 0;
    for chain in 0..300 {
        last = publish(&agent, chain)?;
        held_back(&elder, last).await?;
    }
    let before = held(&elder, last).await?;
    ensure!(before.len() > 2_000, "{} blocks", before.len());

    let flags = ["--siblings", &url(elder.addresses.grpc)];
    let mut younger = Server::start_with(younger, anywhere(), &flags).await?;
    metrics::ready(younger.addresses.http).await?;
    ensure!(held(&younger, last).await? == before, "it holds what the elder holds");
    for chain in 300..310 {
        last = publish(&agent, chain)?;
    }
    let now = held(&younger, last).await?;
    ensure!(now == held(&elder, last).await? && now != before, "and goes on as it does");
    ensure!(metric(&younger, "_asks_total", "").await? == 0.0, "nobody was asked");
    ensure!(metric(&younger, "sibling_workers_copied_total", "").await? == 1.0, "it was copied");

    // One that copies nothing has to have a dump made.
    let mut lone = Server::start_with(lone, anywhere(), &[]).await?;
    register(&lone, &agent).await?;
    last = publish(&agent, 310)?;
    ensure!(held(&lone, last).await? == held(&elder, last).await?, "it comes to the same");
    ensure!(metric(&lone, "_asks_total", "what=\"dump\"").await? >= 1.0, "by a dump");
    ensure!(agent.stop(PATIENCE).await, "all is delivered");
    for server in [&mut elder, &mut younger, &mut lone] {
        server.stop().await;
    }
    Ok(())
}

/// The elder keeps up, so that it needs no dump either.
async fn held_back(elder: &Server, sequence: u64) -> Result<()> {
    if !sequence.is_multiple_of(JOURNAL_BATCHES as u64 / 2) {
        return Ok(());
    }
    let mut indexer = client::connect(elder.addresses.grpc).await?;
    let exact = client::wait_until_exact_at(&mut indexer, (MODEL, "w"), sequence, PATIENCE);
    timeout(PATIENCE, exact).await.context("the elder keeps up")?
}
