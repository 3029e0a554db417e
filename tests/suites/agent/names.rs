//! What names mean outlives the index, the agent and the server that was copied: vLLM states a salt with the first block of
//! a prompt only, and a later turn must still be found with the salt, and never without it.

use crate::harness::{MODEL, PATIENCE, WORKER, url};
use anyhow::{Context, Result, ensure};
use kvasir_proto::pb;
use kvasir_sim::client::{self, Indexer};
use kvasir_sim::engine::WireForm;
use kvasir_sim::engine::publisher::{Endpoints, EpochForm, Publisher, PublisherConfig};
use kvasir_sim::server::{Addresses, Server};
use rmpv::Value;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tokio::time::{sleep, timeout};

const BLOCK: u64 = 4;
const SALT: &str = "tenant-a";
const LOOK: Duration = Duration::from_millis(20);

fn any() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// An engine whose events a test writes.
pub struct Engine(pub Publisher);

impl Engine {
    pub async fn start() -> Result<Self> {
        let config = PublisherConfig {
            topic: "kv-events".to_owned(),
            buffer_batches: 1_000,
            form: WireForm::Map,
            epoch: EpochForm::None,
        };
        Ok(Self(Publisher::bind(config, &Endpoints::any()).await?))
    }

    /// Stores blocks below another one, the first with this salt.
    pub async fn store(
        &mut self,
        parent: Option<u64>,
        names: &[u64],
        salt: Option<&str>,
    ) -> Result<()> {
        let text = |text: &str| Value::from(text);
        let keys = names.iter().enumerate().map(|(at, _)| match salt {
            Some(salt) if at == 0 => Value::Array(vec![text(salt)]),
            _ => Value::Nil,
        });
        let event = Value::Map(vec![
            (text("type"), text("BlockStored")),
            (text("block_hashes"), names.iter().copied().map(Value::from).collect()),
            (text("parent_block_hash"), parent.map_or(Value::Nil, Value::from)),
            (text("token_ids"), tokens(names).into_iter().map(Value::from).collect()),
            (text("block_size"), Value::from(BLOCK)),
            (text("extra_keys"), Value::Array(keys.collect())),
        ]);
        self.publish(event).await
    }

    /// Publishes one event.
    pub async fn publish(&mut self, event: Value) -> Result<()> {
        let batch = Value::Array(vec![Value::from(1.0), Value::Array(vec![event])]);
        let mut payload = Vec::new();
        rmpv::encode::write_value(&mut payload, &batch)?;
        self.0.publish(payload).await?;
        Ok(())
    }

    /// Flags of an agent that follows the engine, for one index.
    pub fn agent(&self, server: &Server) -> Vec<String> {
        let Endpoints { live, replay } = self.0.endpoints();
        let source = format!("endpoint={live},replay={replay}");
        let indexers = url(server.addresses.grpc);
        let size = BLOCK.to_string();
        [
            "--worker-id",
            WORKER,
            "--model",
            MODEL,
            "--block-size",
            &size,
            "--engine",
            "vllm",
            "--source",
            &source,
            "--indexers",
            &indexers,
        ]
        .map(str::to_owned)
        .to_vec()
    }

    fn worker(&self) -> String {
        let Endpoints { live, replay } = self.0.endpoints();
        format!(
            "id={WORKER},model={MODEL},block-size={BLOCK},engine=vllm,endpoint={live},replay={replay}"
        )
    }
}

/// Tokens of blocks, by their names.
pub fn tokens(names: &[u64]) -> Vec<u32> {
    let of = |name: u64| (0..BLOCK).map(move |at| u32::try_from(name * 10 + at).expect("few"));
    names.iter().copied().flat_map(of).collect()
}

/// Blocks that the worker holds of this prompt, and its state.
async fn ask(indexer: &mut Indexer, names: &[u64], salt: &str) -> Result<(u32, pb::WorkerState)> {
    let request = pb::FindMatchesRequest {
        model: MODEL.to_owned(),
        token_ids: tokens(names),
        cache_salt: salt.to_owned(),
        minimum_overlap_blocks: Some(0),
        ..Default::default()
    };
    let answer = indexer.find_matches(request).await?.into_inner();
    Ok(answer
        .matches
        .first()
        .map_or((0, pb::WorkerState::Cold), |at| (at.matched_blocks, at.state())))
}

