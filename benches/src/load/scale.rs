//! Measures growth with a fleet: memory, lookups, checkpoints and start-up, by the number of blocks, workers and
//! models.

use super::checkpoints::{chains, events, held, locals_of, names_of, restart, start};
use super::child::resident_bytes;
use super::fleet::{self, BLOCK_SIZE, WORKERS, applied, hello, ingest_client, stored};
use super::scale_report::{ByModels, ByPairs, ByWorkers, Sizes, Times, part};
use anyhow::{Context, Result, ensure};
use bench_figures::memory::available_bytes;
use bench_figures::random::mixed;
use futures::{StreamExt, TryStreamExt, stream};
use hdrhistogram::Histogram;
use kvasir_proto::pb;
use kvasir_proto::pb::publish_events_request::Message as Request;
use kvasir_sim::client::{self, Indexer};
use std::net::SocketAddr;
use std::pin::pin;
use tempfile::TempDir;
use tokio::select;
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};

/// Blocks per prompt of workers and models.
const PROMPT_BLOCKS: u64 = 16;
/// Blocks of the longer queries by pairs.
const LONG_BLOCKS: u64 = 256;
/// Maximum number of concurrent publishers.
const PUBLISHERS_MAX: usize = 16;
/// Maximum number of ranks for which the complete answer is queried; with more, an answer exceeds a message's maximum
/// size.
const LISTED_RANKS_MAX: u64 = 16_384;
/// Maximum memory per pair in server and client together while it is stored, in bytes.
const PAIR_BYTES_MAX: u64 = 80;
/// Maximum recorded latency, in microseconds.
const LATENCY_MAX_US: u64 = 60_000_000;

/// Options of the measurement.
#[derive(Debug, Clone, clap::Args)]
pub struct ScaleArgs {
    /// Numbers of (worker, block) pairs, one index each. With several, a straight line estimates 200 million pairs.
    #[arg(long, value_delimiter = ',', default_values_t = [2_000_000, 10_000_000, 50_000_000])]
    pairs: Vec<u64>,
    /// Numbers of workers, one fleet each.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 1_000, 10_000])]
    workers: Vec<u64>,
    /// Ranks per worker.
    #[arg(long, default_value_t = 8)]
    ranks: u32,
    /// Numbers of models (partitions), one server each, with one worker per model.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 256, 4_096])]
    models: Vec<u64>,
    /// Number of kills and starts after each checkpoint.
    #[arg(long, default_value_t = 3)]
    starts: u64,
    /// Number of queries of each kind.
    #[arg(long, default_value_t = 2_000)]
    questions: u64,
    /// Quick check that everything works, with a tenth of everything.
    #[arg(long)]
    quick: bool,
    /// Print the part for the report of all benches, as a line of JSON, instead of tables.
    #[arg(long)]
    json: bool,
}

/// Measures, reports each finished size, and prints tables at the end.
pub async fn run(args: ScaleArgs) -> Result<()> {
    let share = if args.quick { 10 } else { 1 };
    let questions = args.questions / share;
    let mut sizes = Sizes::default();
    for pairs in args.pairs {
        sizes.by_pairs.push(by_pairs(pairs / share, args.starts, questions).await?);
        eprintln!("{pairs} pairs: done");
    }
    for workers in args.workers {
        sizes.by_workers.push(by_workers((workers / share).max(2), args.ranks, questions).await?);
        eprintln!("{workers} workers: done");
    }
    for models in args.models {
        sizes.by_models.push(by_models((models / share).max(1), questions).await?);
        eprintln!("{models} models: done");
    }
    let part = part(&sizes);
    if args.json {
        println!("{}", serde_json::to_string(&part)?);
    } else {
        println!("{}", part.report().0);
    }
    Ok(())
}

// === by pairs ===

