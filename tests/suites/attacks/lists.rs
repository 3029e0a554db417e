//! Questions about all workers and all partitions, where these are many or large.

use crate::harness::{PATIENCE, Siege};
use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use kvasir_proto::limits::{LIST_PAGE_BYTES_MAX, NAME_BYTES_MAX, WORKER_LORA_NAMES_MAX};
use kvasir_proto::pb;
use kvasir_sim::client::{self, Indexer};
use prost::Message;
use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::timeout;
use tonic::Code;

/// Connections that attack at a time.
const ATTACKERS: usize = 8;
const BLOCK_SIZE: u32 = 16;

/// Registrations of nearly 300 KB, which are 100 MB together.
const LARGE: usize = 360;
/// Most memory that asking for all of them may take beside them.
const LISTING_BYTES_MAX: u64 = 200 << 20;

#[tokio::test]
async fn workers_with_large_registrations_are_listed_page_by_page() -> Result<()> {
    let siege = Siege::begin(&[]).await?;
    register_all(siege.grpc(), LARGE, large).await?;
    let registered = siege.memory()?.now;
    let lists = (0..ATTACKERS).map(|_| list(siege.grpc(), "large"));
    let lists = timeout(PATIENCE, try_join_all(lists)).await.context("the lists are late")??;
    for list in lists {
        let expected: Vec<_> = (0..LARGE).map(|number| large(number).worker_id).collect();
        ensure!(list == expected, "{} of {LARGE} workers are listed", list.len());
    }
    let peak = siege.memory()?.peak;
    ensure!(peak < registered + LISTING_BYTES_MAX, "{registered} bytes, then {peak}");
    // All registrations together are bounded.
    let mut indexer = client::connect(siege.grpc()).await?;
    for number in LARGE.. {
        match indexer.register_worker(large(number)).await {
            Ok(_created) => ensure!(number < 2 * LARGE + LARGE / 2, "{number} are registered"),
            Err(status) => {
                let message = status.message();
                ensure!(
                    status.code() == Code::ResourceExhausted && message.contains("bytes"),
                    "{status}"
                );
                break;
            }
        }
    }
    siege.end().await
}

/// A worker with as many adapters as there may be, each with the longest name.
fn large(number: usize) -> pb::RegisterWorkerRequest {
    let name = |id| pb::LoraName { id, name: "a".repeat(NAME_BYTES_MAX) };
    pb::RegisterWorkerRequest {
        worker_id: format!("large-{number:04}"),
        model: "large".to_owned(),
        block_size: BLOCK_SIZE,
        lora_names: (1..=WORKER_LORA_NAMES_MAX as u64).map(name).collect(),
        ..Default::default()
    }
}

/// Ids of the workers of a model, in the order in which they are listed.
async fn list(address: SocketAddr, model: &str) -> Result<Vec<String>> {
    let mut indexer = client::connect(address).await?;
    let mut ids = Vec::new();
    let mut page_token = String::new();
    loop {
        let model = Some(model.to_owned());
        let request = pb::ListWorkersRequest { model, page_token, ..Default::default() };
        let page = indexer.list_workers(request).await?.into_inner();
        let bytes: usize = page.workers.iter().map(Message::encoded_len).sum();
        ensure!(bytes <= LIST_PAGE_BYTES_MAX, "a page of {bytes} bytes");
        ids.extend(page.workers.into_iter().map(|worker| worker.worker_id));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return Ok(ids);
        }
    }
}

/// Partitions, and workers in each.
const PARTITIONS: usize = 1_024;
const WORKERS: usize = 4;
/// Questions for statistics.
const QUESTIONS: usize = 64;
/// Most time of one core for one of them, in a debug build.
const QUESTION_TIME_MAX: Duration = Duration::from_millis(250);

#[tokio::test]
async fn statistics_of_many_partitions_and_workers_cost_little() -> Result<()> {
    let siege = Siege::begin(&[]).await?;
    register_all(siege.grpc(), PARTITIONS * WORKERS, |number| pb::RegisterWorkerRequest {
        worker_id: format!("w-{}", number / PARTITIONS),
        model: "many".to_owned(),
        tenant: format!("t-{:04}", number % PARTITIONS),
        block_size: BLOCK_SIZE,
        ..Default::default()
    })
    .await?;
    let before = processor_time(&siege)?;
    let questions = (0..QUESTIONS).map(|_| stats(siege.grpc()));
    timeout(PATIENCE, try_join_all(questions)).await.context("the statistics are late")??;
    let spent = (processor_time(&siege)? - before) / QUESTIONS as u32;
    println!("{spent:?} of processor time for each answer");
    ensure!(spent < QUESTION_TIME_MAX, "{spent:?} for each answer");
    siege.end().await
}

