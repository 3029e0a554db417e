//! Random traffic of one tenant, and what a server answers to it.

use crate::calls::Caller;
use anyhow::{Context, Result};
use kvasir_proto::pb;
use kvasir_proto::pb::publish_events_request::Message as Publish;
use prost::Message;
use rand::Rng;
use rand::seq::IndexedRandom;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tonic::{Code, Status};

const WORKERS: &[&str] = &["w0", "w1", "w2"];
const MODELS: &[&str] = &["m1", "m2"];
const BLOCK_SIZES: &[u32] = &[4, 4, 4, 8];
const BLOCKS: u64 = 12;
/// Longest wait until a stream that has ended is known to have ended, and how often to look.
const CLOSED_MAX: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(2);

/// One call of a tenant, complete but for the tenant's name.
#[derive(Debug, Clone)]
pub enum Step {
    /// `RegisterWorker`.
    Register { worker: &'static str, model: &'static str, block_size: u32, replace: bool },
    /// `PublishEvents`: a hello and one batch.
    Publish { worker: &'static str, model: &'static str, block_size: u32, batch: pb::PublishBatch },
    /// `FindMatches`, or the same in a stream.
    Find { model: &'static str, blocks: Vec<u64>, block_size: Option<u32>, in_stream: bool },
    /// `RecordPlacement`.
    Place { worker: &'static str, model: &'static str, blocks: Vec<u64> },
    /// `DumpWorker`.
    Dump { worker: &'static str, model: &'static str },
    /// `ListWorkers`, in pages of this size.
    List { page_size: u32 },
    /// `GetStats`.
    Stats,
    /// `RemoveWorker`.
    Remove { worker: &'static str, model: &'static str },
}

fn one<T: Copy>(of: &[T], rng: &mut impl Rng) -> T {
    *of.choose(rng).expect("not empty")
}

impl Step {
    /// A random step; `number` grows with each.
    pub fn random(number: u64, rng: &mut impl Rng) -> Self {
        let worker = one(WORKERS, rng);
        let model = one(MODELS, rng);
        let block_size = one(BLOCK_SIZES, rng);
        let first = rng.random_range(0..3_u64);
        let blocks: Vec<_> = (0..rng.random_range(1..BLOCKS)).map(|at| 100 * first + at).collect();
        match rng.random_range(0..20) {
            0..4 => Self::Register { worker, model, block_size, replace: rng.random() },
            4..10 => {
                Self::Publish { worker, model, block_size, batch: batch(number, &blocks, rng) }
            }
            10..14 => {
                let block_size = rng.random::<bool>().then_some(block_size);
                Self::Find { model, blocks, block_size, in_stream: rng.random() }
            }
            14 | 15 => Self::Place { worker, model, blocks },
            16 => Self::Dump { worker, model },
            17 => Self::List { page_size: rng.random_range(1..4) },
            18 => Self::Stats,
            _ => Self::Remove { worker, model },
        }
    }

    /// Makes the call for a tenant, and returns the answer as text, without what two servers never have in common: ages, ids
    /// of processes, and the tenant's name in errors.
    pub async fn play(&self, by: &Callers, tenant: &str) -> Result<String> {
        let outcome = self.call(by, tenant).await;
        outcome.map_or_else(|status| described(&status, tenant), Ok)
    }

