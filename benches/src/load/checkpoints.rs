//! Measures cost and benefit of checkpoints: ingest with and without them in turn, bytes on disk, and the restart time
//! after a kill.

use super::child::cpu_time;
use super::fleet::{self, WORKERS};
use super::ingest::Publishers;
use anyhow::{Context, Result, ensure};
use bench_figures::number::median;
use bench_figures::random::mixed;
use kvasir_proto::pb;
use kvasir_sim::client::{self, Indexer};
use kvasir_sim::demo::metrics;
use kvasir_sim::server::Server;
use serde::Serialize;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

/// Lengths of the restored chains, in blocks: the minimum, and the number of different lengths.
const CHAIN_BLOCKS: (u64, u64) = (64, 449);
/// Polling interval for the readiness of a restoring server.
const ASK_EVERY: Duration = Duration::from_millis(10);
/// Timeout for the readiness.
const PATIENCE: Duration = Duration::from_secs(120);

/// Options of the measurement.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct CheckpointArgs {
    /// Number of rounds; the results are medians.
    #[arg(long, default_value_t = 5)]
    trials: usize,
    /// Duration of the ingest in each round, in seconds.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Published block operations per second.
    #[arg(long, default_value_t = 500_000)]
    rate: u64,
    /// Time between two checkpoints, in milliseconds.
    #[arg(long, default_value_t = 1_000)]
    interval_ms: u64,
    /// Number of restored (worker, block) pairs.
    #[arg(long, default_value_t = 2_000_000)]
    pairs: u64,
}

/// Ingest results of one server.
#[derive(Debug, Serialize)]
struct Ingest {
    with_checkpoints: bool,
    blocks_per_second: f64,
    server_cores: f64,
    written_bytes_per_block: f64,
}

/// Results of restoring a fleet from disk.
#[derive(Debug, Serialize)]
struct Restored {
    first_checkpoint_ms: f64,
    disk_bytes_per_pair: f64,
    compacted_bytes_per_pair: f64,
    /// Time from the start of the process to ready, in milliseconds.
    ready_ms: f64,
    million_pairs_per_second: f64,
}

/// Measures, and prints a line of JSON for each trial and the medians at the end.
pub async fn run(args: CheckpointArgs) -> Result<()> {
    let mut ingests = Vec::new();
    let mut restores = Vec::new();
    for trial in 0..args.trials {
        let first = trial.is_multiple_of(2);
        for with_checkpoints in [first, !first] {
            let ingest = ingest(args, with_checkpoints).await?;
            println!("{}", serde_json::to_string(&ingest)?);
            ingests.push(ingest);
        }
        let restored = restore(args).await?;
        println!("{}", serde_json::to_string(&restored)?);
        restores.push(restored);
    }
    let ingested = |with: bool, figure: fn(&Ingest) -> f64| {
        let those = ingests.iter().filter(|at| at.with_checkpoints == with);
        median(&those.map(figure).collect::<Vec<_>>())
    };
    let rate = |with| ingested(with, |at| at.blocks_per_second);
    println!("ingest with checkpoints beside without: {:.3} (bar 0.95)", rate(true) / rate(false));
    let cores = |with| ingested(with, |at| at.server_cores);
    println!("server cores: {:.2} with, {:.2} without", cores(true), cores(false));
    let restored =
        |figure: fn(&Restored) -> f64| median(&restores.iter().map(figure).collect::<Vec<_>>());
    let bytes = restored(|at| at.compacted_bytes_per_pair);
    println!("bytes on disk per pair, compacted: {bytes:.1} (bar 24)");
    let speed = restored(|at| at.million_pairs_per_second);
    println!("restored: {speed:.2} M pairs/s (bar 3)");
    Ok(())
}

/// Starts a server, with checkpoints if a folder is given.
pub(super) async fn start(folder: Option<&Path>, interval_ms: u64) -> Result<Server> {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let interval = format!("{interval_ms}ms");
    let mut flags = vec!["--worker-timeout", "86400s"];
    if let Some(folder) = folder {
        let folder = folder.to_str().context("a path in UTF-8")?;
        flags.extend(["--checkpoint-dir", folder, "--checkpoint-interval", &interval]);
    }
    Server::start_with(any, any, &flags).await
}

