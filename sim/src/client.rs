//! Helpers for the generated gRPC client: calls that tests and the demo share.

use crate::engine::MockEngine;
use anyhow::{Context, Result, bail, ensure};
use kvasir_proto::pb;
use kvasir_proto::pb::dump_worker_response::Part;
use kvasir_proto::pb::indexer_client::IndexerClient;
use kvasir_proto::types::{Group, LocalHash};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::Instant;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

/// Client of service `Indexer`.
pub type Indexer = IndexerClient<Channel>;

/// Timeout for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Polling interval for a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Tenant of every worker that these helpers register.
pub const TENANT: &str = "";

/// Connects to a server.
///
/// # Errors
/// If no server answers at `address`.
pub async fn connect(address: SocketAddr) -> Result<Indexer> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
    let channel = endpoint.connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true).connect().await?;
    Ok(IndexerClient::new(channel)
        .max_decoding_message_size(kvasir_proto::limits::GRPC_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(kvasir_proto::limits::GRPC_MESSAGE_BYTES_MAX))
}

/// Registers an engine that publishes like vLLM.
///
/// # Errors
/// If the server rejects the worker, or the worker was registered before.
pub async fn register_engine(
    client: &mut Indexer,
    worker: (&str, &str),
    block_size: usize,
    engine: &MockEngine,
) -> Result<()> {
    let endpoints = (engine.endpoint(), engine.replay_endpoint());
    register_endpoints(client, worker, block_size, endpoints).await
}

/// Registers an endpoint for live batches and one for replays, both of a publisher like vLLM.
///
/// # Errors
/// If the server rejects the worker, or the worker was registered before.
pub async fn register_endpoints(
    client: &mut Indexer,
    (model, worker_id): (&str, &str),
    block_size: usize,
    (live, replay): (&str, &str),
) -> Result<()> {
    let request = pb::RegisterWorkerRequest {
        worker_id: worker_id.to_owned(),
        model: model.to_owned(),
        tenant: TENANT.to_owned(),
        block_size: block_size as u32,
        engine: pb::Engine::Vllm as i32,
        endpoints: vec![pb::EngineEndpoint {
            endpoint: live.to_owned(),
            replay_endpoint: replay.to_owned(),
            ..pb::EngineEndpoint::default()
        }],
        ..pb::RegisterWorkerRequest::default()
    };
    let response = client.register_worker(request).await.context("register a worker")?;
    ensure!(response.into_inner().created, "{worker_id} was registered before");
    Ok(())
}

/// The listed entry of one worker; none if the server does not have it.
///
/// # Errors
/// If the call fails.
pub async fn find_worker(
    client: &mut Indexer,
    model: &str,
    worker_id: &str,
) -> Result<Option<pb::WorkerInfo>> {
    let model = Some(model.to_owned());
    let tenant = Some(TENANT.to_owned());
    let request = pb::ListWorkersRequest { model, tenant, ..Default::default() };
    let workers = list_workers(client, request).await?;
    Ok(workers.into_iter().find(|worker| worker.worker_id == worker_id))
}

/// All workers that match a request, from all pages.
///
/// # Errors
/// If a call fails.
pub async fn list_workers(
    client: &mut Indexer,
    mut request: pb::ListWorkersRequest,
) -> Result<Vec<pb::WorkerInfo>> {
    let mut workers = Vec::new();
    loop {
        let page = client.list_workers(request.clone()).await?.into_inner();
        workers.extend(page.workers);
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            return Ok(workers);
        }
    }
}

