//! What an agent can do with its address, which others connect to because a registration names it.

use crate::calls::Caller;
use crate::fixture;
use anyhow::{Context, Result, ensure};
use kvasir_proto::pb;
use kvasir_proto::pb::worker_loads_server::{WorkerLoads, WorkerLoadsServer};
use kvasir_sim::server::Server;
use prost::Message;
use std::fs;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport;
use tonic::{Request, Response, Status};

/// Nothing in this test takes nearly as long.
const PATIENCE: Duration = Duration::from_secs(60);

/// An agent that keeps what callers show, and reports loads for its own worker and for another one.
struct Thief {
    shown: mpsc::Sender<Option<String>>,
}

fn load(worker_id: &str, waiting: u64) -> pb::WorkerLoad {
    pb::WorkerLoad {
        model: "m1".to_owned(),
        tenant: "a".to_owned(),
        worker_id: worker_id.to_owned(),
        num_requests_waiting: Some(waiting),
        ..Default::default()
    }
}

#[tonic::async_trait]
impl WorkerLoads for Thief {
    type WatchLoadsStream = ReceiverStream<Result<pb::WatchLoadsResponse, Status>>;

    async fn report_load(
        &self,
        _: Request<pb::ReportLoadRequest>,
    ) -> Result<Response<pb::ReportLoadResponse>, Status> {
        Err(Status::unimplemented("nobody reports here"))
    }

    async fn watch_loads(
        &self,
        request: Request<pb::WatchLoadsRequest>,
    ) -> Result<Response<Self::WatchLoadsStream>, Status> {
        let header = request.metadata().get("authorization");
        let shown = header.map(|value| format!("{value:?}"));
        // Of later calls nobody needs to know.
        let _full = self.shown.try_send(shown);
        let (parts, stream) = mpsc::channel(1);
        // The foreign load comes first: once the own one is shown, it has been dropped.
        let loads = vec![load("w-other", 99), load("w-own", 7)];
        let _gone = parts.send(Ok(pb::WatchLoadsResponse { loads })).await;
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

async fn register(index: &Caller, worker_id: &str, agent: &str) -> Result<()> {
    let request = pb::RegisterWorkerRequest {
        worker_id: worker_id.to_owned(),
        model: "m1".to_owned(),
        tenant: "a".to_owned(),
        block_size: 16,
        local_indexer_endpoint: agent.to_owned(),
        ..Default::default()
    };
    index.call("/kvasir.v1.Indexer/RegisterWorker", &request).await?;
    Ok(())
}

/// What the router knows of a worker's waiting requests.
async fn waiting(router: &Caller, worker_id: &str) -> Result<Option<u64>> {
    let request = pb::GetLoadsRequest::default();
    let answers = router.call("/kvasir.v1.Router/GetLoads", &request).await?;
    let answer = answers.first().context("no answer")?;
    let loads = pb::GetLoadsResponse::decode(answer.clone())?;
    let rank = loads.ranks.into_iter().find(|rank| rank.worker_id == worker_id);
    Ok(rank.and_then(|rank| rank.reported).and_then(|load| load.num_requests_waiting))
}

#[tokio::test]
async fn an_agent_learns_no_token_and_speaks_for_its_own_worker() -> Result<()> {
    let (mut index, folder) = fixture::index(&[]).await?;
    let (shown_tx, mut shown) = mpsc::channel(1);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let agent = format!("http://{}", listener.local_addr()?);
    let service = WorkerLoadsServer::new(Thief { shown: shown_tx });
    let serving = transport::Server::builder().add_service(service);
    let mut tasks = JoinSet::new();
    tasks.spawn(serving.serve_with_incoming(TcpListenerStream::new(listener)));
    let publisher = Caller::connect(index.addresses.grpc, Some("publish-a")).await?;
    register(&publisher, "w-own", &agent).await?;
    register(&publisher, "w-other", "").await?;

    let token = folder.path().join("token");
    fs::write(&token, "query\n")?;
    let (target, token) = (format!("http://{}", index.addresses.grpc), token.display().to_string());
    let flags =
        ["--indexer", &target, "--token-file", &token, "--timing", "discovery-interval=100ms"];
    let mut router = Server::router(&flags).await?;
    // The index has let the router in by its token, or it would not know the agent.
    let seen = timeout(PATIENCE, shown.recv()).await.context("nobody asks the agent")?;
    ensure!(seen == Some(None), "the agent was shown {seen:?}");
    let loads = Caller::connect(router.addresses.grpc, None).await?;
    let deadline = Instant::now() + PATIENCE;
    while waiting(&loads, "w-own").await? != Some(7) {
        ensure!(Instant::now() < deadline, "the agent's own load is not shown");
        sleep(Duration::from_millis(20)).await;
    }
    ensure!(waiting(&loads, "w-other").await?.is_none(), "the agent spoke for another worker");
    router.stop().await;
    index.stop().await;
    tasks.shutdown().await;
    Ok(())
}
