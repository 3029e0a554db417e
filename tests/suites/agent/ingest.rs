//! `EventIngest` of an agent, over the wire.

use crate::engine::{BLOCK_SIZE, Engine};
use crate::harness::{
    self, INCARNATION, MODEL, PATIENCE, WORKER, config, delivered, indexed, publish, start, url,
};
use kvasir_proto::convert::incarnation;
use kvasir_proto::pb;
use kvasir_proto::pb::RefusalReason::{Fenced, Gap, Invalid};
use kvasir_proto::pb::event_ingest_client::EventIngestClient;
use kvasir_proto::pb::publish_events_request::Message as Request;
use kvasir_proto::pb::publish_events_response::Message as Answer;
use kvasir_proto::types::{CopyMode, Incarnation};
use kvbm_agent::agent::{Agent, AgentError};
use kvbm_agent::ingest::{IngestConfig, StreamRefusal};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

/// An agent that takes publishers, and no indexer.
async fn agent(ingest: IngestConfig) -> Agent {
    let mut config = config(vec![]);
    config.source.journal.copy_mode = CopyMode::Set;
    config.sources.ingest = Some(ingest);
    start(config).await
}

fn hello() -> pb::PublishHello {
    pb::PublishHello {
        model: MODEL.to_owned(),
        worker_id: WORKER.to_owned(),
        source: "engine".to_owned(),
        block_size: BLOCK_SIZE,
        incarnation: incarnation(INCARNATION),
        ..Default::default()
    }
}

/// A batch that stores one block.
fn batch(sequence: u64, name: u64) -> pb::PublishBatch {
    let stored = pb::BlocksStored {
        names: vec![name],
        token_ids_le: vec![1; 4 * BLOCK_SIZE as usize].into(),
        ..Default::default()
    };
    let event = pb::PublishedEvent { event: Some(pb::published_event::Event::Stored(stored)) };
    pb::PublishBatch { sequence, events: vec![event], ..Default::default() }
}

struct Client {
    requests: mpsc::Sender<pb::PublishEventsRequest>,
    answers: Streaming<pb::PublishEventsResponse>,
}

impl Client {
    async fn open(agent: &Agent, hello: pb::PublishHello) -> Result<Self, Status> {
        let address = url(agent.local_address().expect("a port"));
        let mut ingest = EventIngestClient::connect(address).await.expect("it listens");
        let (requests, stream) = mpsc::channel(16);
        let client = ingest.publish_events(ReceiverStream::new(stream)).await?;
        let mut client = Self { requests, answers: client.into_inner() };
        client.send(Request::Hello(hello)).await;
        match client.answer().await? {
            Answer::Accepted(_) => Ok(client),
            other => panic!("{other:?}"),
        }
    }

    async fn send(&self, message: Request) {
        let request = pb::PublishEventsRequest { message: Some(message) };
        self.requests.send(request).await.expect("the stream is open");
    }

    async fn answer(&mut self) -> Result<Answer, Status> {
        let answer = timeout(PATIENCE, self.answers.message()).await.expect("an answer")?;
        Ok(answer.expect("the stream goes on").message.expect("a message"))
    }

    async fn publish(&mut self, batch: pb::PublishBatch) -> Answer {
        self.send(Request::Batch(batch)).await;
        self.answer().await.expect("an answer")
    }

    async fn acked(&mut self, batch: pb::PublishBatch) -> bool {
        match self.publish(batch).await {
            Answer::Ack(ack) => {
                assert_eq!(ack.applied, u64::from(!ack.duplicate));
                ack.duplicate
            }
            other => panic!("{other:?}"),
        }
    }

    async fn refused(&mut self, batch: pb::PublishBatch) -> (pb::RefusalReason, u64, String) {
        match self.publish(batch).await {
            Answer::Refusal(refusal) => {
                (refusal.reason(), refusal.expected_sequence, refusal.message)
            }
            other => panic!("{other:?}"),
        }
    }
}

async fn refusal(agent: &Agent, hello: pb::PublishHello) -> (Code, String) {
    let status = Client::open(agent, hello).await.map(drop).expect_err("it is refused");
    (status.code(), status.message().to_owned())
}

#[tokio::test]
async fn batches_are_taken_in_order_and_once() {
    let agent = agent(IngestConfig::DEFAULT).await;
    let first = pb::PublishHello { first_sequence: Some(3), ..hello() };
    let mut client = Client::open(&agent, first.clone()).await.expect("accepted");
    let (reason, expected, _) = client.refused(batch(5, 5)).await;
    assert_eq!((reason, expected), (Gap, 3));
    assert!(!client.acked(batch(3, 3)).await && !client.acked(batch(4, 4)).await);
    // Acknowledged is journalled.
    assert_eq!((agent.status().head, agent.status().held_blocks), (Some(1), 2));
    assert!(client.acked(batch(3, 30)).await, "it is there already");
    let mut short = batch(5, 5);
    if let Some(pb::published_event::Event::Stored(stored)) = &mut short.events[0].event {
        stored.names.push(6);
    }
    let (reason, expected, text) = client.refused(short).await;
    assert_eq!((reason, expected), (Invalid, 5));
    assert_eq!(text, "events[0].stored.token_ids_le has 4 tokens, must be 8, to match the names");
    let heartbeat = pb::PublishHeartbeat { head_sequence: Some(9), ..Default::default() };
    client.send(Request::Heartbeat(heartbeat)).await;
    assert!(!client.acked(batch(5, 5)).await);
    let report = agent.hub().reports().remove(0);
    assert_eq!((report.status.lag_batches(), report.counts.incarnations), (4, 1));

    // A second stream takes over and goes on where the first one stood.
    let mut second = Client::open(&agent, first).await.expect("accepted");
    match client.answer().await.expect("an answer") {
        Answer::Refusal(refusal) => assert_eq!(refusal.reason(), Fenced),
        other => panic!("{other:?}"),
    }
    assert!(!second.acked(batch(6, 6)).await);
    assert_eq!(agent.status().held_blocks, 4);

    // A new life holds nothing of the old one; the old one is over.
    let life = |life| pb::PublishHello { incarnation: incarnation(Incarnation(life)), ..hello() };
    let mut third = Client::open(&agent, life(100)).await.expect("accepted");
    assert_eq!(agent.status().held_blocks, 0);
    assert!(!third.acked(batch(70, 7)).await);
    let (code, text) = refusal(&agent, hello()).await;
    assert_eq!(code, Code::Unavailable, "{text}");
    let refusals = agent.refusals().expect("who may publish");
    let counted = refusals.streams(StreamRefusal::PastIncarnation);
    assert_eq!((counted, refusals.batches()), (1, 1));
    assert_eq!((agent.status().held_blocks, agent.status().incarnation), (1, INCARNATION));
    assert!(agent.stop(PATIENCE).await);
}

