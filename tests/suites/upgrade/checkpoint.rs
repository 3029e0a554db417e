//! A checkpoint folder with every kind of record: pages, names of their own, holes, several ranks, sources and tiers,
//! a life that is over, a position in JetStream's stream.

use crate::folder;
use anyhow::{Context, Result, ensure};
use kvasir_feed::uplink::{SourceIdentity, Uplink};
use kvasir_proto::pb;
use kvasir_proto::pb::dump_worker_response::Part;
use kvasir_proto::types::{
    BlockName, Incarnation, KvEvent, LocalHash, PartitionKey, StoredBlock, Tier, WorkerId,
};
use kvasir_sim::client::{self, Indexer};
use kvasir_sim::demo::metrics;
use kvasir_sim::engine::publisher::Endpoints;
use kvasir_sim::engine::{EngineConfig, MockEngine, Prompt};
use kvasir_sim::server::Server;
use kvasir_tests::nats::NatsServer;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

pub const MODEL: &str = "m";
pub const BLOCK_SIZE: u32 = 16;
const FOLDER: &str = "checkpoint";
const EXPECTED: &str = "checkpoint.txt";
/// An address where no other test listens, so that the engine is gone when the folder is read.
const ENGINE: &str = "tcp://127.83.0.1";
const PATIENCE: Duration = Duration::from_secs(60);

pub fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// Opens a publisher's stream.
pub async fn publisher(
    grpc: SocketAddr,
    worker: &str,
    name: &str,
    incarnation: u128,
) -> Result<Uplink> {
    let source = SourceIdentity {
        partition: PartitionKey::new(MODEL, "")?,
        worker: WorkerId::new(worker)?,
        source: name.to_owned(),
        block_size: BLOCK_SIZE,
        incarnation: Incarnation(incarnation),
    };
    Ok(Uplink::open(&format!("http://{grpc}"), source).await?)
}

/// A chain of blocks. Content depends on the place only; `names` keeps chains of one content apart.
pub fn chain(names: u64, from: u64, to: u64) -> KvEvent {
    let block = |at: u64| StoredBlock { name: name(names, at), local: LocalHash(at * 7 + 3) };
    let parent = from.checked_sub(1).map(|before| name(names, before));
    KvEvent::Stored { parent, tier: Tier::Device, blocks: (from..to).map(block).collect() }
}

fn name(names: u64, at: u64) -> BlockName {
    BlockName(names * 1_000_000 + at + 1)
}

fn names(first: u64, last: u64) -> Vec<BlockName> {
    (first..last).map(|at| name(0, at)).collect()
}

/// What a rank is told: everything that a checkpoint writes in a way of its own.
fn told() -> Vec<KvEvent> {
    let unknown = BlockName(77_777);
    let orphan = StoredBlock { name: BlockName(77_778), local: LocalHash(5) };
    vec![
        chain(0, 0, 200),
        // Two copies, where the worker counts them.
        chain(0, 10, 15),
        KvEvent::StoredNames { tier: Tier::Host, names: names(5, 9) },
        KvEvent::StoredNames { tier: Tier::Disk, names: names(20, 24) },
        KvEvent::Removed { tier: Tier::Device, names: names(12, 13) },
        // A hole: what follows stays.
        KvEvent::Removed { tier: Tier::Device, names: names(30, 31) },
        // Held, with an unknown parent.
        KvEvent::Stored { parent: Some(unknown), tier: Tier::Device, blocks: vec![orphan] },
        // The same content under other names.
        chain(1, 0, 6),
    ]
}

async fn register(client: &mut Indexer, worker: &str, copies: pb::CopyMode) -> Result<()> {
    let labels = vec![pb::Label { key: "zone".to_owned(), value: "a".to_owned() }];
    let request = pb::RegisterWorkerRequest {
        worker_id: worker.to_owned(),
        model: MODEL.to_owned(),
        block_size: BLOCK_SIZE,
        copy_mode: copies.into(),
        loss_policy: pb::LossPolicy::Clear.into(),
        lora_names: vec![pb::LoraName { id: 7, name: "adapter".to_owned() }],
        lease_ms: 3_600_000,
        profile: Some(pb::WorkerProfile {
            role: pb::WorkerRole::Decode.into(),
            total_kv_blocks: Some(4_096),
            max_num_batched_tokens: Some(8_192),
            labels,
            ..Default::default()
        }),
        ..Default::default()
    };
    ensure!(client.register_worker(request).await?.into_inner().created, "{worker} is new");
    Ok(())
}

