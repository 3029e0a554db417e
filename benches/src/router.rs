//! Measures decisions of the router. Targets: a decision takes at most 20 us in addition to the call of the index
//! (median, 1,000 workers, 512 blocks). The process makes at least 20,000 decisions per second of processor time (64
//! workers, prompts of 64 blocks, 4 holders each, including the call of the index). A bare tonic echo in the same run
//! is the comparison.

use crate::load::child::{self, cpu_time};
use crate::load::echo;
use crate::load::raw::Caller;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use hdrhistogram::Histogram;
use kvasir_proto::pb;
use kvasir_proto::types::{WorkerId, WorkerKey};
use kvasir_sim::client::{self, Indexer};
use kvasir_sim::demo::metrics;
use kvasir_sim::server::Server;
use prost::Message;
use router_client::router::{Hints, Index, IndexUse, Router, RouterWorker};
use router_client::{ClientConfig, HashedPrompt, IndexerClient, Prompt};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

const MODEL: &str = "m";
const BLOCK_SIZE: u32 = 16;
const HOLDERS: u64 = 4;
/// Lifetime of placements; longer than the run.
const TTL: Duration = Duration::from_secs(3_600);
/// Number of active requests while decisions are timed.
const UNDER_WAY: u32 = 2_000;
/// Number of queries in flight at the process.
const IN_FLIGHT: usize = 64;
/// Number of different prompts.
const PROMPTS: u32 = 256;
/// Unmeasured time at the beginning.
const WARM_UP: Duration = Duration::from_secs(1);

/// Runs both parts and prints their results.
pub async fn run(seconds: u64) -> Result<()> {
    decisions(1_000, 512, seconds).await?;
    decisions(64, 64, seconds).await?;
    process(64, 64, seconds).await
}

fn worker(number: u64) -> Result<WorkerKey> {
    Ok(WorkerKey { worker: WorkerId::new(&format!("worker-{number:04}"))?, rank: 0 })
}

fn prompt(number: u32, blocks: u32) -> HashedPrompt {
    let first = number * 1_000_000;
    let tokens: Vec<u32> = (first..first + blocks * BLOCK_SIZE).collect();
    Prompt::new(MODEL, BLOCK_SIZE, &tokens).hashed()
}

/// A server with workers, and with prompts that four of them have.
async fn index(workers: u64, prompts: &[HashedPrompt]) -> Result<(Server, IndexerClient)> {
    let server = Server::start_anywhere().await?;
    let mut indexer: Indexer = client::connect(server.addresses.grpc).await?;
    for number in 0..workers {
        let request = pb::RegisterWorkerRequest {
            worker_id: worker(number)?.worker.as_str().to_owned(),
            model: MODEL.to_owned(),
            block_size: BLOCK_SIZE,
            ..Default::default()
        };
        indexer.register_worker(request).await?;
    }
    let config = ClientConfig { deadline: Duration::from_secs(5), ..ClientConfig::default() };
    let index = IndexerClient::connect(&server.addresses.grpc.to_string(), config)?;
    for (number, prompt) in (0..).zip(prompts) {
        for holder in 0..HOLDERS {
            let rank = worker((number * HOLDERS + holder) % workers)?;
            index.record_placement_hashed(prompt, &rank, Some(TTL)).await?;
        }
    }
    Ok((server, index))
}

/// Measures the library's decisions in addition to the call of the index.
async fn decisions(workers: u64, blocks: u32, seconds: u64) -> Result<()> {
    let prompts: Vec<_> = (0..16).map(|number| prompt(number, blocks)).collect();
    let (mut server, index) = index(workers, &prompts).await?;
    let builder = Router::builder(NonZeroU32::new(BLOCK_SIZE).context("not 0")?);
    let ranks = index.list_workers(None).await?;
    ensure!(ranks.len() as u64 == workers, "{} workers are listed", ranks.len());
    let router = builder.index(Index::One(index)).workers(ranks.iter().flat_map(RouterWorker::of));
    let router = router.build()?;
    let mut held = Vec::new();
    for number in 0..UNDER_WAY {
        held.push(router.select_hashed(&prompt(1_000 + number, 8), &Hints::default()).await?);
    }
    let mut choosing = Histogram::<u64>::new(3)?;
    let mut beside = Histogram::<u64>::new(3)?;
    let end = Instant::now() + Duration::from_secs(seconds);
    for prompt in prompts.iter().cycle() {
        let begin = Instant::now();
        if begin >= end {
            break;
        }
        let reservation = router.select_hashed(prompt, &Hints::default()).await?;
        let IndexUse::Answered { elapsed, .. } = reservation.index_use() else {
            anyhow::bail!("the index did not answer: {:?}", reservation.index_use());
        };
        beside.record(nanos(begin.elapsed().saturating_sub(*elapsed)))?;
        choosing.record(nanos(reservation.choosing()))?;
    }
    let us = |histogram: &Histogram<u64>, at| histogram.value_at_quantile(at) as f64 / 1_000.0;
    println!(
        "decision, {workers} workers, {blocks} blocks, {UNDER_WAY} requests under way: beside the index {:.1} us p50, {:.1} us p99 \
         (of these choosing and booking {:.1} us p50); {} decisions",
        us(&beside, 0.5),
        us(&beside, 0.99),
        us(&choosing, 0.5),
        beside.len(),
    );
    drop(held);
    server.stop().await;
    Ok(())
}