#[tokio::test]
async fn who_does_not_belong_here_is_told_why() {
    let agent = agent(IngestConfig::DEFAULT).await;
    let other = pb::PublishHello { worker_id: "x".to_owned(), ..hello() };
    let size = pb::PublishHello { block_size: 16, ..hello() };
    let counted = pb::PublishHello { copy_mode: pb::CopyMode::Counted.into(), ..hello() };
    for (hello, code, part) in [
        (
            other,
            Code::FailedPrecondition,
            "worker x (model m) is not served here, w (model m) is: give",
        ),
        (size, Code::FailedPrecondition, "block_size is 16, that of"),
        (
            counted,
            Code::FailedPrecondition,
            "publishes with copy_mode counted, and this agent takes set: publish with set, or",
        ),
        (pb::PublishHello::default(), Code::InvalidArgument, "hello.source is required"),
    ] {
        let (refused, text) = refusal(&agent, hello).await;
        assert_eq!(refused, code, "{text}");
        assert!(text.contains(part), "{text}");
    }
    let counted = |agent: &Agent, why| agent.refusals().expect("who may publish").streams(why);
    for why in [
        StreamRefusal::OtherWorker,
        StreamRefusal::BlockSize,
        StreamRefusal::CopyMode,
        StreamRefusal::Malformed,
    ] {
        assert_eq!(counted(&agent, why), 1, "{why:?}");
    }
    let mut client = Client::open(&agent, hello()).await.expect("accepted");
    let second = pb::PublishHello { source: "second".to_owned(), ..hello() };
    let (code, text) = refusal(&agent, second).await;
    assert_eq!(code, Code::ResourceExhausted);
    assert!(
        text.starts_with("source \"second\" is one more than the 1 that this agent takes: end"),
        "{text}"
    );
    assert_eq!(counted(&agent, StreamRefusal::TooManySources), 1);
    assert!(!client.acked(batch(0, 1)).await);
    assert!(agent.stop(PATIENCE).await);

    let one = self::agent(IngestConfig { streams_max: 1, ..IngestConfig::DEFAULT }).await;
    let _first = Client::open(&one, hello()).await.expect("accepted");
    let (code, text) = refusal(&one, hello()).await;
    assert_eq!(
        (code, &*text),
        (Code::ResourceExhausted, "1 streams are open already: try again later")
    );
    assert_eq!(counted(&one, StreamRefusal::TooManyStreams), 1);
    assert!(one.stop(PATIENCE).await);

    let mut portless = config(vec![]);
    portless.sources.ingest = Some(IngestConfig::DEFAULT);
    portless.listen = None;
    let error = Agent::start(portless).await.expect_err("nobody could publish");
    assert!(matches!(error, AgentError::NoPort), "{error:?}");
}

#[tokio::test]
async fn who_does_not_come_back_holds_nothing_and_leaves_its_place() {
    let source_timeout = Duration::from_millis(50);
    let agent = agent(IngestConfig { source_timeout, ..IngestConfig::DEFAULT }).await;
    let mut client = Client::open(&agent, hello()).await.expect("accepted");
    assert!(!client.acked(batch(0, 1)).await);
    let mut source = agent.hub().watch("engine").expect("a source");
    drop(client);
    let gone = async { while source.changed().await.is_ok() {} };
    timeout(PATIENCE, gone).await.expect("its place is free");
    assert_eq!((agent.status().held_blocks, agent.hub().reports().len()), (0, 0));
    let other = pb::PublishHello { source: "other".to_owned(), ..hello() };
    Client::open(&agent, other).await.expect("its place is free");
    assert!(agent.stop(PATIENCE).await);
}

/// An engine in another process pushes to the agent as agents push to the index.
#[tokio::test]
async fn what_is_pushed_to_an_agent_reaches_the_index() {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut server = harness::server(any, any).await;
    let mut relaying = config(vec![url(server.addresses.grpc)]);
    relaying.sources.ingest = Some(IngestConfig::DEFAULT);
    let agent = start(relaying).await;
    let mut engine = Engine::new(11);
    let pushing = start(config(vec![url(agent.local_address().expect("a port"))])).await;
    for life in 0..3 {
        let last = publish(&pushing, &mut engine, 200);
        delivered(&pushing, last).await;
        delivered(&agent, agent.status().head.expect("something was published")).await;
        assert_eq!(indexed(&server).await, engine.truth(), "life {life}");
        pushing.begin_incarnation(Incarnation(100 + life), 0);
        engine = Engine::new(life as u64);
    }
    assert!(pushing.stop(PATIENCE).await && agent.stop(PATIENCE).await);
    server.stop().await;
}