async fn by_pairs(pairs: u64, starts: u64, questions: u64) -> Result<ByPairs> {
    let needed = pairs * PAIR_BYTES_MAX;
    ensure!(
        needed <= available_bytes(),
        "{pairs} pairs may take {needed} bytes of memory: give fewer"
    );
    let folder = TempDir::new()?;
    // Checkpoints are written only on request.
    let mut server = start(Some(folder.path()), 86_400_000).await?;
    let process = server.process_id().context("a process")?;
    let empty = resident_bytes(process)?;
    let mut indexer = client::connect(server.addresses.grpc).await?;
    let blocks = pairs / WORKERS;
    fleet::fill(&mut indexer, server.addresses.grpc, |worker| events(worker, blocks)).await?;
    let pairs = held(&mut indexer).await?;
    let resident_bytes = resident_bytes(process)?.saturating_sub(empty);
    let all: Vec<_> = (0..WORKERS).flat_map(|worker| chains(worker, blocks)).collect();
    let is_long = all.iter().any(|&(_, length)| length >= LONG_BLOCKS);
    ensure!(is_long, "no chain has {LONG_BLOCKS} blocks: give more --pairs than {pairs}");
    let hit_64_blocks = ask_all(&mut indexer, questions, |at| hit(&all, at, 64)).await?;
    let hit_256_blocks = ask_all(&mut indexer, questions, |at| hit(&all, at, LONG_BLOCKS)).await?;
    let mut other = indexer.clone();
    let request = pb::CreateCheckpointRequest { compact: false };
    let mut writing = pin!(other.create_checkpoint(request));
    let mut times = histogram()?;
    let mut number = 0;
    let written = loop {
        select! {
            written = &mut writing => break written?.into_inner(),
            asked = ask(&mut indexer, hit(&all, number, 64)) => times.saturating_record(asked?),
        }
        number += 1;
    };
    let mut ready_ms = Vec::new();
    for _ in 0..starts {
        server.kill().await;
        let (again, ready) = restart(folder.path()).await?;
        server = again;
        ready_ms.push(ready.as_secs_f64() * 1e3);
        let restored = held(&mut client::connect(server.addresses.grpc).await?).await?;
        ensure!(restored == pairs, "{restored} of {pairs} pairs came back");
    }
    server.stop().await;
    Ok(ByPairs {
        pairs,
        resident_bytes,
        hit_64_blocks,
        hit_256_blocks,
        hit_64_blocks_beside_checkpoint: Times::of(&times),
        checkpoint_ms: written.duration_ms,
        disk_bytes: written.disk_bytes,
        ready_ms,
    })
}

/// A query for the first blocks of a pseudo-random chain: the next one that is long enough.
fn hit(chains: &[(u64, u64)], number: u64, blocks: u64) -> pb::FindMatchesRequest {
    let at = usize::try_from(mixed(number)).unwrap_or(0) % chains.len().max(1);
    let (before, behind) = chains.split_at(at);
    let long = behind.iter().chain(before).find(|&&(_, length)| length >= blocks);
    question(fleet::MODEL, locals_of(long.map_or(0, |&(stem, _)| stem), blocks))
}

// === by workers ===