/// Sends queries to the process, and to the bare echo, as fast as they answer.
async fn process(workers: u64, blocks: u32, seconds: u64) -> Result<()> {
    let prompts: Vec<_> = (0..PROMPTS).map(|number| prompt(number, blocks)).collect();
    let (mut server, _index) = index(workers, &prompts).await?;
    let address = server.addresses.grpc.to_string();
    let flags = [
        "--indexer",
        &address,
        "--timing",
        "request-lease=2s,index-deadline=5s",
        "--queue",
        "threshold=0",
    ];
    let mut router = Server::router(&flags).await?;
    metrics::ready(router.addresses.http).await?;
    let questions: Arc<[Bytes]> = prompts.iter().map(question).collect();
    const SELECT: &str = "/kvasir.v1.Router/SelectWorker";
    let mut caller = Caller::connect(router.addresses.grpc, SELECT, SELECT).await?;
    let answer = caller.ask(questions.first().context("a question")?.clone()).await?;
    let chosen = pb::SelectWorkerResponse::decode(answer.clone())?;
    let cost = chosen.cost.context("a cost")?;
    ensure!(cost.credited_blocks == f64::from(blocks), "the index was not asked: {chosen:?}");
    let id = router.process_id().context("a router")?;
    let ours = load(router.addresses.grpc, SELECT, &questions, id, seconds).await?;

    let mut role = child::Role::start(&["echo"])?;
    let echo_address: SocketAddr = role.line().await?.parse()?;
    let payload = questions.first().context("a question")?.len();
    let echoed =
        echo::Question { payload: vec![0; payload].into(), answer_bytes: answer.len() as u32 };
    let questions: Arc<[Bytes]> = [Bytes::from(echoed.encode_to_vec())].into_iter().collect();
    let id = role.process_id().context("an echo")?;
    let bare = load(echo_address, echo::UNARY, &questions, id, seconds).await?;
    println!(
        "process, {workers} workers, {blocks} blocks, {HOLDERS} holders: {:.0} decisions a second, {:.0} in a second of the \
         router's processor time; bare echo {:.0} and {:.0}: {:.2} of it",
        ours.0,
        ours.1,
        bare.0,
        bare.1,
        ours.1 / bare.1,
    );
    router.stop().await;
    server.stop().await;
    Ok(())
}

fn question(prompt: &HashedPrompt) -> Bytes {
    let request = pb::SelectWorkerRequest {
        model: prompt.model.clone(),
        local_hashes: prompt.local_hashes.clone(),
        ..Default::default()
    };
    request.encode_to_vec().into()
}

/// Answers per second, and per second of the process's processor time.
async fn load(
    address: SocketAddr,
    path: &'static str,
    questions: &Arc<[Bytes]>,
    process_id: u32,
    seconds: u64,
) -> Result<(f64, f64)> {
    let begin = Instant::now() + WARM_UP;
    let end = begin + Duration::from_secs(seconds);
    let mut tasks = JoinSet::new();
    let callers =
        [Caller::connect(address, path, path).await?, Caller::connect(address, path, path).await?];
    for task in 0..IN_FLIGHT {
        let mut caller = callers[task % callers.len()].clone();
        let questions = Arc::clone(questions);
        tasks.spawn(async move {
            let mut answers = 0_u64;
            for question in questions.iter().cycle().skip(task) {
                if Instant::now() >= end {
                    break;
                }
                caller.ask(question.clone()).await?;
                answers += u64::from(Instant::now() >= begin);
            }
            anyhow::Ok(answers)
        });
    }
    tokio::time::sleep_until(begin).await;
    let before = cpu_time(process_id)?;
    tokio::time::sleep_until(end).await;
    let used = cpu_time(process_id)?.saturating_sub(before);
    let mut answers = 0;
    while let Some(task) = tasks.join_next().await {
        answers += task??;
    }
    Ok((answers as f64 / seconds as f64, answers as f64 / used.as_secs_f64()))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
