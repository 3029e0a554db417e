//! A server process, agents, and questions about workers.

use anyhow::{Context, Result, ensure};
use kvasir_engine::decode::EngineKind;
use kvasir_feed::feed::SourceConfig;
use kvasir_feed::hub::SourceReport;
use kvasir_feed::journal::JournalConfig;
use kvasir_proto::convert::WorkerAddress;
use kvasir_proto::pb;
use kvasir_proto::types::{Incarnation, PartitionKey, SourceState, SourceStatus, WorkerId};
use kvasir_sim::client::{self, Chain, Indexer};
use kvasir_sim::server::Server;
use kvasir_tls::Dialer;
use kvbm_agent::agent::{Agent, AgentConfig, HEARTBEAT_INTERVAL_DEFAULT, SourcesConfig};
use kvbm_agent::load::LoadConfig;
use kvbm_agent::relay::RelayConfig;
use kvbm_agent::service::ServiceConfig;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

pub const MODEL: &str = "m";
/// Longest wait for a condition that holds within milliseconds on an idle machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Prompts that are asked for in a comparison.
const PROMPTS: usize = 20;

/// A running server and a client of it.
pub struct Fleet {
    server: Server,
    pub client: Indexer,
}

impl Fleet {
    pub async fn start() -> Result<Self> {
        let server = Server::start_anywhere().await?;
        let client = client::connect(server.addresses.grpc).await?;
        Ok(Self { server, client })
    }

    /// Adds a worker whose engine listens.
    pub async fn register(
        &mut self,
        worker: &str,
        engine: pb::Engine,
        block_size: u32,
        sockets: (&str, &str),
    ) -> Result<()> {
        self.register_as(worker, engine, block_size, endpoint(sockets)).await
    }

    /// Adds a worker whose engine connects to the server.
    pub async fn register_bound(
        &mut self,
        worker: &str,
        engine: pb::Engine,
        block_size: u32,
        sockets: (&str, &str),
    ) -> Result<()> {
        let endpoint = pb::EngineEndpoint { bind: true, ..endpoint(sockets) };
        self.register_as(worker, engine, block_size, endpoint).await
    }

    async fn register_as(
        &mut self,
        worker: &str,
        engine: pb::Engine,
        block_size: u32,
        endpoint: pb::EngineEndpoint,
    ) -> Result<()> {
        let request = pb::RegisterWorkerRequest {
            worker_id: worker.to_owned(),
            model: MODEL.to_owned(),
            block_size,
            engine: engine.into(),
            endpoints: vec![endpoint],
            ..pb::RegisterWorkerRequest::default()
        };
        self.client.register_worker(request).await.context("register")?;
        Ok(())
    }

    /// Adds a worker `agent`, whose agent relays the engine of another worker.
    pub async fn relay(
        &mut self,
        engine: EngineKind,
        block_size: u32,
        (live, replay): (&str, &str),
        agent: &str,
    ) -> Result<Relayed> {
        let relay =
            RelayConfig { replay: Some(replay.to_owned()), ..RelayConfig::new(engine, live) };
        let partition = PartitionKey::new(MODEL, "")?;
        let address = WorkerAddress { partition, worker: WorkerId::new(agent)? };
        let config = AgentConfig {
            source: SourceConfig {
                address,
                name: "agent".to_owned(),
                block_size,
                incarnation: Incarnation(1),
                first_sequence: 0,
                journal: JournalConfig { copy_mode: relay.copy_mode, ..JournalConfig::DEFAULT },
            },
            journal_dir: None,
            sources: SourcesConfig { relays: vec![relay], ..SourcesConfig::default() },
            blocks: None,
            indexers: vec![format!("http://{}", self.server.addresses.grpc)],
            engine_pool: None,
            pool_indexers: Vec::new(),
            dialer: Dialer::default(),
            broker: None,
            zmq: None,
            loads: LoadConfig::DEFAULT,
            registration: None,
            deregister: false,
            heartbeat_interval: HEARTBEAT_INTERVAL_DEFAULT,
            listen: None,
            guard: kvasir_process::access::Guard::default(),
            service: ServiceConfig::DEFAULT,
        };
        let request = pb::RegisterWorkerRequest {
            worker_id: agent.to_owned(),
            model: MODEL.to_owned(),
            block_size,
            ..pb::RegisterWorkerRequest::default()
        };
        self.client.register_worker(request).await.context("register")?;
        let agent = Agent::start(config).await?;
        let status = agent.hub().watch(live).context("the relay is a source")?;
        Ok(Relayed { agent, status })
    }

