//! A server of the index, mock engines that it reads, and a router that asks it.

use anyhow::{Context, Result, ensure};
use kvasir_proto::pb;
use kvasir_proto::pb::router_client::RouterClient;
use kvasir_sim::client::{self, Indexer};
use kvasir_sim::demo::metrics;
use kvasir_sim::engine::{EngineConfig, MockEngine, Prompt};
use kvasir_sim::server::{Addresses, Server};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tonic::transport::{Channel, Endpoint};

pub const MODEL: &str = "m";
pub const BLOCK_SIZE: usize = 16;
/// Nothing in these tests takes nearly as long.
pub const PATIENCE: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

pub type Router = RouterClient<Channel>;

/// An index, engines, a router.
pub struct Fleet {
    pub server: Server,
    pub indexer: Indexer,
    pub engines: Vec<(String, MockEngine)>,
    pub process: Server,
    pub router: Router,
}

/// A server with so many engines, `w0` and so on.
pub async fn index(engines: usize) -> Result<(Server, Indexer, Vec<(String, MockEngine)>)> {
    let server = Server::start_anywhere().await?;
    let mut indexer = client::connect(server.addresses.grpc).await?;
    let mut started = Vec::new();
    for number in 0..engines {
        let engine =
            MockEngine::start(EngineConfig { block_size: BLOCK_SIZE, ..Default::default() });
        let id = format!("w{number}");
        let engine = engine.await?;
        client::register_engine(&mut indexer, (MODEL, &id), BLOCK_SIZE, &engine).await?;
        started.push((id, engine));
    }
    Ok((server, indexer, started))
}

/// Connects to a router that listens.
pub async fn connect(address: SocketAddr) -> Result<Router> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
    Ok(RouterClient::new(endpoint.tcp_nodelay(true).connect().await?))
}

/// A prompt of so many blocks that begins with `first`.
pub fn tokens(first: u32, blocks: usize) -> Vec<u32> {
    (0..).map(|at| first + at).take(blocks * BLOCK_SIZE).collect()
}

/// A request with these tokens.
pub fn request(tokens: Vec<u32>) -> pb::SelectWorkerRequest {
    pb::SelectWorkerRequest { model: MODEL.to_owned(), token_ids: tokens, ..Default::default() }
}

/// Polls until a condition holds.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await? {
            return Ok(found);
        }
        ensure!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        sleep(POLL_INTERVAL).await;
    }
}

/// The requests under way at each rank, as a router knows them.
pub async fn loads(router: &mut Router) -> Result<Vec<(String, u64)>> {
    let loads = router.get_loads(pb::GetLoadsRequest::default()).await?.into_inner();
    let routed = |at: pb::RouterRankLoad| (at.worker_id, at.routed.unwrap_or_default().requests);
    Ok(loads.ranks.into_iter().map(routed).collect())
}

/// The report of the end of a request.
pub fn free(request_id: &str) -> pb::FreeRequest {
    let model = MODEL.to_owned();
    let request_id = request_id.to_owned();
    pb::FreeRequest { model, request_id, ..Default::default() }
}

/// Starts a router and waits until it knows the workers.
pub async fn start_router(index: &str, flags: &[&str]) -> Result<(Server, Router)> {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    start_router_at(Addresses { grpc: any, http: any }, index, flags).await
}

/// The same on these addresses.
pub async fn start_router_at(
    addresses: Addresses,
    index: &str,
    flags: &[&str],
) -> Result<(Server, Router)> {
    let own = ["--indexer", index, "--timing", "discovery-interval=100ms"];
    let process = Server::router_at(addresses, &[&own, flags].concat()).await?;
    metrics::ready(process.addresses.http).await.with_context(|| process.output())?;
    let router = connect(process.addresses.grpc).await?;
    Ok((process, router))
}

impl Fleet {
    pub async fn start(engines: usize, flags: &[&str]) -> Result<Self> {
        let (server, indexer, engines) = index(engines).await?;
        let (process, router) = start_router(&server.addresses.grpc.to_string(), flags).await?;
        let mut fleet = Self { server, indexer, engines, process, router };
        let count = fleet.engines.len();
        let mut watched = fleet.router.clone();
        until("all engines are known", async || {
            Ok((loads(&mut watched).await?.len() == count).then_some(()))
        })
        .await?;
        fleet.exact().await?;
        Ok(fleet)
    }

    /// Registers a worker without an engine, and waits until the router knows it.
    pub async fn register(&mut self, id: &str, profile: pb::WorkerProfile) -> Result<()> {
        let request = pb::RegisterWorkerRequest {
            worker_id: id.to_owned(),
            model: MODEL.to_owned(),
            block_size: BLOCK_SIZE as u32,
            profile: Some(profile),
            ..Default::default()
        };
        self.indexer.register_worker(request).await?;
        let router = &mut self.router;
        until("the worker is known", async || {
            Ok(loads(router).await?.iter().any(|(worker, _)| worker == id).then_some(()))
        })
        .await
    }

    /// Has an engine compute a prompt, and waits until the index knows of it.
    pub async fn compute(&mut self, engine: usize, tokens: Vec<u32>) -> Result<()> {
        let (_, mock) = self.engines.get(engine).context("an engine")?;
        mock.run(Prompt { tokens, answer: Vec::new() }).await?;
        self.exact().await
    }

    async fn exact(&mut self) -> Result<()> {
        for (id, engine) in &self.engines {
            let Some(sequence) = engine.truth().await?.last_sequence else { continue };
            let exact = |source: &pb::SourceInfo| client::is_exact_at(source, sequence);
            let worker = (MODEL, id.as_str());
            client::wait_for_sources(&mut self.indexer, worker, "exact", PATIENCE, exact).await?;
        }
        Ok(())
    }

    pub async fn select(
        &mut self,
        request: pb::SelectWorkerRequest,
    ) -> Result<pb::SelectWorkerResponse> {
        Ok(self.router.select_worker(request).await?.into_inner())
    }

    pub async fn stop(mut self) {
        self.process.stop().await;
        self.server.stop().await;
        for (_, engine) in self.engines {
            engine.stop().await;
        }
    }
}