    async fn call(&self, by: &Callers, tenant: &str) -> Result<String, Status> {
        let own = tenant.to_owned();
        let named = str::to_owned;
        match self.clone() {
            Self::Register { worker, model, block_size, replace } => {
                let request = pb::RegisterWorkerRequest {
                    worker_id: named(worker),
                    model: named(model),
                    tenant: own,
                    block_size,
                    replace,
                    ..Default::default()
                };
                text::<pb::RegisterWorkerResponse>(&by.publish, "Indexer/RegisterWorker", &request)
                    .await
            }
            Self::Publish { worker, model, block_size, batch } => {
                by.publish_batch(tenant, worker, model, block_size, batch).await
            }
            Self::Find { model, blocks, block_size, in_stream } => {
                let request = pb::FindMatchesRequest {
                    model: named(model),
                    tenant: own,
                    local_hashes: blocks,
                    block_size,
                    ..Default::default()
                };
                if in_stream {
                    return by.find_in_stream(&request, tenant).await;
                }
                let answers = by.query.call("/kvasir.v1.Indexer/FindMatches", &request).await?;
                let answer = decoded::<pb::FindMatchesResponse>(&answers)?;
                Ok(format!("{:?}", answer.into_iter().map(ageless).collect::<Vec<_>>()))
            }
            Self::Place { worker, model, blocks } => {
                let request = pb::RecordPlacementRequest {
                    worker_id: named(worker),
                    model: named(model),
                    tenant: own,
                    local_hashes: blocks,
                    ..Default::default()
                };
                text::<pb::RecordPlacementResponse>(&by.query, "Indexer/RecordPlacement", &request)
                    .await
            }
            Self::Dump { worker, model } => {
                let worker_id = named(worker);
                let model = named(model);
                let request =
                    pb::DumpWorkerRequest { worker_id, model, tenant: own, ..Default::default() };
                text::<pb::DumpWorkerResponse>(&by.query, "Indexer/DumpWorker", &request).await
            }
            Self::List { page_size } => by.list(page_size, tenant).await,
            Self::Stats => by.stats(tenant).await,
            Self::Remove { worker, model } => {
                let worker_id = named(worker);
                let model = named(model);
                let request = pb::RemoveWorkerRequest { worker_id, model, tenant: own };
                text::<pb::RemoveWorkerResponse>(&by.publish, "Indexer/RemoveWorker", &request)
                    .await
            }
        }
    }
}

fn batch(sequence: u64, blocks: &[u64], rng: &mut impl Rng) -> pb::PublishBatch {
    use pb::published_event::Event;
    let names: Vec<_> = blocks.iter().map(|block| block + 7_000).collect();
    let event = match rng.random_range(0..6) {
        0 => Event::Removed(pb::BlocksRemoved { names, ..Default::default() }),
        1 => Event::Cleared(pb::BlocksCleared::default()),
        _ => {
            let local_hashes = blocks.to_vec();
            Event::Stored(pb::BlocksStored { names, local_hashes, ..Default::default() })
        }
    };
    let events = vec![pb::PublishedEvent { event: Some(event) }];
    pb::PublishBatch { sequence, dp_rank: rng.random_range(0..2), events }
}

/// The callers of one tenant.
#[derive(Debug, Clone)]
pub struct Callers {
    /// Asks.
    pub query: Caller,
    /// Publishes.
    pub publish: Caller,
}

impl Callers {
    async fn publish_batch(
        &self,
        tenant: &str,
        worker: &str,
        model: &str,
        block_size: u32,
        batch: pb::PublishBatch,
    ) -> Result<String, Status> {
        let hello = pb::PublishHello {
            model: model.to_owned(),
            tenant: tenant.to_owned(),
            worker_id: worker.to_owned(),
            source: "s".to_owned(),
            block_size,
            // The same for the whole play: batches may be missing, never repeated.
            incarnation: vec![7; 16].into(),
            ..Default::default()
        };
        let messages = [Publish::Hello(hello), Publish::Batch(batch)];
        let messages = messages
            .map(|message| pb::PublishEventsRequest { message: Some(message) }.encode_to_vec());
        let answers =
            self.publish.call_all("/kvasir.v1.EventIngest/PublishEvents", &messages).await?;
        self.until_closed(tenant, worker, model).await?;
        Ok(format!("{:?}", decoded::<pb::PublishEventsResponse>(&answers)?))
    }

    /// Waits until the server has noticed the end of a worker's streams, which shows in the worker's state.
    async fn until_closed(&self, tenant: &str, worker: &str, model: &str) -> Result<(), Status> {
        let request = pb::ListWorkersRequest {
            model: Some(model.to_owned()),
            tenant: Some(tenant.to_owned()),
            ..Default::default()
        };
        let begin = Instant::now();
        loop {
            let answers = self.query.call("/kvasir.v1.Indexer/ListWorkers", &request).await?;
            let pages = decoded::<pb::ListWorkersResponse>(&answers)?;
            let is_it = |at: &&pb::WorkerInfo| {
                at.registration.as_ref().is_some_and(|at| at.worker_id == worker)
            };
            let mut workers = pages.iter().flat_map(|page| &page.workers).filter(is_it);
            if !workers.any(|at| at.sources.iter().any(|source| source.connected)) {
                return Ok(());
            }
            if begin.elapsed() > CLOSED_MAX {
                return Err(Status::internal(format!("the stream of {worker} never ends")));
            }
            sleep(LOOK).await;
        }
    }

