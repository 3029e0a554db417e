//! What an engine stores outside, in a store that several engines share, counts for all of them: SGLang's own publisher,
//! agents as processes, an index.

use crate::harness::{MODEL, PATIENCE};
use crate::publishers::{BLOCK_SIZE, Place, SGLANG, removed, stored};
use anyhow::{Context, Result, bail, ensure};
use kvasir_proto::pb;
use kvasir_proto::pb::router_client::RouterClient;
use kvasir_sim::client::{self, until_found};
use kvasir_sim::demo::metrics;
use kvasir_sim::server::{Addresses, Server};
use std::net::SocketAddr;
use tempfile::TempDir;

const POOL: &str = "store";
/// What SGLang calls a store outside of the worker.
const OUTSIDE: &str = "EXTERNAL";

fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// An agent that relays an engine with a store outside.
async fn agent(worker: &str, engine: &Place, index: &Server, more: &[&str]) -> Result<Server> {
    let [live, replay] = engine.sockets();
    let source = format!("endpoint={live},replay={replay}");
    let to = format!("http://{}", index.addresses.grpc);
    let block_size = BLOCK_SIZE.to_string();
    let flags = [
        ["--worker-id", worker],
        ["--model", MODEL],
        ["--block-size", &block_size],
        ["--engine", SGLANG.name],
        ["--source", &source],
        ["--engine-pool", POOL],
        ["--indexers", &to],
    ];
    let flags = [flags.as_flattened(), more].concat();
    Server::agent_at(Addresses { grpc: anywhere(), http: anywhere() }, &flags).await
}

fn query(prompt: &[u32]) -> pb::FindMatchesRequest {
    pb::FindMatchesRequest {
        model: MODEL.to_owned(),
        token_ids: prompt.to_vec(),
        shared: true,
        ..pb::FindMatchesRequest::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_sglang_stores_outside_counts_for_every_reader_of_the_store() -> Result<()> {
    let first = Place::prepare(SGLANG).await?;
    let second = Place::prepare(SGLANG).await?;
    let journal = TempDir::new()?;
    let index = Server::start_anywhere().await?;
    let journal_dir = journal.path().join("journal").display().to_string();
    let keeping = ["--journal-dir", &journal_dir];
    let mut engine = first.publisher().await?;
    let mut other = second.publisher().await?;
    let mut a = agent("a", &first, &index, &keeping).await?;
    let mut b = agent("b", &second, &index, &[]).await?;
    let prompt: Vec<u32> = (2_001..2_017).collect();
    let query = query(&prompt);
    let found = async |expected: &[(&str, u32, u32)]| {
        until_found(index.addresses.grpc, &query, expected, PATIENCE).await
    };

    // An index knows the ranks of a worker from its events.
    other.publish(1, &[stored("GPU", None, &[1], &[1, 2, 3, 4])]).await?;
    engine.publish(1, &[stored("GPU", None, &[-77, 5, 6], &prompt[..12])]).await?;
    engine.publish(2, &[stored(OUTSIDE, None, &[-77], &prompt[..4])]).await?;
    found(&[("a", 3, 0), ("b", 1, 1)]).await?;
    // By name, as connectors do.
    engine.publish(3, &[stored(OUTSIDE, None, &[5, 6, 7], &[])]).await?;
    found(&[("a", 3, 0), ("b", 3, 3)]).await?;
    engine.publish(4, &[removed("GPU", &[6, 5]), removed(OUTSIDE, &[6])]).await?;
    found(&[("a", 2, 1), ("b", 2, 2)]).await?;
    let without = pb::FindMatchesRequest { shared: false, ..query.clone() };
    until_found(index.addresses.grpc, &without, &[("a", 1, 0)], PATIENCE).await?;

    // The store outlives the engine,
    engine.kill().await?;
    let mut engine = first.publisher().await?;
    engine.publish(1, &[stored("GPU", None, &[9], &prompt[12..])]).await?;
    found(&[("a", 2, 2), ("b", 2, 2)]).await?;
    // and the agent, which still knows of it once it is back: a removal has names only.
    a.kill().await;
    engine.publish(2, &[removed(OUTSIDE, &[5])]).await?;
    let mut a = agent("a", &first, &index, &keeping).await?;
    found(&[("a", 1, 1), ("b", 1, 1)]).await?;

    a.stop().await;
    b.stop().await;
    other.kill().await?;
    engine.kill().await?;
    Ok(())
}

/// Where the connector never announces what it evicts, time does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_lies_in_a_store_leaves_the_index_when_its_time_is_over() -> Result<()> {
    let place = Place::prepare(SGLANG).await?;
    let index = Server::start_anywhere().await?;
    let mut engine = place.publisher().await?;
    let ttl = format!("{OUTSIDE}=10s");
    let mut agent = agent("a", &place, &index, &["--medium-ttl", &ttl]).await?;
    let prompt: Vec<u32> = (1..9).collect();
    let query = query(&prompt);
    engine.publish(1, &[stored("GPU", None, &[3], &prompt[..4])]).await?;
    engine.publish(2, &[stored(OUTSIDE, None, &[3, 4], &prompt)]).await?;
    until_found(index.addresses.grpc, &query, &[("a", 2, 1)], PATIENCE).await?;
    until_found(index.addresses.grpc, &query, &[("a", 1, 0)], PATIENCE).await?;
    agent.stop().await;
    engine.kill().await?;
    Ok(())
}

/// A router credits the blocks of a pool by its own option.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_credits_what_is_in_the_store() -> Result<()> {
    let place = Place::prepare(SGLANG).await?;
    let index = Server::start_anywhere().await?;
    let mut engine = place.publisher().await?;
    let mut agent = agent("a", &place, &index, &[]).await?;
    let prompt: Vec<u32> = (1..17).collect();
    let query = query(&prompt);
    engine.publish(1, &[stored("GPU", None, &[3], &prompt[..4])]).await?;
    engine.publish(2, &[stored(OUTSIDE, None, &[3, 4, 5], &prompt[..12])]).await?;
    until_found(index.addresses.grpc, &query, &[("a", 3, 2)], PATIENCE).await?;
    let mut indexer = client::connect(index.addresses.grpc).await?;
    for holder in ["a", POOL] {
        let exact = |source: &pb::SourceInfo| source.state() == pb::WorkerState::Exact;
        client::wait_for_sources(&mut indexer, (MODEL, holder), "exact", PATIENCE, exact).await?;
    }
    for (credit, credited) in [("pool=0", 1.0), ("pool=0.25", 1.5), ("pool=1", 3.0)] {
        let to = index.addresses.grpc.to_string();
        let flags = ["--indexer", &to, "--timing", "discovery-interval=100ms", "--credits", credit];
        let mut router = Server::router(&flags).await?;
        metrics::ready(router.addresses.http).await.with_context(|| router.output())?;
        let address = format!("http://{}", router.addresses.grpc);
        let mut client = RouterClient::connect(address).await?;
        let request = pb::SelectWorkerRequest {
            model: MODEL.to_owned(),
            request_id: "r".to_owned(),
            token_ids: prompt.clone(),
            explain: true,
            ..Default::default()
        };
        let chosen = client.select_worker(request).await?.into_inner();
        let [explained] = &chosen.explanations[..] else { bail!("{chosen:?}") };
        let cost = explained.cost.as_ref().context("a cost")?;
        ensure!((explained.pool_blocks, cost.credited_blocks) == (2, credited), "{chosen:?}");
        router.stop().await;
    }
    agent.stop().await;
    engine.kill().await?;
    Ok(())
}
