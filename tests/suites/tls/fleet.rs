//! Everything together over TLS with certificates on all sides: an agent that feeds an index, an index that asks the
//! agent and a sibling, a router that asks both.

use crate::harness::{demands, dialer, flags, https, papers, shows, until};
use anyhow::{Context, Result, ensure};
use kvasir_proto::pb;
use kvasir_proto::pb::indexer_client::IndexerClient;
use kvasir_proto::pb::router_client::RouterClient;
use kvasir_proto::pb::worker_loads_client::WorkerLoadsClient;
use kvasir_sim::client;
use kvasir_sim::engine::{EngineConfig, MockEngine, Prompt};
use kvasir_sim::place::free_port;
use kvasir_sim::server::Server;
use kvasir_tests::authority::Validity;
use kvasir_tls::Dialer;
use std::net::SocketAddr;

const MODEL: &str = "m";
const BLOCK_SIZE: usize = 16;
const PROMPTS: u32 = 40;

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn tokens(number: u32) -> Vec<u32> {
    (0..16_384).map(|at| number * 20_000 + at).collect()
}

fn texts(flags: &[String]) -> Vec<&str> {
    flags.iter().map(String::as_str).collect()
}

/// What an index holds for the worker; nothing while it does not know it.
async fn holds(dialer: &Dialer, index: &Server) -> Result<usize> {
    let mut client = IndexerClient::new(
        dialer.connect(&https(index)).await?.into_transport().context("a remote server")?,
    );
    let worker = client::find_worker(&mut client, MODEL, "w").await?;
    if worker.is_none_or(|worker| worker.ranks.is_empty()) {
        return Ok(0);
    }
    // A dump is cut off where the worker is cleared meanwhile.
    let dumped = client::dump_device_copies(&mut client, MODEL, "w").await;
    Ok(dumped.map_or(0, |copies| copies.len()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_fleet_speaks_tls() -> Result<()> {
    let (authority, paper, own) = papers()?;
    let agent_paper = authority.sign(7, Validity::Valid)?;
    let router_paper = authority.sign(8, Validity::Valid)?;
    let dialer = dialer(&authority, Some(&own))?;
    let capacity_blocks = 1 << 16;
    let engine =
        EngineConfig { block_size: BLOCK_SIZE, capacity_blocks, ..EngineConfig::default() };
    let engine = MockEngine::start(engine).await?;
    for number in 0..PROMPTS {
        engine.run(Prompt { tokens: tokens(number), answer: vec![1; 16] }).await?;
    }
    let truth = engine.truth().await?.copies.len();
    ensure!(truth > 40_000, "{truth} blocks");

    // The agent is there first, and its journal retains a little only: the index asks it for a dump.
    let first_port = free_port()?;
    let first_url = format!("https://127.0.0.1:{first_port}");
    let size = BLOCK_SIZE.to_string();
    let source = format!("endpoint={},replay={}", engine.endpoint(), engine.replay_endpoint());
    let beside = ["--worker-id", "w", "--model", MODEL, "--block-size", &size, "--engine", "vllm"];
    let feeds = ["--source", &source, "--indexers", &first_url, "--journal-bytes", "512KiB"];
    let secured = flags(&[shows(&agent_paper), demands(&authority)]);
    let mut agent = Server::agent(&[&beside[..], &feeds[..], &texts(&secured)].concat()).await?;
    let secured = flags(&[shows(&paper), demands(&authority)]);
    let any = local(0);
    let mut first = Server::start_with(local(first_port), any, &texts(&secured)).await?;
    until("the index holds what the engine holds", async || {
        Ok(holds(&dialer, &first).await? == truth)
    })
    .await
    .with_context(|| format!("{}\n{}", first.output(), agent.output()))?;
    let mut indexer = IndexerClient::new(
        dialer.connect(&first_url).await?.into_transport().context("a remote server")?,
    );
    let worker = client::find_worker(&mut indexer, MODEL, "w").await?.context("a worker")?;
    let registration = worker.registration.context("it was registered")?;
    let agent_url = format!("https://{}", agent.addresses.grpc);
    ensure!(registration.local_indexer_endpoint == agent_url, "{registration:?}");

    let sibling_flags = [texts(&secured), vec!["--siblings", &first_url]].concat();
    let mut second = Server::start_with(any, any, &sibling_flags).await?;
    until("the sibling has copied all", async || Ok(holds(&dialer, &second).await? == truth))
        .await
        .with_context(|| second.output())?;

    let replicas = format!("{first_url},{}", https(&second));
    let secured = flags(&[shows(&router_paper), demands(&authority)]);
    let asks = ["--indexer", &replicas, "--timing", "discovery-interval=100ms,index-deadline=5s"];
    let mut router = Server::router(&[&asks[..], &texts(&secured)].concat()).await?;
    let mut client = RouterClient::new(dialer.connect(&https(&router)).await?);
    let request = pb::SelectWorkerRequest {
        model: MODEL.to_owned(),
        token_ids: tokens(3),
        ..pb::SelectWorkerRequest::default()
    };
    until("the router knows the worker and what it holds", async || {
        let Ok(chosen) = client.select_worker(request.clone()).await else { return Ok(false) };
        let cost = chosen.into_inner().cost.context("a cost")?;
        Ok(cost.credited_blocks > 0.0)
    })
    .await
    .with_context(|| router.output())?;

    let load = pb::WorkerLoad {
        model: MODEL.to_owned(),
        worker_id: "w".to_owned(),
        num_requests_waiting: Some(7),
        ..pb::WorkerLoad::default()
    };
    let mut loads = WorkerLoadsClient::new(dialer.connect(&agent_url).await?);
    loads.report_load(pb::ReportLoadRequest { load: Some(load) }).await?;
    until("the router has read the agent's report", async || {
        let loads = client.get_loads(pb::GetLoadsRequest::default()).await?.into_inner();
        let mut reported = loads.ranks.into_iter().filter_map(|at| at.reported);
        Ok(reported.any(|at| at.num_requests_waiting == Some(7)))
    })
    .await?;

    router.stop().await;
    agent.stop().await;
    second.stop().await;
    first.stop().await;
    engine.stop().await;
    Ok(())
}
