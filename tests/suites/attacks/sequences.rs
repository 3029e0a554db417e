//! Publishers that may publish for a worker, and harm it: numbers that no batch has, and incarnation after incarnation.

use crate::harness::{PATIENCE, Siege};
use crate::silent_agents::{GoodAgent, batch};
use anyhow::{Context, Result, bail, ensure};
use kvasir_proto::limits::{
    SEQUENCE_MAX, SEQUENCES_AHEAD_MAX, SOURCE_PAST_INCARNATIONS_MAX, UNSTATED_FIRST_SEQUENCE_MAX,
};
use kvasir_proto::pb;
use kvasir_proto::pb::event_ingest_client::EventIngestClient;
use kvasir_proto::pb::publish_events_request::Message;
use kvasir_proto::pb::publish_events_response::Message as Answer;
use kvasir_sim::client;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

const MODEL: &str = "m";
const WORKER: &str = "w";
const BLOCK_SIZE: u32 = 4;
/// Lives that are pushed.
const LIVES: u64 = 100;

async fn register(server: SocketAddr, agent: Option<SocketAddr>) -> Result<()> {
    let request = pb::RegisterWorkerRequest {
        worker_id: WORKER.to_owned(),
        model: MODEL.to_owned(),
        block_size: BLOCK_SIZE,
        local_indexer_endpoint: agent.map_or_else(String::new, |at| format!("http://{at}")),
        ..Default::default()
    };
    client::connect(server).await?.register_worker(request).await?;
    Ok(())
}

/// The hello of a life, which states nothing of its batches.
fn hello(life: u64) -> pb::PublishHello {
    pb::PublishHello {
        model: MODEL.to_owned(),
        worker_id: WORKER.to_owned(),
        source: "s".to_owned(),
        block_size: BLOCK_SIZE,
        incarnation: u128::from(life + 1).to_be_bytes().to_vec().into(),
        ..Default::default()
    }
}

/// A stream of the worker's source.
struct Stream {
    requests: mpsc::Sender<pb::PublishEventsRequest>,
    answers: Streaming<pb::PublishEventsResponse>,
    /// Last batch of the life that the index has.
    applied: Option<u64>,
}

impl Stream {
    /// Opens a stream, or says why it is refused.
    async fn open(server: SocketAddr, hello: pb::PublishHello) -> Result<Result<Self, Status>> {
        let (requests, queue) = mpsc::channel(4);
        let message = Some(Message::Hello(hello));
        requests.send(pb::PublishEventsRequest { message }).await?;
        let mut ingest = EventIngestClient::connect(format!("http://{server}")).await?;
        let opened = async {
            let mut answers = ingest.publish_events(ReceiverStream::new(queue)).await?.into_inner();
            let answer = answers.message().await?.and_then(|answer| answer.message);
            Ok::<_, Status>((answers, answer))
        };
        match timeout(PATIENCE, opened).await? {
            Ok((answers, Some(Answer::Accepted(accepted)))) => {
                let applied = accepted.applied.map(|cursor| cursor.sequence);
                Ok(Ok(Self { requests, answers, applied }))
            }
            Ok((_, answer)) => bail!("{answer:?} to the hello"),
            Err(status) => Ok(Err(status)),
        }
    }

    /// Opens one that is not refused.
    async fn accepted(server: SocketAddr, hello: pb::PublishHello) -> Result<Self> {
        Ok(Self::open(server, hello).await??)
    }

    /// Sends a batch, and returns its answer.
    async fn send(&mut self, batch: pb::PublishBatch) -> Result<Answer> {
        let message = Some(Message::Batch(batch));
        self.requests.send(pb::PublishEventsRequest { message }).await?;
        let answer = timeout(PATIENCE, self.answers.message()).await??;
        answer.and_then(|answer| answer.message).context("no answer")
    }

    /// Sends a batch of one block, which must be news.
    async fn news(&mut self, sequence: u64) -> Result<()> {
        match self.send(batch(sequence)).await? {
            Answer::Ack(ack) if ack.sequence == sequence && !ack.duplicate && ack.applied == 1 => {
                Ok(())
            }
            answer => bail!("batch {sequence}: {answer:?}"),
        }
    }

    /// Sends a batch that must be refused.
    async fn refused(&mut self, sequence: u64) -> Result<pb::PublishRefusal> {
        let empty = pb::PublishBatch { sequence, ..Default::default() };
        match self.send(empty).await? {
            Answer::Refusal(refusal) if refusal.sequence == sequence => Ok(refusal),
            answer => bail!("batch {sequence}: {answer:?}"),
        }
    }
}