/// Records a folder, and what it is read as.
pub async fn record(version: &Path) -> Result<()> {
    let broker_folder = TempDir::new()?;
    let kept = TempDir::new()?;
    let broker = NatsServer::start(broker_folder.path()).await?;
    let endpoints =
        Endpoints { live: format!("{ENGINE}:21001"), replay: format!("{ENGINE}:21002") };
    let engine = MockEngine::start_at(EngineConfig::default(), &endpoints).await?;
    let configured = format!(
        "id=configured,model={MODEL},block-size={BLOCK_SIZE},engine=vllm,endpoint={},replay={}",
        endpoints.live, endpoints.replay
    );
    let url = broker.url();
    let flags = ["--nats-url", &url, "--nats-delivery", "jetstream", "--worker", &configured];
    let mut server = start(kept.path(), &flags).await?;
    let mut client = client::connect(server.addresses.grpc).await?;
    for (worker, copies) in [("counted", pb::CopyMode::Counted), ("set", pb::CopyMode::Set)] {
        register(&mut client, worker, copies).await?;
        publisher(server.addresses.grpc, worker, "agent", 1).await?.publish(0, &told()).await?;
        // The life above is over.
        let mut uplink = publisher(server.addresses.grpc, worker, "agent", 2).await?;
        uplink.publish(0, &told()).await?;
        uplink.publish(1, &[chain(0, 0, 70)]).await?;
        let mut second = publisher(server.addresses.grpc, worker, "second", 3).await?;
        second.publish(0, &[chain(0, 0, 3)]).await?;
    }
    let (mut agent, _stream) = brokered(&url).await?;
    for first in 0..20 {
        let tokens = (0..160).map(|at| first << 16 | at).collect();
        engine.run(Prompt { tokens, answer: vec![1, 2, 3] }).await?;
    }
    let last = engine.truth().await?.last_sequence.context("the engine has published")?;
    client::wait_until_exact_at(&mut client, (MODEL, "configured"), last, PATIENCE).await?;
    client::wait_until_exact_at(&mut client, (MODEL, "brokered"), 0, PATIENCE).await?;
    client.create_checkpoint(pb::CreateCheckpointRequest { compact: true }).await?;
    // This goes to the log of the database, which the kill leaves as it is.
    let mut uplink = publisher(server.addresses.grpc, "counted", "agent", 2).await?;
    uplink.publish(0, &[chain(0, 200, 230)]).await?;
    client.create_checkpoint(pb::CreateCheckpointRequest::default()).await?;
    server.kill().await;
    agent.kill().await;
    engine.stop().await;

    let target = version.join(FOLDER);
    drop(std::fs::remove_dir_all(&target));
    folder::copy_into(kept.path(), &target)?;
    let scratch = folder::copy(&target)?;
    let mut server = start(scratch.path(), &[]).await?;
    folder::expect(version, EXPECTED, &describe(&server).await?)?;
    server.kill().await;
    Ok(())
}

/// An agent that publishes by the broker, of which the index learns by that, and its engine's stream.
async fn brokered(url: &str) -> Result<(Server, Uplink)> {
    let block_size = BLOCK_SIZE.to_string();
    let flags = [
        ["--worker-id", "brokered"],
        ["--model", MODEL],
        ["--block-size", &block_size],
        ["--nats-url", url],
        ["--nats-delivery", "jetstream"],
        ["--lease", "3600s"],
    ];
    let agent = Server::agent(flags.as_flattened()).await?;
    let mut engine = publisher(agent.addresses.grpc, "brokered", "engine", 9).await?;
    engine.publish(0, &[chain(0, 0, 40)]).await?;
    Ok((agent, engine))
}

/// Starts a server that writes checkpoints only when it is asked to, and waits until it has read the folder.
async fn start(folder: &Path, flags: &[&str]) -> Result<Server> {
    let folder = folder.to_str().context("a path in UTF-8")?;
    let kept = ["--checkpoint-dir", folder, "--checkpoint-interval", "86400s"];
    let server = Server::start_with(anywhere(), anywhere(), &[&kept, flags].concat()).await?;
    metrics::ready(server.addresses.http).await.with_context(|| server.output())?;
    Ok(server)
}

