//! How busy engines say they are, as the router shows it: from an agent, and over NATS.

use crate::aged::AgedAgent;
use crate::fleet::{BLOCK_SIZE, Fleet, MODEL, Router, index, request, start_router, tokens, until};
use anyhow::{Context, Result, ensure};
use kvasir_proto::broker::loads_subject;
use kvasir_proto::convert::WorkerAddress;
use kvasir_proto::pb;
use kvasir_proto::pb::worker_loads_client::WorkerLoadsClient;
use kvasir_proto::types::{PartitionKey, WorkerId};
use kvasir_sim::demo::metrics;
use kvasir_sim::server::Server;
use kvasir_tests::nats::NatsServer;
use prost::Message;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tonic::Code;

fn load(worker_id: &str, waiting: u64) -> pb::WorkerLoad {
    let model = MODEL.to_owned();
    let worker_id = worker_id.to_owned();
    pb::WorkerLoad { model, worker_id, num_requests_waiting: Some(waiting), ..Default::default() }
}

/// Waits until the router shows what a worker's engine reported, fresh or stale.
async fn shows(router: &mut Router, worker_id: &str, waiting: u64, is_stale: bool) -> Result<()> {
    until(&format!("{worker_id} reports {waiting}"), async || {
        let loads = router.get_loads(pb::GetLoadsRequest::default()).await?.into_inner();
        let rank = loads.ranks.into_iter().find(|at| at.worker_id == worker_id);
        let shown = rank
            .map(|at| (at.reported.unwrap_or_default().num_requests_waiting, at.reported_is_stale));
        Ok((shown == Some((Some(waiting), is_stale))).then_some(()))
    })
    .await
}

#[tokio::test]
async fn an_agents_loads_are_shown_and_grow_stale() -> Result<()> {
    let mut fleet = Fleet::start(0, &["--timing", "report-stale-after=1s"]).await?;
    let index = format!("http://{}", fleet.server.addresses.grpc);
    let size = BLOCK_SIZE.to_string();
    let flags = ["--worker-id", "w", "--model", MODEL, "--block-size", &size, "--indexers", &index];
    let mut agent = Server::agent(&flags).await?;
    let mut client = WorkerLoadsClient::connect(format!("http://{}", agent.addresses.grpc)).await?;
    client.report_load(pb::ReportLoadRequest { load: Some(load("w", 7)) }).await?;
    shows(&mut fleet.router, "w", 7, false).await?;
    agent.kill().await;
    shows(&mut fleet.router, "w", 7, true).await?;
    fleet.stop().await;
    Ok(())
}

/// The agent replaces each connection after a second, under the router's stream of loads, too: the router opens it again.
#[tokio::test]
async fn loads_go_on_over_connections_that_are_replaced() -> Result<()> {
    let mut fleet = Fleet::start(0, &[]).await?;
    let index = format!("http://{}", fleet.server.addresses.grpc);
    let size = BLOCK_SIZE.to_string();
    let flags = ["--worker-id", "w", "--model", MODEL, "--block-size", &size, "--indexers", &index];
    let agent = AgedAgent::start(&flags).await?;
    let (grpc, http) = (format!("http://{}", agent.addresses.grpc), agent.addresses.http);
    let mut reported = 0;
    let mut aged = 0.0;
    while aged < 3.0 {
        let mut client = WorkerLoadsClient::connect(grpc.clone()).await?;
        client.report_load(pb::ReportLoadRequest { load: Some(load("w", reported)) }).await?;
        shows(&mut fleet.router, "w", reported, false).await?;
        reported += 1;
        aged = metrics::sum(http, "grpc_connections_aged_total", "").await?;
    }
    ensure!(reported > 3, "{reported} reports");
    agent.stop().await?;
    fleet.stop().await;
    Ok(())
}

/// An engine's page of metrics: 3 of 4 blocks are in use.
const PAGE: &str = "vllm:kv_cache_usage_perc{engine=\"0\"} 0.75\n\
    vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"4\"} 1.0\n";