async fn ingest(args: CheckpointArgs, with_checkpoints: bool) -> Result<Ingest> {
    let folder = TempDir::new()?;
    let kept = with_checkpoints.then(|| folder.path());
    let mut server = start(kept, args.interval_ms).await?;
    let process = server.process_id().context("a process")?;
    let mut indexer = client::connect(server.addresses.grpc).await?;
    let publishers = Publishers::start(server.addresses.grpc, args.rate).await?;
    let before = publishers.mark(&mut indexer).await?;
    let cpu = cpu_time(process)?;
    let written = written(&server).await?;
    let begin = Instant::now();
    sleep(Duration::from_secs(args.seconds)).await;
    let (blocks_per_second, _) = publishers.mark(&mut indexer).await?.since(before);
    let seconds = begin.elapsed().as_secs_f64();
    let server_cores = (cpu_time(process)? - cpu).as_secs_f64() / seconds;
    let bytes = self::written(&server).await? - written;
    publishers.stop().await?;
    server.stop().await;
    let written_bytes_per_block = bytes / (blocks_per_second * seconds);
    Ok(Ingest { with_checkpoints, blocks_per_second, server_cores, written_bytes_per_block })
}

/// Number of bytes passed to the store so far.
async fn written(server: &Server) -> Result<f64> {
    let samples = metrics::fetch(server.addresses.http).await?;
    let at = samples.iter().find(|at| at.name == "kvasir_checkpoint_written_bytes_total");
    Ok(at.map_or(0.0, |at| at.value))
}

async fn restore(args: CheckpointArgs) -> Result<Restored> {
    let folder = TempDir::new()?;
    // Checkpoints are written only on request.
    let mut server = start(Some(folder.path()), 86_400_000).await?;
    let mut indexer = client::connect(server.addresses.grpc).await?;
    let blocks = args.pairs / WORKERS;
    fleet::fill(&mut indexer, server.addresses.grpc, |worker| events(worker, blocks)).await?;
    let pairs = held(&mut indexer).await?;
    let mut checkpoint = async |compact| {
        let request = pb::CreateCheckpointRequest { compact };
        anyhow::Ok(indexer.create_checkpoint(request).await?.into_inner())
    };
    let first = checkpoint(false).await?;
    let compacted = checkpoint(true).await?;
    server.kill().await;
    let (mut server, ready) = restart(folder.path()).await?;
    let mut indexer = client::connect(server.addresses.grpc).await?;
    let restored = held(&mut indexer).await?;
    ensure!(restored == pairs, "{restored} of {pairs} pairs came back");
    server.stop().await;
    Ok(Restored {
        first_checkpoint_ms: first.duration_ms as f64,
        disk_bytes_per_pair: first.disk_bytes as f64 / pairs as f64,
        compacted_bytes_per_pair: compacted.disk_bytes as f64 / pairs as f64,
        ready_ms: ready.as_secs_f64() * 1e3,
        million_pairs_per_second: pairs as f64 / ready.as_secs_f64() / 1e6,
    })
}

/// Starts a server with the checkpoints of a folder. Also returns the time until it is ready.
pub(super) async fn restart(folder: &Path) -> Result<(Server, Duration)> {
    let begin = Instant::now();
    let server = start(Some(folder), 86_400_000).await?;
    while metrics::get(server.addresses.http, "/readyz").await?.0 != 200 {
        ensure!(begin.elapsed() < PATIENCE, "not ready after {PATIENCE:?}");
        sleep(ASK_EVERY).await;
    }
    Ok((server, begin.elapsed()))
}

/// Number of (worker, block) pairs in the index.
pub(super) async fn held(indexer: &mut Indexer) -> Result<u64> {
    let stats = indexer.get_stats(pb::GetStatsRequest::default()).await?.into_inner();
    Ok(stats.partitions.iter().map(|partition| partition.pairs).sum())
}

/// The chains that only one worker has, with `blocks` blocks in total: their stems and lengths.
pub(super) fn chains(worker: u64, blocks: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut stored = 0;
    (0..).map_while(move |number| {
        let (stem, length) = chain(worker, number);
        let length = length.min(blocks - stored);
        stored += length;
        (length > 0).then_some((stem, length))
    })
}

/// Events that store these chains.
pub(super) fn events(worker: u64, blocks: u64) -> Vec<pb::PublishedEvent> {
    let stored = |(stem, length)| fleet::stored(&names_of(stem, length), &locals_of(stem, length));
    chains(worker, blocks).flat_map(stored).collect()
}

/// The stem of a worker's chain, from which its names and hashes are derived, and its number of blocks.
pub(super) const fn chain(worker: u64, number: u64) -> (u64, u64) {
    let stem = mixed(worker << 32 | number);
    (stem, CHAIN_BLOCKS.0 + stem % CHAIN_BLOCKS.1)
}

/// Names of the first blocks of a chain.
pub(super) fn names_of(stem: u64, blocks: u64) -> Vec<u64> {
    (0..blocks).map(|block| mixed(stem.wrapping_add(block))).collect()
}

/// Local hashes of the first blocks of a chain.
pub(super) fn locals_of(stem: u64, blocks: u64) -> Vec<u64> {
    names_of(stem, blocks).into_iter().map(mixed).collect()
}
