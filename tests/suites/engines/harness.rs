//! A server process and questions about its one worker.

use anyhow::{Context, Result};
use kvasir_proto::pb;
use kvasir_tests::client::{self, Indexer};
use kvasir_tests::server::Server;
use std::collections::BTreeSet;
use std::time::Duration;

pub const MODEL: &str = "m";
/// Longest wait for a condition that holds within milliseconds on an idle machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

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

fn endpoint((live, replay): (&str, &str)) -> pb::EngineEndpoint {
    pb::EngineEndpoint {
        endpoint: live.to_owned(),
        replay_endpoint: replay.to_owned(),
        ..pb::EngineEndpoint::default()
    }
}