    async fn find_in_stream(
        &self,
        request: &pb::FindMatchesRequest,
        tenant: &str,
    ) -> Result<String, Status> {
        use pb::find_matches_stream_response::Outcome;
        let path = "/kvasir.v1.Indexer/FindMatchesStream";
        let answers = self.query.call(path, request).await?;
        let answers = decoded::<pb::FindMatchesStreamResponse>(&answers)?;
        let outcomes = answers.into_iter().map(|answer| match answer.outcome {
            Some(Outcome::Error(error)) => format!("{}: {}", error.code, error.message)
                .replace(&format!("{tenant:?}"), "TENANT"),
            Some(Outcome::Matches(answer)) => format!("{:?}", [ageless(answer)]),
            None => "nothing".to_owned(),
        });
        Ok(outcomes.collect::<Vec<_>>().join("; "))
    }

    async fn list(&self, page_size: u32, tenant: &str) -> Result<String, Status> {
        let mut listed = Vec::new();
        let mut page_token = String::new();
        loop {
            // Of all tenants: others' are not for this caller.
            let request = pb::ListWorkersRequest {
                page_size: Some(page_size),
                page_token: page_token.clone(),
                ..Default::default()
            };
            let answers = self.query.call("/kvasir.v1.Indexer/ListWorkers", &request).await?;
            for page in decoded::<pb::ListWorkersResponse>(&answers)? {
                listed.extend(
                    page.workers.into_iter().map(|worker| described_worker(worker, tenant)),
                );
                page_token = page.next_page_token;
                if page_token.is_empty() {
                    return Ok(listed.join("\n"));
                }
            }
        }
    }

    async fn stats(&self, tenant: &str) -> Result<String, Status> {
        let request = pb::GetStatsRequest {};
        let answers = self.query.call("/kvasir.v1.Indexer/GetStats", &request).await?;
        let stats = decoded::<pb::GetStatsResponse>(&answers)?;
        let partitions = stats.into_iter().flat_map(|stats| stats.partitions);
        let text = format!("{:?}", partitions.collect::<Vec<_>>());
        Ok(text.replace(&format!("tenant: {tenant:?}"), "TENANT"))
    }
}

fn described_worker(mut worker: pb::WorkerInfo, tenant: &str) -> String {
    worker.sources.iter_mut().for_each(|source| source.verified_age_ms = None);
    format!("{worker:?}").replace(&format!("tenant: {tenant:?}"), "TENANT")
}

fn ageless(mut answer: pb::FindMatchesResponse) -> pb::FindMatchesResponse {
    for found in &mut answer.matches {
        found.verified_age_ms = None;
    }
    answer
}

fn decoded<M: Message + Default>(answers: &[bytes::Bytes]) -> Result<Vec<M>, Status> {
    let decoded = answers.iter().map(|answer| M::decode(answer.clone()));
    decoded.collect::<Result<_, _>>().map_err(|error| Status::internal(error.to_string()))
}

async fn text<M: Message + Default + std::fmt::Debug>(
    caller: &Caller,
    path: &str,
    request: &impl Message,
) -> Result<String, Status> {
    let answers = caller.call(&format!("/kvasir.v1.{path}"), request).await?;
    Ok(format!("{:?}", decoded::<M>(&answers)?))
}

/// A refusal. One that says that the caller may not, or that the server has failed, is an error of the play.
fn described(status: &Status, tenant: &str) -> Result<String> {
    let wrong = [Code::Unauthenticated, Code::PermissionDenied, Code::Internal, Code::Unavailable];
    let text = format!("{:?}: {}", status.code(), status.message());
    if wrong.contains(&status.code()) {
        return Err(anyhow::anyhow!(text)).context("a tenant's own call");
    }
    Ok(text
        .replace(&format!("tenant {tenant:?}"), "TENANT")
        .replace(&format!("tenant {tenant}"), "TENANT"))
}