/// Waits until an exact answer has so many blocks.
async fn until_exact(server: &Server, names: &[u64], salt: &str, blocks: u32) -> Result<()> {
    let mut indexer = client::connect(server.addresses.grpc).await?;
    let mut last = None;
    let found = async {
        loop {
            let seen = ask(&mut indexer, names, salt).await.ok();
            if seen == Some((blocks, pb::WorkerState::Exact)) {
                return;
            }
            last = seen;
            sleep(LOOK).await;
        }
    };
    let waited = timeout(PATIENCE, found).await;
    waited.with_context(|| format!("{names:?} with {salt:?}: {last:?} instead of {blocks}"))
}

/// The next turn of the salted conversation, and what must not be found.
async fn next_turn(engine: &mut Engine, server: &Server) -> Result<()> {
    engine.store(Some(2), &[3, 4], None).await?;
    engine.store(None, &[90], None).await?;
    until_exact(server, &[90], "", 1).await?;
    until_exact(server, &[1, 2, 3, 4], SALT, 4).await?;
    let mut indexer = client::connect(server.addresses.grpc).await?;
    for salt in ["", "tenant-b"] {
        let (blocks, _) = ask(&mut indexer, &[1, 2, 3, 4], salt).await?;
        ensure!(blocks == 0, "{blocks} blocks with the salt {salt:?}");
    }
    Ok(())
}

async fn first_turn(engine: &mut Engine, server: &Server) -> Result<()> {
    engine.store(None, &[1, 2], Some(SALT)).await?;
    until_exact(server, &[1, 2], SALT, 2).await
}

async fn keeping(folder: &Path, engine: &Engine) -> Result<Server> {
    let folder = folder.to_str().context("a path in UTF-8")?;
    let flags = [
        "--checkpoint-dir",
        folder,
        "--checkpoint-interval",
        "86400s",
        "--worker",
        &engine.worker(),
    ];
    Server::start_with(any(), any(), &flags).await
}

async fn checkpoint(server: &Server) -> Result<()> {
    let mut indexer = client::connect(server.addresses.grpc).await?;
    indexer.create_checkpoint(pb::CreateCheckpointRequest::default()).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_salted_prompt_goes_on_after_a_restart_of_the_index() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut engine = Engine::start().await?;
    let mut server = keeping(folder.path(), &engine).await?;
    first_turn(&mut engine, &server).await?;
    checkpoint(&server).await?;
    // What changed since then is in the next one.
    engine.store(None, &[1, 2], Some(SALT)).await?;
    engine.store(None, &[50], Some("tenant-b")).await?;
    until_exact(&server, &[50], "tenant-b", 1).await?;
    checkpoint(&server).await?;
    server.kill().await;
    let mut server = keeping(folder.path(), &engine).await?;
    until_exact(&server, &[1, 2], SALT, 2).await?;
    next_turn(&mut engine, &server).await?;
    engine.store(Some(50), &[51], None).await?;
    until_exact(&server, &[50, 51], "tenant-b", 2).await?;
    server.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_salted_prompt_goes_on_in_a_copy() -> Result<()> {
    let mut engine = Engine::start().await?;
    let mut server = Server::start_with(any(), any(), &["--worker", &engine.worker()]).await?;
    first_turn(&mut engine, &server).await?;
    // Replays do not reach back to the first turn: only the copy has it.
    for name in 1_000..2_200 {
        engine.store(None, &[name], None).await?;
    }
    until_exact(&server, &[2_199], "", 1).await?;
    let sibling = url(server.addresses.grpc);
    let mut copy = Server::start_with(any(), any(), &["--siblings", &sibling]).await?;
    until_exact(&copy, &[1, 2], SALT, 2).await?;
    next_turn(&mut engine, &copy).await?;
    next_turn(&mut engine, &server).await?;
    copy.stop().await;
    server.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_salted_prompt_goes_on_after_a_restart_of_the_agent() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut engine = Engine::start().await?;
    let mut server = Server::start_anywhere().await?;
    let folder = folder.path().to_str().context("a path in UTF-8")?;
    let own = engine.agent(&server);
    let mut flags: Vec<&str> = own.iter().map(String::as_str).collect();
    flags.extend(["--journal-dir", folder]);
    let mut agent = Server::agent(&flags).await?;
    first_turn(&mut engine, &server).await?;
    let addresses: Addresses = agent.addresses;
    agent.kill().await;
    let mut agent = Server::agent_at(addresses, &flags).await?;
    next_turn(&mut engine, &server).await?;
    agent.stop().await;
    server.stop().await;
    Ok(())
}
