//! Publishers with missing batches or blocks, and the local indexers that provide them.

use crate::harness::{
    PATIENCE, Publisher, Server, assert_refused, hello, query, registration, removed, stored,
    within,
};
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use kvasir_proto::pb::indexer_client::IndexerClient;
use kvasir_proto::pb::local_indexer_server::{LocalIndexer, LocalIndexerServer};
use kvasir_proto::pb::publish_events_request::Message;
use kvasir_proto::pb::published_event::Event;
use kvasir_proto::pb::{
    self, get_events_response as events, local_dump_response as dump, publish_events_response,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

const EXACT: i32 = pb::WorkerState::Exact as i32;
const DEGRADED: i32 = pb::WorkerState::Degraded as i32;

/// An agent's data about source "s" of worker "w".
#[derive(Default)]
struct Memory {
    incarnation: u8,
    batches: BTreeMap<u64, Vec<Event>>,
    /// The oldest batch that the agent still has.
    oldest: u64,
    /// Parent and local hash of the cached names.
    held: BTreeMap<u64, (Option<u64>, u64)>,
    /// Whether dumps end early.
    breaks_off: bool,
    /// Whether dumps never end.
    hangs: bool,
    asked: Vec<&'static str>,
}

impl Memory {
    /// Assigns a number to a batch.
    fn publish(&mut self, event: Event) -> (u64, Vec<Event>) {
        let sequence = self.head().map_or(0, |head| head + 1);
        match &event {
            Event::Stored(stored) => {
                let mut parent = stored.parent_name;
                for (name, local) in stored.names.iter().zip(&stored.local_hashes) {
                    self.held.insert(*name, (parent, *local));
                    parent = Some(*name);
                }
            }
            Event::Removed(removed) => {
                self.held.retain(|name, _| !removed.names.contains(name));
            }
            Event::Cleared(_) => self.held.clear(),
        }
        self.batches.insert(sequence, vec![event.clone()]);
        (sequence, vec![event])
    }

    fn head(&self) -> Option<u64> {
        self.batches.keys().next_back().copied()
    }

    fn lives(&self, incarnation: &[u8]) -> Option<pb::WrongIncarnation> {
        let present = vec![self.incarnation; 16];
        (incarnation != present).then(|| pb::WrongIncarnation { incarnation: present.into() })
    }

    fn events(&mut self, request: &pb::GetEventsRequest) -> Vec<events::Part> {
        self.asked.push("range");
        if let Some(wrong) = self.lives(&request.incarnation) {
            return vec![events::Part::WrongIncarnation(wrong)];
        }
        let from = request.from_sequence;
        let head_sequence = self.head();
        if from < self.oldest {
            return vec![events::Part::TooOld(pb::EventsTooOld {
                oldest_sequence: self.oldest,
                head_sequence: head_sequence.unwrap_or_default(),
            })];
        }
        let batch = |(&sequence, events): (&u64, &Vec<Event>)| {
            let events = events.iter().map(|at| pb::PublishedEvent { event: Some(at.clone()) });
            events::Part::Batch(pb::PublishBatch { sequence, dp_rank: 0, events: events.collect() })
        };
        let end = events::Part::End(pb::EventsEnd { head_sequence });
        self.batches.range(from..).map(batch).chain([end]).collect()
    }

    fn dump(&mut self, request: &pb::LocalDumpRequest) -> Vec<dump::Part> {
        self.asked.push("dump");
        if let Some(wrong) = self.lives(&request.incarnation) {
            return vec![dump::Part::WrongIncarnation(wrong)];
        }
        let chunk = |(&name, &(parent_name, local)): (&u64, &(Option<u64>, u64))| {
            let local_hash = Some(local);
            let record = pb::BlockRecord {
                name,
                parent_name,
                local_hash,
                device_copies: 1,
                ..Default::default()
            };
            dump::Part::Chunk(pb::DumpChunk { dp_rank: 0, records: vec![record] })
        };
        let mut parts: Vec<_> = self.held.iter().map(chunk).collect();
        if !self.breaks_off && !self.hangs {
            parts.push(dump::Part::End(pb::LocalDumpEnd {
                incarnation: vec![self.incarnation; 16].into(),
                watermark_sequence: self.head(),
                records: parts.len() as u64,
                incomplete: false,
            }));
        }
        parts
    }
}

#[derive(Clone, Default)]
struct Agent(Arc<Mutex<Memory>>);

impl Agent {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, event: Event) -> (u64, Vec<Event>) {
        self.memory().publish(event)
    }

    fn asked(&self) -> Vec<&'static str> {
        self.memory().asked.clone()
    }
}

type Answers<P> = BoxStream<'static, Result<P, Status>>;