async fn by_workers(workers: u64, ranks: u32, questions: u64) -> Result<ByWorkers> {
    let mut server = start(None, 0).await?;
    let process = server.process_id().context("a process")?;
    let empty = resident_bytes(process)?;
    let mut indexer = client::connect(server.addresses.grpc).await?;
    let channel = channel(server.addresses.grpc).await?;
    let begin = Instant::now();
    let filled = (0..workers).map(|worker| {
        let mut indexer = indexer.clone();
        let channel = channel.clone();
        async move {
            let id = fleet::worker_id(worker);
            fleet::register(&mut indexer, &id).await?;
            let mut prompts = vec![0];
            prompts.extend((worker < 2).then_some(1));
            publish(channel, hello(id, 0), ranks, &prompts).await
        }
    });
    stream::iter(filled).buffer_unordered(PUBLISHERS_MAX).try_collect::<Vec<()>>().await?;
    let registered_and_published_s = begin.elapsed().as_secs_f64();
    let all = workers * u64::from(ranks);
    let resident_bytes = resident_bytes(process)?.saturating_sub(empty);
    let begin = Instant::now();
    let mut listed = 0;
    let mut page_token = String::new();
    loop {
        let request = pb::ListWorkersRequest { page_token, ..Default::default() };
        let page = indexer.list_workers(request).await?.into_inner();
        listed += page.workers.len() as u64;
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    ensure!(listed == workers, "{listed} of {workers} workers are listed");
    let list_workers_ms = begin.elapsed().as_secs_f64() * 1e3;
    let prompt = |number| question(fleet::MODEL, prompt_locals(number));
    let held_by_two_workers = ask_all(&mut indexer, questions, |_| prompt(1)).await?;
    let best_ten = |_| pb::FindMatchesRequest { top_k: 10, ..prompt(0) };
    let held_by_all_best_ten = ask_all(&mut indexer, questions, best_ten).await?;
    let held_by_all = if all <= LISTED_RANKS_MAX {
        Some(ask_all(&mut indexer, questions, |_| prompt(0)).await?)
    } else {
        None
    };
    server.stop().await;
    Ok(ByWorkers {
        workers,
        ranks: all,
        resident_bytes,
        registered_and_published_s,
        list_workers_ms,
        held_by_two_workers,
        held_by_all_best_ten,
        held_by_all,
    })
}

/// Publishes the prompts with these numbers for each rank of a worker.
async fn publish(
    channel: Channel,
    hello: pb::PublishEventsRequest,
    ranks: u32,
    prompts: &[u64],
) -> Result<()> {
    let all: Vec<_> = prompts.iter().flat_map(|&number| prompt_events(number)).collect();
    let batches = (0..ranks).map(|dp_rank| {
        let sequence = u64::from(dp_rank);
        let events = all.clone();
        let batch = pb::PublishBatch { sequence, dp_rank, events };
        pb::PublishEventsRequest { message: Some(Request::Batch(batch)) }
    });
    let requests: Vec<_> = std::iter::once(hello).chain(batches).collect();
    let wanted = u64::from(ranks) * prompts.len() as u64 * PROMPT_BLOCKS;
    let mut acknowledged = 0;
    let mut publisher = ingest_client(channel);
    let mut answers = publisher.publish_events(stream::iter(requests)).await?.into_inner();
    while let Some(answer) = answers.message().await? {
        acknowledged += applied(answer)?;
    }
    ensure!(acknowledged == wanted, "{acknowledged} of {wanted} blocks were applied");
    Ok(())
}

fn prompt_events(number: u64) -> Vec<pb::PublishedEvent> {
    stored(&names_of(mixed(number), PROMPT_BLOCKS), &prompt_locals(number))
}

/// Prompts have no common blocks: stems with consecutive numbers would share nearly all.
fn prompt_locals(number: u64) -> Vec<u64> {
    locals_of(mixed(number), PROMPT_BLOCKS)
}

// === by models ===

async fn by_models(models: u64, questions: u64) -> Result<ByModels> {
    let mut server = start(None, 0).await?;
    let process = server.process_id().context("a process")?;
    let empty = resident_bytes(process)?;
    let mut indexer = client::connect(server.addresses.grpc).await?;
    let channel = channel(server.addresses.grpc).await?;
    let model = |number: u64| format!("model-{number}");
    let filled = (0..models).map(|number| {
        let mut indexer = indexer.clone();
        let channel = channel.clone();
        let model = model(number);
        async move {
            let worker_id = fleet::worker_id(0);
            let request = pb::RegisterWorkerRequest {
                worker_id: worker_id.clone(),
                model: model.clone(),
                block_size: BLOCK_SIZE,
                ..Default::default()
            };
            indexer.register_worker(request).await?;
            let mut hello = hello(worker_id, 0);
            if let Some(Request::Hello(hello)) = &mut hello.message {
                hello.model = model;
            }
            publish(channel, hello, 1, &[number]).await
        }
    });
    stream::iter(filled).buffer_unordered(PUBLISHERS_MAX).try_collect::<Vec<()>>().await?;
    let resident_bytes = resident_bytes(process)?.saturating_sub(empty);
    let asked = |at: u64| {
        let number = mixed(at) % models;
        question(&model(number), prompt_locals(number))
    };
    let hit = ask_all(&mut indexer, questions, asked).await?;
    server.stop().await;
    Ok(ByModels { models, resident_bytes, hit })
}

// === asking ===

fn histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_max(LATENCY_MAX_US, 3).context("a histogram")
}

async fn channel(server: SocketAddr) -> Result<Channel> {
    Ok(Endpoint::from_shared(format!("http://{server}"))?.connect().await?)
}

fn question(model: &str, local_hashes: Vec<u64>) -> pb::FindMatchesRequest {
    pb::FindMatchesRequest { model: model.to_owned(), local_hashes, ..Default::default() }
}

/// Sends one query; returns its time in microseconds.
async fn ask(indexer: &mut Indexer, question: pb::FindMatchesRequest) -> Result<u64> {
    let blocks = question.local_hashes.len();
    let begin = Instant::now();
    let answer = indexer.find_matches(question).await?.into_inner();
    let took = begin.elapsed();
    let best = answer.matches.first().map_or(0, |at| at.matched_blocks as usize);
    ensure!(best == blocks, "{best} of {blocks} blocks were found");
    Ok(u64::try_from(took.as_micros()).unwrap_or(u64::MAX))
}

async fn ask_all(
    indexer: &mut Indexer,
    questions: u64,
    question: impl Fn(u64) -> pb::FindMatchesRequest,
) -> Result<Times> {
    let mut times = histogram()?;
    for number in 0..questions {
        times.saturating_record(ask(indexer, question(number)).await?);
    }
    Ok(Times::of(&times))
}