async fn stats(address: SocketAddr) -> Result<()> {
    let mut indexer = client::connect(address).await?;
    let stats = indexer.get_stats(pb::GetStatsRequest {}).await?.into_inner();
    let many = stats.partitions.iter().filter(|at| at.model == "many");
    let workers: Vec<_> = many.map(|at| at.workers as usize).collect();
    ensure!(workers == [WORKERS; PARTITIONS], "{workers:?}");
    Ok(())
}

/// Time that the server has spent on any core. It includes what the healthy client took.
fn processor_time(siege: &Siege) -> Result<Duration> {
    let id = siege.server.process_id().context("the server has ended")?;
    let stat = fs::read_to_string(format!("/proc/{id}/stat"))?;
    // The name of the program is in brackets, before all that is counted here.
    let (_, fields) = stat.rsplit_once(") ").context("no name")?;
    let ticks = fields.split(' ').skip(11).take(2).map(str::parse::<u64>);
    let ticks: u64 = ticks.sum::<Result<_, _>>()?;
    let per_second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_millis(ticks * 1_000 / per_second))
}

#[tokio::test]
async fn pages_have_every_worker_once_whoever_comes_and_goes_meanwhile() -> Result<()> {
    const STAYING: usize = 300;
    let siege = Siege::begin(&[]).await?;
    let named = |worker_id: String| pb::RegisterWorkerRequest {
        worker_id,
        model: "m".to_owned(),
        block_size: BLOCK_SIZE,
        ..Default::default()
    };
    register_all(siege.grpc(), STAYING, |number| named(format!("{number:04}"))).await?;
    let mut indexer = client::connect(siege.grpc()).await?;
    let mut ids = Vec::new();
    let mut page_token = String::new();
    let mut pages = 0;
    loop {
        // One that was listed last and one that was not listed yet come and go.
        for neighbour in [format!("{:04}+", pages * 7), format!("{:04}+", STAYING - pages * 2)] {
            indexer.register_worker(named(neighbour.clone())).await?;
            if pages % 2 == 1 {
                remove(&mut indexer, neighbour).await?;
            }
        }
        let request = pb::ListWorkersRequest {
            model: Some("m".to_owned()),
            page_size: Some(7),
            page_token,
            ..Default::default()
        };
        let page = indexer.list_workers(request).await?.into_inner();
        ensure!(page.workers.len() <= 7, "{} workers", page.workers.len());
        ids.extend(page.workers.into_iter().map(|worker| worker.worker_id));
        pages += 1;
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
        // The last one of the page goes: the next page begins behind its place.
        let last = ids.last().filter(|id| id.ends_with('+')).cloned();
        if let Some(last) = last {
            remove(&mut indexer, last).await?;
        }
    }
    ensure!(ids.is_sorted() && ids.iter().collect::<BTreeSet<_>>().len() == ids.len(), "{ids:?}");
    ids.retain(|id| !id.ends_with('+'));
    ensure!(ids == (0..STAYING).map(|number| format!("{number:04}")).collect::<Vec<_>>());
    let bad = pb::ListWorkersRequest { page_token: "7".to_owned(), ..Default::default() };
    let refused = indexer.list_workers(bad).await.err().context("a bad token is taken")?;
    ensure!(refused.code() == Code::InvalidArgument, "{refused}");
    ensure!(refused.message().starts_with("page_token "), "{refused}");
    siege.end().await
}

async fn remove(indexer: &mut Indexer, worker_id: String) -> Result<()> {
    let model = "m".to_owned();
    let tenant = String::new();
    indexer.remove_worker(pb::RemoveWorkerRequest { worker_id, model, tenant }).await?;
    Ok(())
}

/// Registers so many workers over several connections.
async fn register_all(
    address: SocketAddr,
    count: usize,
    worker: impl Fn(usize) -> pb::RegisterWorkerRequest,
) -> Result<()> {
    let worker = &worker;
    let attackers = (0..ATTACKERS).map(async |attacker| {
        let mut indexer = client::connect(address).await?;
        for number in (attacker..count).step_by(ATTACKERS) {
            let registered = indexer.register_worker(worker(number)).await?.into_inner();
            ensure!(registered.created, "worker {number} is there already");
        }
        anyhow::Ok(())
    });
    timeout(PATIENCE, try_join_all(attackers)).await.context("the registrations are late")??;
    Ok(())
}
