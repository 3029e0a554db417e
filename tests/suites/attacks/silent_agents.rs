//! Agents that are to be asked for what is missing, and never answer.

use crate::harness::{POLL_INTERVAL, Siege};
use anyhow::{Context, Result, ensure};
use futures::stream::{self, BoxStream, StreamExt};
use kvasir_proto::pb;
use kvasir_proto::pb::event_ingest_client::EventIngestClient;
use kvasir_proto::pb::get_events_response::Part;
use kvasir_proto::pb::local_indexer_server::{LocalIndexer, LocalIndexerServer};
use kvasir_proto::pb::publish_events_request::Message;
use kvasir_proto::pb::published_event::Event;
use kvasir_sim::client;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

/// Workers of the attacker, each with a stream that lacks batches.
const SILENT: usize = 120;
/// Longest time until what a good worker lacks has come.
const HEAL_TIMEOUT: Duration = Duration::from_secs(5);
/// The same of one that comes behind more new agents than are asked at a time: once the first of these are given up.
const FRESH_HEAL_TIMEOUT: Duration = Duration::from_secs(20);
const MODEL: &str = "m";
const SOURCE: &str = "s";
/// The first batches of each stream, which are missing.
const MISSING: u64 = 5;
const BLOCK_SIZE: u32 = 4;

#[tokio::test]
async fn silent_agents_at_one_address_keep_no_good_worker_from_healing() -> Result<()> {
    attack(1).await
}

#[tokio::test]
async fn silent_agents_at_many_addresses_keep_no_good_worker_from_healing() -> Result<()> {
    attack(SILENT).await
}

/// An attack of agents at so many addresses.
async fn attack(addresses: usize) -> Result<()> {
    let siege = Siege::begin(&[]).await?;
    let (agent, _service) = GoodAgent::start().await?;
    let known = Publisher::open(siege.grpc(), "known", agent.address).await?;
    known.is_healed_at(MISSING, HEAL_TIMEOUT).await.context("before the attack")?;
    let mut listeners = Vec::new();
    for _ in 0..addresses {
        // Connections are made, and nobody accepts them.
        listeners.push(TcpListener::bind("127.0.0.1:0").await?);
    }
    let mut streams = Vec::new();
    for number in 0..SILENT {
        let address = listeners[number % addresses].local_addr()?;
        streams.push(Publisher::open(siege.grpc(), &format!("silent-{number}"), address).await?);
    }
    // As many again are missing.
    let newest = 2 * MISSING;
    agent.newest.store(newest, Ordering::Release);
    known.send(newest).await?;
    known
        .is_healed_at(newest, HEAL_TIMEOUT)
        .await
        .context("a worker that was there before the attack")?;
    let (another, _service) = GoodAgent::start().await?;
    let fresh = Publisher::open(siege.grpc(), "fresh", another.address).await?;
    fresh
        .is_healed_at(MISSING, FRESH_HEAL_TIMEOUT)
        .await
        .context("a worker that came after the attack")?;
    drop(streams);
    siege.end().await
}

/// A stream of batches, of which the first do not come.
struct Publisher {
    worker: String,
    address: SocketAddr,
    requests: mpsc::Sender<pb::PublishEventsRequest>,
    _answers: Streaming<pb::PublishEventsResponse>,
}

impl Publisher {
    /// Registers the worker, opens its stream and sends a batch that others are missing before.
    async fn open(server: SocketAddr, worker: &str, agent: SocketAddr) -> Result<Self> {
        let mut indexer = client::connect(server).await?;
        let request = pb::RegisterWorkerRequest {
            worker_id: worker.to_owned(),
            model: MODEL.to_owned(),
            block_size: BLOCK_SIZE,
            local_indexer_endpoint: format!("http://{agent}"),
            ..Default::default()
        };
        indexer.register_worker(request).await?;
        let (requests, queue) = mpsc::channel(4);
        let hello = pb::PublishHello {
            model: MODEL.to_owned(),
            worker_id: worker.to_owned(),
            source: SOURCE.to_owned(),
            block_size: BLOCK_SIZE,
            incarnation: vec![1; 16].into(),
            first_sequence: Some(0),
            ..Default::default()
        };
        let hello = pb::PublishEventsRequest { message: Some(Message::Hello(hello)) };
        requests.send(hello).await?;
        let channel = Channel::from_shared(format!("http://{server}"))?.connect().await?;
        let mut ingest = EventIngestClient::new(channel);
        let mut answers = ingest.publish_events(ReceiverStream::new(queue)).await?.into_inner();
        answers.message().await?.context("the stream is refused")?;
        let publisher =
            Self { worker: worker.to_owned(), address: server, requests, _answers: answers };
        publisher.send(MISSING).await?;
        Ok(publisher)
    }