    /// What the index holds for a worker, whatever its blocks are called.
    pub async fn chains(&mut self, worker: &str) -> Result<BTreeSet<Chain>> {
        client::dump_chains(&mut self.client, MODEL, worker).await
    }

    /// Compares what the index holds for two workers, and what it answers for both to some of the
    /// prompts that they hold.
    pub async fn ensure_equal(&mut self, one: &str, other: &str) -> Result<()> {
        let held = self.chains(one).await?;
        let also = self.chains(other).await?;
        let missing = held.difference(&also).count();
        let more = also.difference(&held).count();
        ensure!(missing + more == 0, "{other} lacks {missing} of {one}'s, and has {more} more");
        let tips = held.iter().rev().step_by(1 + held.len() / PROMPTS);
        for (_, locals, _) in tips {
            let request = pb::FindMatchesRequest {
                model: MODEL.to_owned(),
                local_hashes: locals.clone(),
                // With several groups, an engine may reuse nothing of what its main group holds.
                minimum_overlap_blocks: Some(0),
                ..pb::FindMatchesRequest::default()
            };
            let answer = self.client.find_matches(request).await?.into_inner();
            let score = |worker: &str| {
                let found = answer.matches.iter().find(|found| found.worker_id == worker);
                found.map(|at| (at.main_group_blocks, at.matched_blocks, at.blocks_by_tier))
            };
            let (score, also) = (score(one), score(other));
            let is_held = score.as_ref().is_some_and(|(in_main_group, ..)| *in_main_group > 0);
            ensure!(is_held && score == also, "{one} {score:?}, {other} {also:?}");
        }
        Ok(())
    }

    /// Waits until everything up to batch `sequence` is in, and nothing is missing.
    pub async fn wait_exact(&mut self, worker: &str, sequence: u64) -> Result<()> {
        let what = format!("exact at {sequence}");
        let condition = |source: &pb::SourceInfo| {
            let at = source.applied.as_ref().map(|applied| applied.sequence);
            at == Some(sequence) && source.state() == pb::WorkerState::Exact
        };
        client::wait_for_sources(&mut self.client, (MODEL, worker), &what, PATIENCE, condition)
            .await
    }

    /// Names that a worker's dump holds on the device.
    pub async fn held(&mut self, worker: &str) -> Result<BTreeSet<u64>> {
        let copies = client::dump_device_copies(&mut self.client, MODEL, worker).await?;
        Ok(copies.into_keys().collect())
    }

    /// Matched blocks of each worker for a prompt.
    pub async fn find(&mut self, request: pb::FindMatchesRequest) -> Result<Vec<(String, u32)>> {
        let request = pb::FindMatchesRequest { model: MODEL.to_owned(), ..request };
        let answer = self.client.find_matches(request).await?.into_inner();
        let matches = answer.matches.into_iter();
        Ok(matches.map(|at| (at.worker_id, at.matched_blocks)).collect())
    }

    pub async fn stop(mut self) {
        self.server.stop().await;
    }
}

/// An engine's events on their way through an agent.
pub struct Relayed {
    agent: Agent,
    status: watch::Receiver<SourceStatus<Instant>>,
}

impl Relayed {
    /// Waits until the index has what the engine said up to a batch.
    pub async fn wait_exact(&mut self, sequence: u64) -> Result<()> {
        let exact = |status: &SourceStatus<Instant>| {
            status.state == SourceState::Exact
                && status.applied.is_some_and(|applied| applied.sequence == sequence)
        };
        let waited = timeout(PATIENCE, self.status.wait_for(exact)).await;
        waited
            .with_context(|| format!("not at {sequence}: {:?}", self.agent.hub().reports()))??;
        let head = self.agent.status().head.context("something was published")?;
        let delivered = timeout(PATIENCE, self.agent.delivered(head)).await;
        delivered.with_context(|| format!("not delivered: {:?}", self.agent.uplinks()))
    }

    /// The agent's account of the engine.
    pub fn report(&self) -> Result<SourceReport> {
        self.agent.hub().reports().into_iter().next().context("one source")
    }
}

fn endpoint((live, replay): (&str, &str)) -> pb::EngineEndpoint {
    pb::EngineEndpoint {
        endpoint: live.to_owned(),
        replay_endpoint: replay.to_owned(),
        ..pb::EngineEndpoint::default()
    }
}