/// Answers each request with the page, until it is dropped.
async fn page() -> Result<(String, JoinSet<()>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", PAGE.len());
            let mut request = [0; 1_024];
            // Whoever leaves early gets nothing.
            let _read = stream.read(&mut request).await;
            let _written = stream.write_all(format!("{head}{PAGE}").as_bytes()).await;
        }
    });
    Ok((url, serving))
}

/// Waits until a request is refused because all workers are above a threshold.
async fn refuses(router: &mut Router) -> Result<()> {
    until("the worker is busy", async || {
        let asked = pb::SelectWorkerRequest { dry_run: true, ..request(tokens(0, 1)) };
        let refused = router.select_worker(asked).await.err();
        Ok(refused.filter(|status| status.code() == Code::ResourceExhausted).map(drop))
    })
    .await
}

/// Nobody states how many blocks the worker has, and no request of this router uses any: its engine says both.
#[tokio::test]
async fn blocks_that_engines_report_reach_decisions() -> Result<()> {
    let flags = ["--busy-threshold", "decode-blocks=0.5"];
    let (url, _serving) = page().await?;
    let mut fleet = Fleet::start(0, &flags).await?;
    let label = pb::Label { key: "http".to_owned(), value: url };
    let profile = pb::WorkerProfile { labels: vec![label], ..Default::default() };
    fleet.register("w", profile).await?;
    refuses(&mut fleet.router).await?;
    fleet.stop().await;

    // The same by an agent's reports.
    let mut fleet = Fleet::start(0, &flags).await?;
    let index = format!("http://{}", fleet.server.addresses.grpc);
    let size = BLOCK_SIZE.to_string();
    let flags = ["--worker-id", "w", "--model", MODEL, "--block-size", &size, "--indexers", &index];
    let mut agent = Server::agent(&flags).await?;
    let mut client = WorkerLoadsClient::connect(format!("http://{}", agent.addresses.grpc)).await?;
    let blocks =
        pb::WorkerLoad { kv_active_blocks: Some(3), kv_total_blocks: Some(4), ..load("w", 0) };
    client.report_load(pb::ReportLoadRequest { load: Some(blocks) }).await?;
    refuses(&mut fleet.router).await?;
    agent.stop().await;
    fleet.stop().await;
    Ok(())
}

#[tokio::test]
async fn loads_over_nats_are_shown_and_malformed_ones_are_counted() -> Result<()> {
    let folder = TempDir::new()?;
    let mut nats = NatsServer::start(folder.path()).await?;
    let (mut server, _indexer, engines) = index(1).await?;
    let address = server.addresses.grpc.to_string();
    let (mut process, mut router) = start_router(&address, &["--nats-url", &nats.url()]).await?;
    let client = async_nats::connect(nats.url()).await?;
    let partition = PartitionKey::new(MODEL, "")?;
    let subject = loads_subject(&WorkerAddress { partition, worker: WorkerId::new("w0")? });
    until("the report is shown", async || {
        // The router may not have subscribed yet.
        client.publish(subject.clone(), "no load".into()).await?;
        client.publish(subject.clone(), load("w0", 3).encode_to_vec().into()).await?;
        client.flush().await.context("flush")?;
        let loads = router.get_loads(pb::GetLoadsRequest::default()).await?.into_inner();
        let reported = loads.ranks.into_iter().find_map(|at| at.reported);
        Ok(reported.filter(|at| at.num_requests_waiting == Some(3)).map(drop))
    })
    .await?;
    let http = process.addresses.http;
    let malformed = metrics::sum(http, "router_nats_malformed_total", "").await?;
    ensure!(malformed >= 1.0, "{malformed}");
    process.stop().await;
    server.stop().await;
    for (_, engine) in engines {
        engine.stop().await;
    }
    nats.terminate().await
}