/// Reads a recorded folder, has it written again, and reads that.
pub async fn check(version: &Path) -> Result<()> {
    let scratch = folder::copy(&version.join(FOLDER))?;
    for what in ["as it was written", "written again"] {
        let mut server = start(scratch.path(), &[]).await?;
        let described = describe(&server).await.context(what)?;
        folder::compare(version, EXPECTED, &described).context(what)?;
        let mut client = client::connect(server.addresses.grpc).await?;
        // A source that the index does not know yet: each worker's record is written anew.
        for worker in ["counted", "set"] {
            drop(publisher(server.addresses.grpc, worker, "second", 3).await?);
        }
        client.create_checkpoint(pb::CreateCheckpointRequest { compact: true }).await?;
        server.stop().await;
    }
    Ok(())
}

/// All that a restart must not change, as text.
async fn describe(server: &Server) -> Result<String> {
    let mut client = client::connect(server.addresses.grpc).await?;
    let mut workers =
        client.list_workers(pb::ListWorkersRequest::default()).await?.into_inner().workers;
    workers.sort_by(|a, b| a.worker_id.cmp(&b.worker_id));
    let mut text = String::new();
    for worker in workers {
        let at = worker.registration.context("a registration")?;
        writeln!(text, "worker {} {} {:?}", at.model, at.worker_id, at.tenant)?;
        writeln!(text, " block size {}, {:?}", at.block_size, at.engine())?;
        writeln!(text, " {:?}, {:?}, lease {}", at.copy_mode(), at.loss_policy(), at.lease_ms)?;
        writeln!(text, " local indexer {:?}", local(&at.local_indexer_endpoint))?;
        for lora in &at.lora_names {
            writeln!(text, " adapter {} {}", lora.id, lora.name)?;
        }
        for endpoint in &at.endpoints {
            writeln!(text, " endpoint {} {}", endpoint.endpoint, endpoint.replay_endpoint)?;
        }
        if let Some(profile) = &at.profile {
            let total = profile.total_kv_blocks;
            let tokens = profile.max_num_batched_tokens;
            writeln!(text, " profile {:?} {total:?} {tokens:?}", profile.role())?;
            for label in &profile.labels {
                writeln!(text, " label {}={}", label.key, label.value)?;
            }
        }
        for rank in &worker.ranks {
            let placed = rank.placed_blocks;
            let parked = rank.parked_blocks;
            writeln!(text, " rank {}: {placed} placed, {parked} parked", rank.dp_rank)?;
        }
        text.push_str(&dump(&mut client, &at.worker_id).await?);
    }
    Ok(text)
}

/// The port of an agent is another one each time.
fn local(endpoint: &str) -> &str {
    if endpoint.starts_with("http") { "http" } else { endpoint }
}

async fn dump(client: &mut Indexer, worker: &str) -> Result<String> {
    let request = pb::DumpWorkerRequest {
        model: MODEL.to_owned(),
        worker_id: worker.to_owned(),
        ..Default::default()
    };
    let mut parts = client.dump_worker(request).await?.into_inner();
    let mut blocks = BTreeMap::new();
    let mut ends = BTreeMap::new();
    while let Some(part) = parts.message().await? {
        match part.part.context("a part")? {
            Part::Chunk(chunk) => {
                for record in chunk.records {
                    blocks.insert((chunk.dp_rank, record.source_index, record.name), record);
                }
            }
            Part::Meanings(_) => {}
            Part::End(end) => drop(ends.insert(end.source_index, end)),
        }
    }
    let mut text = String::new();
    for end in ends.values() {
        let cursor = end.watermark.as_ref().context("a cursor")?;
        let life = hex(&cursor.incarnation);
        let mode = end.copy_mode();
        writeln!(text, " source {}: {life} at {}, {mode:?}", end.source, cursor.sequence)?;
        if let Some(print) = &end.fingerprint {
            writeln!(text, "  fingerprint {:x} {:x}", print.timestamp_bits, print.payload_hash)?;
        }
        for past in &end.past_incarnations {
            writeln!(text, "  past {}", hex(past))?;
        }
        writeln!(text, "  ranks {:?}, incomplete {}", end.dp_ranks, end.incomplete)?;
    }
    for ((rank, source, name), at) in blocks {
        let source = &ends.get(&source).context("a source")?.source;
        let copies = [at.device_copies, at.host_copies, at.disk_copies];
        let parent = at.parent_name;
        let local = at.local_hash;
        let placed = at.placed;
        writeln!(text, " {rank} {source} {name}: {parent:?} {local:?} {placed} {copies:?}")?;
    }
    Ok(text)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