/// The leading blocks that the worker holds.
async fn found(server: SocketAddr) -> Result<u32> {
    let query = pb::FindMatchesRequest {
        model: MODEL.to_owned(),
        local_hashes: (1..=64).collect(),
        ..Default::default()
    };
    let answer = client::connect(server).await?.find_matches(query).await?.into_inner();
    Ok(answer.best_overlap_blocks)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_number_that_no_batch_has_makes_no_other_batch_a_duplicate() -> Result<()> {
    let siege = Siege::begin(&[]).await?;
    let server = siege.grpc();
    register(server, None).await?;
    for (field, hello) in [
        ("first_sequence", pb::PublishHello { first_sequence: Some(u64::MAX), ..hello(0) }),
        ("head_sequence", pb::PublishHello { head_sequence: Some(u64::MAX), ..hello(0) }),
    ] {
        let Err(status) = Stream::open(server, hello).await? else { bail!("{field} is taken") };
        let names_both = [field, &SEQUENCE_MAX.to_string()].map(|at| status.message().contains(at));
        ensure!(status.code() == Code::InvalidArgument && names_both == [true; 2], "{status}");
    }
    let mut attacker = Stream::accepted(server, hello(0)).await?;
    let mut expected = 0;
    for round in 0..4 {
        for absurd in [u64::MAX, SEQUENCE_MAX + 1] {
            let refusal = attacker.refused(absurd).await?;
            ensure!(refusal.reason() == pb::RefusalReason::Invalid, "{refusal:?}");
            ensure!(refusal.message.contains("sequence"), "{refusal:?}");
        }
        let first = if round == 0 { UNSTATED_FIRST_SEQUENCE_MAX + 1 } else { 0 };
        for absurd in [first.max(expected + SEQUENCES_AHEAD_MAX), 1 << 62, SEQUENCE_MAX] {
            let refusal = attacker.refused(absurd).await?;
            ensure!(refusal.reason() == pb::RefusalReason::Gap, "{refusal:?}");
            ensure!(refusal.expected_sequence == expected, "{refusal:?}");
            let parts = ["sequence", &SEQUENCES_AHEAD_MAX.to_string()];
            ensure!(parts.map(|at| refusal.message.contains(at)) == [true; 2], "{refusal:?}");
        }
        for _ in 0..2 {
            attacker.news(expected).await?;
            expected += 1;
        }
    }
    // The publisher itself continues where the index is.
    let mut publisher = Stream::accepted(server, hello(0)).await?;
    ensure!(publisher.applied == Some(expected - 1), "{:?}", publisher.applied);
    publisher.news(expected).await?;
    let blocks = found(server).await?;
    ensure!(u64::from(blocks) == expected + 1, "{blocks} of {}", expected + 1);
    siege.end().await
}

/// Whoever did not state with which number a life begins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_below_the_first_that_came_is_refused_and_not_lost() -> Result<()> {
    let siege = Siege::begin(&[]).await?;
    let server = siege.grpc();
    register(server, None).await?;
    let mut attacker = Stream::accepted(server, hello(0)).await?;
    attacker.send(pb::PublishBatch { sequence: 1 << 40, ..Default::default() }).await?;
    let refusal = attacker.refused(0).await?;
    ensure!(refusal.reason() == pb::RefusalReason::Gap, "{refusal:?}");
    ensure!(refusal.message.contains("first_sequence"), "{refusal:?}");
    // So the publisher knows, and begins anew.
    let mut publisher =
        Stream::accepted(server, pb::PublishHello { first_sequence: Some(0), ..hello(1) }).await?;
    for sequence in 0..5 {
        publisher.news(sequence).await?;
    }
    ensure!(found(server).await? == 5);
    siege.end().await
}

/// Its agent knows which batches there are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_the_agent_does_not_have_is_refused() -> Result<()> {
    let siege = Siege::begin(&[]).await?;
    let server = siege.grpc();
    let (agent, _service) = GoodAgent::start().await?;
    register(server, Some(agent.address)).await?;
    let hello = || pb::PublishHello { first_sequence: Some(0), ..hello(0) };
    for begin in (0..20).step_by(5) {
        let mut publisher = Stream::accepted(server, hello()).await?;
        for sequence in begin..begin + 5 {
            publisher.news(sequence).await?;
        }
        // Only now: a question that is still under way would bring them first.
        agent.newest.store(begin + 4, Ordering::Release);
        let mut attacker = Stream::accepted(server, hello()).await?;
        for absurd in [begin + 1_000, begin + SEQUENCES_AHEAD_MAX, begin + (1 << 62)] {
            let refusal = attacker.refused(absurd).await?;
            ensure!(refusal.expected_sequence == begin + 5, "{refusal:?}");
        }
    }
    ensure!(found(server).await? == 20);
    siege.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_life_that_ended_stays_so_after_a_hundred_others() -> Result<()> {
    let siege = Siege::begin(&[]).await?;
    let server = siege.grpc();
    register(server, None).await?;
    let mut superseded = Stream::accepted(server, hello(0)).await?;
    superseded.news(0).await?;
    let mut last = None;
    for life in 1..=LIVES {
        match Stream::open(server, hello(life)).await? {
            Ok(stream) => last = Some((life, stream)),
            Err(status) => {
                ensure!(life > SOURCE_PAST_INCARNATIONS_MAX as u64, "life {life}: {status}");
                let is_named = status.message().contains("incarnations");
                ensure!(status.code() == Code::ResourceExhausted && is_named, "{status}");
            }
        }
        let Err(status) = Stream::open(server, hello(0)).await? else {
            bail!("the first life is accepted again after {life}")
        };
        let has_ended = status.message().contains("has ended");
        ensure!(status.code() == Code::Unavailable && has_ended, "{status}");
    }
    let (life, mut present) = last.context("no life is accepted")?;
    ensure!(life == SOURCE_PAST_INCARNATIONS_MAX as u64, "{life} is the last one");
    for sequence in 0..5 {
        present.news(sequence).await?;
    }
    ensure!(found(server).await? == 5);
    siege.end().await
}