#[tonic::async_trait]
impl LocalIndexer for Agent {
    type GetEventsStream = Answers<pb::GetEventsResponse>;
    type DumpStream = Answers<pb::LocalDumpResponse>;
    type GetDigestsStream = Answers<pb::GetDigestsResponse>;

    async fn get_events(
        &self,
        request: Request<pb::GetEventsRequest>,
    ) -> Result<Response<Self::GetEventsStream>, Status> {
        let parts = self.memory().events(request.get_ref()).into_iter();
        let answers = parts.map(|part| Ok(pb::GetEventsResponse { part: Some(part) }));
        Ok(Response::new(stream::iter(answers.collect::<Vec<_>>()).boxed()))
    }

    async fn dump(
        &self,
        request: Request<pb::LocalDumpRequest>,
    ) -> Result<Response<Self::DumpStream>, Status> {
        let parts = self.memory().dump(request.get_ref()).into_iter();
        let answers = parts.map(|part| Ok(pb::LocalDumpResponse { part: Some(part) }));
        let answers = stream::iter(answers.collect::<Vec<_>>());
        let hangs = self.memory().hangs;
        let answers = match hangs {
            true => answers.chain(stream::pending()).boxed(),
            false => answers.boxed(),
        };
        Ok(Response::new(answers))
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

/// A server, worker "w" with an agent in incarnation 1, and the task that serves the agent.
struct Stage {
    server: Server,
    client: IndexerClient<Channel>,
    agent: Agent,
    _service: JoinSet<()>,
}

impl Stage {
    async fn new(flags: &[&str]) -> Self {
        let agent = Agent::default();
        agent.memory().incarnation = 1;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound port");
        let service = tonic::transport::Server::builder()
            .add_service(LocalIndexerServer::new(agent.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        let mut tasks = JoinSet::new();
        tasks.spawn(async { service.await.expect("a service that runs") });
        let server = Server::start(flags).await;
        let mut client = server.indexer().await;
        let request = pb::RegisterWorkerRequest {
            local_indexer_endpoint: format!("http://{address}"),
            ..registration("w")
        };
        client.register_worker(request).await.expect("a first worker");
        Self { server, client, agent, _service: tasks }
    }

    async fn open(&self, incarnation: u8, first: Option<u64>) -> Publisher {
        let hello = pb::PublishHello { first_sequence: first, ..hello("w", "s", incarnation) };
        self.server.publisher(hello).await
    }

    async fn find(&mut self, names: &[u64]) -> Vec<(u32, i32)> {
        let answer = self.client.find_matches(query(names)).await.expect("a valid query");
        answer.into_inner().matches.iter().map(|at| (at.matched_blocks, at.state)).collect()
    }

    /// Queries until the answer equals `expected`.
    async fn found(&mut self, names: &[u64], expected: &[(u32, i32)]) {
        let mut last = Vec::new();
        let asking = async {
            while last != expected {
                last = self.find(names).await;
            }
        };
        let done = tokio::time::timeout(PATIENCE, asking).await;
        assert!(done.is_ok(), "{last:?} is not {expected:?}");
    }

    async fn stop(self) {
        self.server.stop().await.expect("a clean stop");
    }
}

#[tokio::test]
async fn a_gap_is_fetched_and_nothing_is_sent_twice() {
    let mut stage = Stage::new(&[]).await;
    let mut publisher = stage.open(1, Some(0)).await;
    let batches = [
        stage.agent.publish(stored(None, &[1])),
        stage.agent.publish(stored(Some(1), &[2])),
        stage.agent.publish(stored(Some(2), &[3])),
    ];
    let [(zero, first), _, (two, third)] = batches;
    publisher.acked(zero, first).await;
    assert!(!publisher.acked(two, third).await.duplicate, "held back, then applied");
    assert_eq!(stage.find(&[1, 2, 3]).await, [(3, EXACT)]);
    assert_eq!(stage.agent.asked(), ["range"]);
    stage.stop().await;
}

#[tokio::test]
async fn what_was_announced_and_never_sent_is_fetched() {
    let mut stage = Stage::new(&[]).await;
    let mut publisher = stage.open(1, Some(0)).await;
    let (sequence, events) = stage.agent.publish(stored(None, &[1]));
    publisher.acked(sequence, events).await;
    stage.agent.publish(stored(Some(1), &[2]));
    let heartbeat = pb::PublishHeartbeat { head_sequence: Some(1), ..Default::default() };
    publisher.send(Message::Heartbeat(heartbeat)).await;
    stage.found(&[1, 2], &[(2, EXACT)]).await;
    stage.stop().await;
}

#[tokio::test]
async fn a_incarnation_that_the_server_knows_nothing_of_is_dumped() {
    let mut stage = Stage::new(&[]).await;
    stage.agent.publish(stored(None, &[1, 2, 3]));
    stage.agent.publish(removed(&[3]));
    let mut publisher = stage.open(1, None).await;
    stage.found(&[1, 2, 3], &[(2, EXACT)]).await;
    let (sequence, events) = stage.agent.publish(stored(Some(2), &[3]));
    assert_eq!(sequence, 2);
    publisher.acked(sequence, events).await;
    assert_eq!(stage.find(&[1, 2, 3]).await, [(3, EXACT)]);
    assert_eq!(stage.agent.asked(), ["dump"]);
    stage.stop().await;
}

#[tokio::test]
async fn what_the_journal_does_not_keep_is_healed_by_a_dump() {
    let mut stage = Stage::new(&[]).await;
    let mut publisher = stage.open(1, Some(0)).await;
    let (sequence, events) = stage.agent.publish(stored(None, &[1, 2, 3]));
    publisher.acked(sequence, events).await;
    // The removals and stores of the gap.
    stage.agent.publish(removed(&[2, 3]));
    stage.agent.publish(stored(None, &[7]));
    stage.agent.memory().oldest = 3;
    let (sequence, events) = stage.agent.publish(stored(Some(7), &[8]));
    assert!(publisher.acked(sequence, events).await.duplicate, "the dump brought it");
    assert_eq!(stage.find(&[1, 2, 3]).await, [(1, EXACT)]);
    assert_eq!(stage.find(&[7, 8]).await, [(2, EXACT)]);
    assert_eq!(stage.agent.asked(), ["range", "dump"]);
    stage.stop().await;
}

#[tokio::test]
async fn a_dump_that_breaks_off_drops_nothing_and_a_later_one_heals() {
    let mut stage = Stage::new(&[]).await;
    let mut publisher = stage.open(1, Some(0)).await;
    let (sequence, events) = stage.agent.publish(stored(None, &[1]));
    publisher.acked(sequence, events).await;
    stage.agent.publish(stored(None, &[7]));
    {
        let mut memory = stage.agent.memory();
        (memory.oldest, memory.breaks_off) = (2, true);
    }
    let (sequence, events) = stage.agent.publish(stored(None, &[8]));
    let batch = pb::PublishBatch {
        sequence,
        dp_rank: 0,
        events: events.into_iter().map(|at| pb::PublishedEvent { event: Some(at) }).collect(),
    };
    publisher.send(Message::Batch(batch)).await;
    stage.found(&[1], &[(1, DEGRADED)]).await;
    assert!(stage.agent.asked().len() > 5, "{:?}", stage.agent.asked());
    match publisher.answer().await.expect("an open stream") {
        Some(publish_events_response::Message::Ack(ack)) => assert_eq!(ack.sequence, 2),
        other => panic!("not acked: {other:?}"),
    }
    stage.agent.memory().breaks_off = false;
    stage.found(&[1], &[(1, EXACT)]).await;
    assert_eq!(stage.find(&[7]).await, [(1, EXACT)]);
    stage.stop().await;
}

/// A checkpoint taken now must not contain a cursor, because the index matches no batch of the source.
#[tokio::test]
async fn half_of_a_dump_has_no_cursor() {
    let mut stage = Stage::new(&[]).await;
    let mut publisher = stage.open(1, Some(0)).await;
    let (sequence, events) = stage.agent.publish(stored(None, &[1]));
    publisher.acked(sequence, events).await;
    stage.agent.publish(stored(None, &[7]));
    {
        let mut memory = stage.agent.memory();
        (memory.oldest, memory.hangs) = (2, true);
    }
    let head_sequence = Some(1);
    publisher
        .send(Message::Heartbeat(pb::PublishHeartbeat { head_sequence, ..Default::default() }))
        .await;
    stage.found(&[7], &[(1, pb::WorkerState::CatchingUp as i32)]).await;
    let answer = stage.client.find_matches(query(&[7])).await.expect("a valid query");
    let applied: Vec<_> = answer.into_inner().matches.iter().map(|at| at.applied.clone()).collect();
    assert_eq!(applied, [None]);
    stage.stop().await;
}

#[tokio::test]
async fn what_was_shed_comes_back_once_there_is_room() {
    const CHAIN: u64 = 5_000;
    let mut stage = Stage::new(&["--max-index-bytes=1MiB"]).await;
    let names: Vec<u64> = (1..=CHAIN).collect();
    let (sequence, events) = stage.agent.publish(stored(None, &names));
    let mut publisher = stage.open(1, Some(0)).await;
    publisher.acked(sequence, events).await;
    assert_eq!(stage.find(&names).await, [(5_000, EXACT)]);
    // Another worker needs the memory, and this worker's blocks are older.
    stage.client.register_worker(registration("x")).await.expect("a second worker");
    let mut other = stage.server.publisher(hello("x", "s", 1)).await;
    for chain in 1..=40 {
        let names: Vec<u64> = (chain * 100_000..chain * 100_000 + 1_000).collect();
        other.acked(chain, vec![stored(None, &names)]).await;
    }
    let partial = pb::WorkerState::Partial as i32;
    let shed = stage.find(&names).await;
    assert!(shed.iter().all(|(blocks, state)| *blocks < 5_000 && *state == partial), "{shed:?}");
    assert_eq!(stage.agent.asked(), Vec::<&str>::new(), "there is no room for it");
    let request = pb::RemoveWorkerRequest {
        worker_id: "x".to_owned(),
        model: "m".to_owned(),
        tenant: String::new(),
    };
    stage.client.remove_worker(request).await.expect("a known worker");
    stage.found(&names, &[(5_000, EXACT)]).await;
    assert_eq!(stage.agent.asked(), ["dump"]);
    stage.stop().await;
}

#[tokio::test]
async fn an_old_incarnation_is_refused_unless_the_agent_continues_it() {
    let mut stage = Stage::new(&[]).await;
    let mut old = stage.open(1, Some(0)).await;
    let (sequence, events) = stage.agent.publish(stored(None, &[1]));
    old.acked(sequence, events).await;
    *stage.agent.memory() = Memory { incarnation: 2, ..Memory::default() };
    let mut new = stage.open(2, Some(0)).await;
    assert_eq!(stage.find(&[1]).await, []);
    let late = Publisher::raw(stage.server.channel().await).await;
    let refused = "incarnation of source \"s\" has ended: begin a new one, or try again \
                   if it is the current one";
    let mut late = late;
    late.send(Message::Hello(hello("w", "s", 1))).await;
    assert_refused(late.answer().await, Code::Unavailable, refused);
    let (sequence, events) = stage.agent.publish(stored(None, &[5]));
    new.acked(sequence, events).await;
    stage.found(&[5], &[(1, EXACT)]).await;
    // The agent itself confirms the incarnation that was considered ended.
    *stage.agent.memory() = Memory { incarnation: 1, ..Memory::default() };
    stage.agent.publish(stored(None, &[9]));
    let mut again = Publisher::raw(stage.server.channel().await).await;
    again.send(Message::Hello(hello("w", "s", 1))).await;
    assert_refused(again.answer().await, Code::Unavailable, refused);
    stage.found(&[9], &[(1, pb::WorkerState::CatchingUp as i32)]).await;
    let _present = stage.open(1, Some(0)).await;
    stage.found(&[9], &[(1, EXACT)]).await;
    assert_eq!(stage.find(&[5]).await, []);
    stage.stop().await;
}

async fn workers(client: &mut IndexerClient<Channel>) -> usize {
    let list = client.list_workers(pb::ListWorkersRequest::default()).await.expect("a list");
    list.into_inner().workers.len()
}

#[tokio::test]
async fn a_worker_goes_with_its_lease_and_comes_back_clean() {
    let server = Server::start(&[]).await;
    let mut client = server.indexer().await;
    let request = || pb::RegisterWorkerRequest { lease_ms: 1_000, ..registration("w") };
    client.register_worker(request()).await.expect("a first worker");
    let mut publisher = server.publisher(hello("w", "s", 1)).await;
    publisher.acked(1, vec![stored(None, &[1])]).await;
    // The stream is open, but silent.
    within(async { while workers(&mut client).await > 0 {} }).await;
    match publisher.answer().await.expect("an open stream") {
        Some(publish_events_response::Message::Refusal(refusal)) => {
            assert_eq!(refusal.reason(), pb::RefusalReason::Fenced);
        }
        other => panic!("not fenced: {other:?}"),
    }
    let status = client.find_matches(query(&[1])).await.expect_err("its partition is gone");
    assert_eq!(status.code(), Code::NotFound);
    assert!(client.register_worker(request()).await.expect("again").into_inner().created);
    let publisher = server.publisher(hello("w", "s", 1)).await;
    assert_eq!(publisher.accepted, Some(pb::PublishAccepted { applied: None }));
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn signs_of_life_keep_a_lease() {
    let server = Server::start(&[]).await;
    let mut client = server.indexer().await;
    for worker in ["quiet", "heard", "renewed"] {
        let request = pb::RegisterWorkerRequest { lease_ms: 1_000, ..registration(worker) };
        client.register_worker(request).await.expect("a new worker");
    }
    let publisher = server.publisher(hello("heard", "s", 1)).await;
    within(async {
        while workers(&mut client).await > 2 {
            publisher.send(Message::Heartbeat(pb::PublishHeartbeat::default())).await;
            let request = pb::RegisterWorkerRequest { lease_ms: 1_000, ..registration("renewed") };
            assert!(
                !client.register_worker(request).await.expect("a renewal").into_inner().created
            );
        }
    })
    .await;
    server.stop().await.expect("a clean stop");
}
