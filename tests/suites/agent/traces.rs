//! One trace for what an index asks an agent, over gRPC and over NATS, in a real collector.

use crate::engine::BLOCK_SIZE;
use crate::harness::{MODEL, PATIENCE, WORKER, url};
use anyhow::{Context, Result};
use kvasir_sim::demo::metrics;
use kvasir_sim::engine::{EngineConfig, EngineProcess, Prompt};
use kvasir_sim::place::free_port;
use kvasir_sim::server::Server;
use kvasir_tests::collector::{Collector, Span};
use kvasir_tests::nats::NatsServer;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::{sleep, timeout};

const LOOK: Duration = Duration::from_millis(20);
/// Prompts, and tokens in each: more batches than the agent's journal keeps.
const PROMPTS: u32 = 300;
const TOKENS: u32 = 1_000;
const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// An index that comes late has missed events that the agent's journal does not keep, so it asks the agent. `links` are
/// the flags of the agent and of the index. The agent's span has a name that begins with `request`.
async fn is_one_trace(links: [&[&str]; 2], at: SocketAddr, request: &str) -> Result<()> {
    let collector = Collector::start().await?;
    let export = collector.option();
    let config = EngineConfig { block_size: BLOCK_SIZE as usize, ..EngineConfig::default() };
    let engine = EngineProcess::start(config).await?;
    let source = format!("endpoint={},replay={}", engine.endpoint(), engine.replay_endpoint());
    let block_size = BLOCK_SIZE.to_string();
    let own = ["--worker-id", WORKER, "--model", MODEL, "--engine", "vllm", "--source", &source];
    let more = ["--block-size", &block_size, "--journal-bytes", "512KiB", &export];
    let [of_agent, of_index] = links;
    let mut agent = Server::agent(&[&own[..], &more, of_agent].concat()).await?;
    for number in 0..PROMPTS {
        let tokens = (number * TOKENS..(number + 1) * TOKENS).collect();
        engine.run(Prompt { tokens, answer: vec![7] }).await?;
    }
    let held = engine.truth().await?.copies.len() as f64;
    let read = async {
        while metrics::sum(agent.addresses.http, "agent_held_blocks", "").await? < held {
            sleep(LOOK).await;
        }
        anyhow::Ok(())
    };
    timeout(PATIENCE, read).await.with_context(|| agent.output())??;
    let mut index = Server::start_with(at, ANY, &[of_index, &[&export]].concat()).await?;
    let found = collector.wait_for(|spans| {
        let answers = |ask: &Span| {
            spans.iter().any(|at| {
                (at.service.as_str(), &at.parent, &at.trace) == ("kvbm-agent", &ask.id, &ask.trace)
                    && at.name.starts_with(request)
            })
        };
        let mut asks = spans.iter().filter(|at| at.name == "ask_agent");
        asks.find(|ask| ask.service == "indexer-server" && answers(ask)).cloned()
    });
    let ask = found.await.with_context(|| format!("{}\n{}", index.output(), agent.output()))?;
    // The task that follows the agent for days is no span.
    assert_eq!(ask.parent, "", "{ask:?}");
    agent.stop().await;
    index.stop().await;
    Ok(())
}

#[tokio::test]
async fn an_index_and_the_agent_that_it_asks_share_a_trace() -> Result<()> {
    let at = SocketAddr::new(ANY.ip(), free_port()?);
    is_one_trace([&["--indexers", &url(at)], &[]], at, "/kvasir.v1.LocalIndexer/").await
}

#[tokio::test]
async fn they_share_it_over_nats_too() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let broker = NatsServer::start(folder.path()).await?;
    let links: &[&str] = &["--nats-url", &broker.url(), "--nats-delivery", "core"];
    is_one_trace([links, links], ANY, "nats/LocalIndexer/").await
}