    async fn send(&self, sequence: u64) -> Result<()> {
        let message = Message::Batch(batch(sequence));
        self.requests.send(pb::PublishEventsRequest { message: Some(message) }).await?;
        Ok(())
    }

    /// Waits until nothing is missing before a batch.
    async fn is_healed_at(&self, sequence: u64, limit: Duration) -> Result<()> {
        let mut indexer = client::connect(self.address).await?;
        let begun = Instant::now();
        loop {
            let worker = client::find_worker(&mut indexer, MODEL, &self.worker).await?;
            let sources = worker.context("the worker is gone")?.sources;
            let is_healed = |at: &pb::SourceInfo| client::is_exact_at(at, sequence);
            if !sources.is_empty() && sources.iter().all(is_healed) {
                println!("{} is healed after {:?}", self.worker, begun.elapsed());
                return Ok(());
            }
            ensure!(begun.elapsed() < limit, "{} lacks batches: {sources:?}", self.worker);
            sleep(POLL_INTERVAL).await;
        }
    }
}

/// One block, after that of the batch before.
pub fn batch(sequence: u64) -> pb::PublishBatch {
    let stored = pb::BlocksStored {
        parent_name: (sequence > 0).then_some(sequence),
        names: vec![sequence + 1],
        local_hashes: vec![sequence + 1],
        ..Default::default()
    };
    let events = vec![pb::PublishedEvent { event: Some(Event::Stored(stored)) }];
    pb::PublishBatch { sequence, dp_rank: 0, events }
}

/// Has all batches of any worker, up to the newest.
#[derive(Clone)]
pub struct GoodAgent {
    /// Where it serves.
    pub address: SocketAddr,
    /// Number of the newest batch.
    pub newest: Arc<AtomicU64>,
}

type Answers<P> = BoxStream<'static, Result<P, Status>>;

#[tonic::async_trait]
impl LocalIndexer for GoodAgent {
    type GetEventsStream = Answers<pb::GetEventsResponse>;
    type DumpStream = Answers<pb::LocalDumpResponse>;
    type GetDigestsStream = Answers<pb::GetDigestsResponse>;

    async fn get_events(
        &self,
        request: Request<pb::GetEventsRequest>,
    ) -> Result<Response<Self::GetEventsStream>, Status> {
        let head = self.newest.load(Ordering::Acquire);
        let batches = (request.get_ref().from_sequence..=head).map(|at| Part::Batch(batch(at)));
        let end = Part::End(pb::EventsEnd { head_sequence: Some(head) });
        let parts: Vec<_> = batches.chain([end]).collect();
        let answers = parts.into_iter().map(|part| Ok(pb::GetEventsResponse { part: Some(part) }));
        Ok(Response::new(stream::iter(answers).boxed()))
    }

    async fn dump(
        &self,
        _request: Request<pb::LocalDumpRequest>,
    ) -> Result<Response<Self::DumpStream>, Status> {
        Err(Status::unimplemented("ranges suffice"))
    }

    async fn get_digests(
        &self,
        _request: Request<pb::GetDigestsRequest>,
    ) -> Result<Response<Self::GetDigestsStream>, Status> {
        Err(Status::unimplemented("nobody asks"))
    }

    async fn get_status(
        &self,
        _request: Request<pb::GetLocalStatusRequest>,
    ) -> Result<Response<pb::GetLocalStatusResponse>, Status> {
        Err(Status::unimplemented("nobody asks"))
    }
}

impl GoodAgent {
    /// The agent, and the task that serves it.
    pub async fn start() -> Result<(Self, JoinSet<()>)> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let newest = Arc::new(AtomicU64::new(MISSING));
        let agent = Self { address: listener.local_addr()?, newest };
        let service = tonic::transport::Server::builder()
            .add_service(LocalIndexerServer::new(agent.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        let mut tasks = JoinSet::new();
        tasks.spawn(async { service.await.expect("a service that runs") });
        Ok((agent, tasks))
    }
}