/// Polls until every source of a worker satisfies `condition`, for at most `timeout`.
///
/// # Errors
/// If a call fails, the worker is unknown or has no source, or the timeout passes.
pub async fn wait_for_sources(
    client: &mut Indexer,
    (model, worker_id): (&str, &str),
    what: &str,
    timeout: Duration,
    condition: impl Fn(&pb::SourceInfo) -> bool,
) -> Result<()> {
    let deadline = Instant::now() + timeout;
    loop {
        let worker = find_worker(client, model, worker_id).await?;
        let Some(worker) = worker else { bail!("the server does not know worker {worker_id}") };
        ensure!(!worker.sources.is_empty(), "worker {worker_id} has no source");
        if worker.sources.iter().all(&condition) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            bail!("{worker_id} is not {what} after {timeout:?}: {:?}", worker.sources);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Waits until a worker that registers itself is listed and its sources are exact at batch `sequence`.
///
/// # Errors
/// If a call fails or the timeout passes.
pub async fn wait_until_exact_at(
    client: &mut Indexer,
    (model, worker_id): (&str, &str),
    sequence: u64,
    timeout: Duration,
) -> Result<()> {
    let deadline = Instant::now() + timeout;
    loop {
        let worker = find_worker(client, model, worker_id).await?;
        let sources = worker.iter().flat_map(|worker| &worker.sources);
        let exact = sources.clone().count() > 0
            && sources.clone().all(|source| is_exact_at(source, sequence));
        if exact {
            return Ok(());
        }
        if Instant::now() >= deadline {
            bail!("{worker_id} is not exact at {sequence} after {timeout:?}: {worker:?}");
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// True if the source is exact and has applied batch `sequence`.
#[must_use]
pub fn is_exact_at(source: &pb::SourceInfo, sequence: u64) -> bool {
    has_applied(source, sequence) && source.state == pb::WorkerState::Exact as i32
}

/// True if blocks of the source were rejected or evicted.
#[must_use]
pub const fn is_partial(source: &pb::SourceInfo) -> bool {
    source.state == pb::WorkerState::Partial as i32
}

/// True if the source is partial and has applied batch `sequence`: it will not become exact by waiting.
#[must_use]
pub fn is_partial_at(source: &pb::SourceInfo, sequence: u64) -> bool {
    has_applied(source, sequence) && is_partial(source)
}

fn has_applied(source: &pb::SourceInfo, sequence: u64) -> bool {
    source.applied.as_ref().is_some_and(|cursor| cursor.sequence >= sequence)
}

/// Records of one dump by rank, source and name. Only the last record of each is kept.
type Records = HashMap<(u32, u32, u64), pb::BlockRecord>;

/// Maximum number of restarts of a dump that the server aborts.
const DUMPS_ABORTED_MAX: usize = 100;

/// Reads a complete dump. The server aborts a dump if the worker is cleared or leaves meanwhile; the contract requires
/// the caller to start again.
async fn dump_records(client: &mut Indexer, model: &str, worker_id: &str) -> Result<Records> {
    for _ in 0..DUMPS_ABORTED_MAX {
        match dump_once(client, model, worker_id).await {
            Err(error) if has_code(&error, Code::Aborted) => {}
            outcome => return outcome,
        }
    }
    bail!("{DUMPS_ABORTED_MAX} dumps of {worker_id} in a row were aborted")
}

fn has_code(error: &anyhow::Error, code: Code) -> bool {
    error.downcast_ref::<tonic::Status>().is_some_and(|status| status.code() == code)
}

/// Dumps a worker once, and returns the records of the main group.
async fn dump_once(client: &mut Indexer, model: &str, worker_id: &str) -> Result<Records> {
    let request = pb::DumpWorkerRequest {
        model: model.to_owned(),
        tenant: TENANT.to_owned(),
        worker_id: worker_id.to_owned(),
        dp_rank: None,
        chunk_records: None,
    };
    let mut parts = client.dump_worker(request).await.context("dump the worker")?.into_inner();
    // A later record for the same rank, name and source replaces an earlier one.
    let mut records = Records::new();
    let mut received: HashMap<u32, u64> = HashMap::new();
    let mut ended: HashMap<u32, u64> = HashMap::new();
    while let Some(part) = parts.message().await.context("dump the worker")? {
        match part.part {
            Some(Part::Chunk(chunk)) => {
                for record in chunk.records {
                    let key = (chunk.dp_rank, record.source_index, record.name);
                    *received.entry(record.source_index).or_default() += 1;
                    let local = record.local_hash.map(LocalHash);
                    if !local.is_some_and(Group::is_mark) {
                        records.insert(key, record);
                    }
                }
            }
            Some(Part::Meanings(_)) => {}
            Some(Part::End(end)) => {
                ended.insert(end.source_index, end.records);
            }
            None => bail!("a message of the dump is empty"),
        }
    }
    ensure!(!ended.is_empty(), "the dump of {worker_id} has no end");
    for (source, records) in ended {
        let received = received.remove(&source).unwrap_or_default();
        ensure!(received == records, "{received} of {records} records of {worker_id} arrived");
    }
    ensure!(received.is_empty(), "records of {worker_id} belong to no source");
    Ok(records)
}

/// The worker's device blocks in the index, from a dump: names with their copies.
///
/// # Errors
/// If the dump fails or is incomplete.
pub async fn dump_device_copies(
    client: &mut Indexer,
    model: &str,
    worker_id: &str,
) -> Result<BTreeMap<u64, u32>> {
    let mut copies = BTreeMap::new();
    for ((_, _, name), record) in dump_records(client, model, worker_id).await? {
        if record.device_copies > 0 {
            *copies.entry(name).or_default() += record.device_copies;
        }
    }
    Ok(copies)
}

/// Identifies a block independently of the names that a source assigns: its rank, the local hashes from the root to it,
/// and its tier (0 for the device).
pub type Chain = (u32, Vec<u64>, usize);

/// The worker's blocks in the index, from a dump, as chains in each of their tiers. A chain begins at the first block
/// whose parent is missing.
///
/// # Errors
/// If the dump fails or is incomplete.
pub async fn dump_chains(
    client: &mut Indexer,
    model: &str,
    worker_id: &str,
) -> Result<BTreeSet<Chain>> {
    let records = dump_records(client, model, worker_id).await?;
    let mut chains = BTreeSet::new();
    for (&(rank, source, name), record) in &records {
        let mut locals = Vec::new();
        let mut at = Some(name);
        while let Some(record) = at.and_then(|name| records.get(&(rank, source, name))) {
            locals.push(record.local_hash.context("a block that was announced with tokens")?);
            at = record.parent_name;
        }
        locals.reverse();
        let copies = [record.device_copies, record.host_copies, record.disk_copies];
        let tiers = copies.iter().enumerate().filter(|&(_, &copies)| copies > 0);
        chains.extend(tiers.map(|(tier, _)| (rank, locals.clone(), tier)));
    }
    Ok(chains)
}

/// For each worker of an answer: its leading blocks, and how many of them only a pool has.
#[must_use]
pub fn found(answer: &pb::FindMatchesResponse) -> Vec<(&str, u32, u32)> {
    let matches = answer.matches.iter();
    matches.map(|at| (at.worker_id.as_str(), at.matched_blocks, at.pool_blocks)).collect()
}

/// Waits until a query's answer equals these entries, in the form of [`found`].
///
/// # Errors
/// If the answer never equals them within the timeout. The error has the last answer.
pub async fn until_found(
    index: SocketAddr,
    query: &pb::FindMatchesRequest,
    expected: &[(&str, u32, u32)],
    patience: Duration,
) -> Result<()> {
    let ask = async || Ok(connect(index).await?.find_matches(query.clone()).await?.into_inner());
    let waiting = async {
        // A starting index does not know the model yet.
        while !matches!(&ask().await, Result::<_>::Ok(answer) if found(answer) == expected) {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    if tokio::time::timeout(patience, waiting).await.is_err() {
        bail!("never {expected:?}, but {:?}", ask().await);
    }
    Ok(())
}
