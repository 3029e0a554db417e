//! Audits, with an agent whose answers the test chooses.

use crate::ingest::local::{LocalIndexers, Parts};
use crate::ingest::metrics::AuditLabels;
use crate::ingest::testing::ingest;
use crate::ingest::{Accepted, Arrival, BatchAnswer, Ingest, SourceSession};
use futures::StreamExt;
use kvasir_index::SourceId;
use kvasir_proto::convert::{
    DigestsPart, DigestsQuery, EventsPart, EventsQuery, Heartbeat, Hello, LocalDumpEnd,
    LocalDumpPart, LocalDumpQuery, PublishedBatch, RankBuckets, Registration,
};
use kvasir_proto::digest::{RankDigest, block_digest, digest_bucket};
use kvasir_proto::limits::WORKER_RANKS_MAX;
use kvasir_proto::pb;
use kvasir_proto::types::{
    BlockName, CopyMode, HeldBlock, Incarnation, KvEvent, LocalHash, SourceState, StoredBlock, Tier,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;

const INCARNATION: Incarnation = Incarnation(1);
/// Test timeout, far longer than each step takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// More parts than any answer here has.
const PARTS_MAX: usize = WORKER_RANKS_MAX + 2;
/// Longer than the time that an announced batch may take before it is requested.
const GRACE: Duration = Duration::from_secs(1);

/// A request to the agent, and the channel for its answer.
enum Call {
    Events,
    Dump(Option<RankBuckets>, mpsc::Sender<LocalDumpPart>),
    Digests(mpsc::Sender<DigestsPart>),
}

#[derive(Debug)]
struct Agent(mpsc::Sender<Call>);

impl Agent {
    fn call<P: Send + 'static>(&self, call: impl FnOnce(mpsc::Sender<P>) -> Call) -> Parts<P> {
        let (answers, parts) = mpsc::channel(PARTS_MAX);
        self.0.try_send(call(answers)).expect("the test goes on");
        ReceiverStream::new(parts).map(Ok).boxed()
    }
}

impl LocalIndexers for Agent {
    fn events(&self, _url: &str, _query: EventsQuery, _block_size: u32) -> Parts<EventsPart> {
        self.call(|_answers| Call::Events)
    }

    fn dump(&self, _url: &str, query: LocalDumpQuery) -> Parts<LocalDumpPart> {
        self.call(|answers| Call::Dump(query.buckets, answers))
    }

    fn digests(&self, _url: &str, _query: DigestsQuery) -> Parts<DigestsPart> {
        self.call(Call::Digests)
    }
}

/// A worker whose stream is open.
struct Scene {
    ingest: Arc<Ingest>,
    registration: Registration,
    session: SourceSession,
    calls: mpsc::Receiver<Call>,
}

fn stored(sequence: u64, names: &[u64]) -> PublishedBatch {
    let block = |name: &u64| StoredBlock { name: BlockName(*name), local: LocalHash(*name) };
    let blocks = names.iter().map(block).collect();
    let events = vec![KvEvent::Stored { parent: None, tier: Tier::Device, blocks }];
    PublishedBatch { sequence, rank: 0, events }
}

fn digest_of(name: u64) -> u64 {
    block_digest(BlockName(name), Some(LocalHash(name)))
}

fn digests(names: &[u64]) -> RankDigest {
    let mut digests = RankDigest::default();
    names.iter().for_each(|name| digests.add(Tier::Device, digest_of(*name)));
    digests
}

impl Scene {
    async fn new() -> Self {
        let (sender, calls) = mpsc::channel(PARTS_MAX);
        let ingest = Arc::new(ingest().asking(Arc::new(Agent(sender))));
        let registration: Registration = pb::RegisterWorkerRequest {
            worker_id: "w".to_owned(),
            model: "m".to_owned(),
            block_size: 16,
            local_indexer_endpoint: "http://agent:1".to_owned(),
            ..Default::default()
        }
        .try_into()
        .expect("a valid registration");
        ingest.register(registration.clone()).await.expect("a first worker");
        let hello = Hello {
            address: registration.address(),
            source: "s".to_owned(),
            block_size: 16,
            incarnation: INCARNATION,
            copy_mode: CopyMode::Set,
            first_sequence: Some(0),
            head_sequence: None,
            local_indexer: None,
        };
        let Accepted { session, .. } =
            ingest.open(&hello, Arrival::default()).await.expect("a stream");
        Self { ingest, registration, session, calls }
    }

    async fn apply(&self, batch: PublishedBatch) {
        let answer = self.session.apply(batch).await.wait().await.expect("it is taken");
        assert!(matches!(answer, BatchAnswer::Acked { duplicate: false, .. }), "{answer:?}");
    }

    async fn beat(&self, head: u64, digest: Option<u64>) {
        let heartbeat = Heartbeat { digest, ..Heartbeat::at(Some(head)) };
        self.session.heartbeat(heartbeat).await;
    }

    async fn asked(&mut self) -> Call {
        let call = timeout(PATIENCE, self.calls.recv()).await.expect("it is asked");
        call.expect("the index is there")
    }

    async fn digests_asked(&mut self) -> mpsc::Sender<DigestsPart> {
        match self.asked().await {
            Call::Digests(answers) => answers,
            Call::Events | Call::Dump(..) => panic!("of digests nothing is known"),
        }
    }

    async fn dump_asked(&mut self) -> (RankBuckets, mpsc::Sender<LocalDumpPart>) {
        match self.asked().await {
            Call::Dump(Some(buckets), answers) => (buckets, answers),
            Call::Events | Call::Digests(_) | Call::Dump(None, _) => panic!("some buckets differ"),
        }
    }

    /// Number of audits with this outcome, once all submitted work is done.
    async fn audits(&self, outcome: &'static str) -> u64 {
        self.session.expected().await;
        self.ingest.metrics.audits.get_or_create(&AuditLabels { outcome }).get()
    }

    /// The source in the index, and its state.
    fn shown(&self) -> (SourceId, SourceState) {
        let partition = self.ingest.partitions.list().remove(0);
        let index = partition.shard_of(&self.registration.worker).read();
        let worker = index.worker(&self.registration.worker).expect("it has published something");
        let (source, _, status) = worker.sources().next().expect("a source");
        (source, status.state)
    }

    fn state(&self) -> SourceState {
        self.shown().1
    }

    /// Checks that the agent received no further request.
    async fn end(mut self) {
        assert!(matches!(self.calls.try_recv(), Err(TryRecvError::Empty)));
        self.session.close().await;
        self.ingest.stop().await;
    }
}

fn send_digests(answers: &mpsc::Sender<DigestsPart>, names: &[u64], watermark: u64) {
    for (tier, digest) in digests(names).tiers() {
        let part = DigestsPart::Tier { rank: 0, tier, digest: digest.clone() };
        answers.try_send(part).expect("it is waited for");
    }
    answers.try_send(DigestsPart::End { watermark: Some(watermark) }).expect("it is waited for");
}

fn send_blocks(answers: &mpsc::Sender<LocalDumpPart>, names: &[u64], watermark: u64) {
    let held = |name: &u64| HeldBlock {
        name: BlockName(*name),
        parent: None,
        local: Some(LocalHash(*name)),
        copies: [1, 0, 0],
    };
    let records: Vec<_> = names.iter().map(held).collect();
    let count = records.len() as u64;
    let chunk = LocalDumpPart::Chunk { rank: 0, records };
    answers.try_send(chunk).expect("it is waited for");
    let end = LocalDumpEnd {
        incarnation: INCARNATION,
        watermark: Some(watermark),
        records: count,
        incomplete: false,
    };
    answers.try_send(LocalDumpPart::End(end)).expect("it is waited for");
}

/// A batch that is held back for an audit does not count as missing, even if heartbeats announce it.
#[tokio::test]
async fn a_heartbeat_during_an_audit_is_no_gap() {
    let mut scene = Scene::new().await;
    scene.apply(stored(0, &[1])).await;
    let theirs = [1, 9];
    scene.beat(0, Some(digests(&theirs).total(0))).await;
    let answers = scene.digests_asked().await;
    let mut held_back = scene.session.apply(stored(1, &[2])).await;
    scene.beat(1, None).await;
    let more = timeout(GRACE, scene.calls.recv()).await;
    assert!(more.is_err(), "nothing is asked for");
    send_digests(&answers, &theirs, 0);
    let (buckets, answers) = scene.dump_asked().await;
    assert_eq!(buckets, [(0, vec![digest_bucket(digest_of(9))])].into());
    assert_eq!(scene.state(), SourceState::Gap, "it differs until it is repaired");
    send_blocks(&answers, &[9], 0);
    let answer = held_back.wait().await.expect("it is taken");
    assert!(matches!(answer, BatchAnswer::Acked { duplicate: false, .. }), "{answer:?}");
    scene.beat(1, Some(digests(&[1, 2, 9]).total(0))).await;
    assert_eq!(scene.audits("same").await, 1);
    assert_eq!((scene.audits("repaired").await, scene.audits("abandoned").await), (1, 0));
    assert_eq!(scene.ingest.metrics.repaired_blocks.get(), 1);
    assert_eq!(scene.state(), SourceState::Exact);
    scene.end().await;
}

#[tokio::test]
async fn an_answer_of_too_many_ranks_is_not_read_on() {
    let mut scene = Scene::new().await;
    scene.apply(stored(0, &[1])).await;
    scene.beat(0, Some(7)).await;
    let answers = scene.digests_asked().await;
    let mut held_back = scene.session.apply(stored(1, &[2])).await;
    let of_nine = digests(&[9]);
    let (tier, digest) = of_nine.tiers().next().expect("it holds something");
    for rank in (0..).take(WORKER_RANKS_MAX + 1) {
        let part = DigestsPart::Tier { rank, tier, digest: digest.clone() };
        // The receiver may be closed before the last part.
        drop(answers.try_send(part));
    }
    drop(answers.try_send(DigestsPart::End { watermark: Some(0) }));
    held_back.wait().await.expect("it goes on without");
    assert_eq!((scene.audits("abandoned").await, scene.audits("dumped").await), (1, 0));
    assert_eq!(scene.state(), SourceState::Gap, "it differs still");
    scene.beat(1, Some(digests(&[1, 2]).total(0))).await;
    assert_eq!((scene.audits("same").await, scene.state()), (1, SourceState::Exact));
    scene.end().await;
}

/// If the index's digests do not match its blocks, the audit detects this and computes the digests again.
#[tokio::test]
async fn digests_that_are_not_of_what_is_held_are_read_again() {
    let mut scene = Scene::new().await;
    let truth = [1, 2];
    scene.apply(stored(0, &truth)).await;
    scene.beat(0, Some(digests(&truth).total(0))).await;
    assert_eq!(scene.audits("same").await, 1);
    let source = scene.shown().0;
    let partition = scene.ingest.partitions.list().remove(0);
    let wrong = [(0, digests(&[2, 3]))];
    let shard = partition.shard_of(&scene.registration.worker);
    let change = move |index: &mut kvasir_index::Index| {
        index.forget_digests(source);
        index.set_digests(source, &wrong)
    };
    let changed = scene.ingest.writer.change(shard, change).await.expect("it is there");
    assert_eq!(changed, Ok(true));

    scene.beat(0, Some(digests(&truth).total(0))).await;
    let answers = scene.digests_asked().await;
    send_digests(&answers, &truth, 0);
    let (buckets, answers) = scene.dump_asked().await;
    let mut differing = vec![digest_bucket(digest_of(1)), digest_bucket(digest_of(3))];
    differing.sort_unstable();
    assert_eq!(buckets, [(0, differing)].into());
    send_blocks(&answers, &[1], 0);
    scene.apply(stored(1, &[4])).await;
    scene.beat(1, Some(digests(&[1, 2, 4]).total(0))).await;
    assert_eq!((scene.audits("same").await, scene.audits("differs").await), (2, 1));
    assert_eq!(scene.ingest.metrics.repaired_blocks.get(), 0, "it had what it should");
    scene.end().await;
}

/// An agent whose bucket digests match and whose sum does not: the audit repairs no blocks, and repeats the check the
/// next time.
#[tokio::test]
async fn a_sum_that_is_not_of_its_buckets_costs_an_audit() {
    let mut scene = Scene::new().await;
    scene.apply(stored(0, &[1])).await;
    for round in 1..=2 {
        scene.beat(round - 1, Some(7)).await;
        let answers = scene.digests_asked().await;
        send_digests(&answers, &[1], round - 1);
        scene.apply(stored(round, &[])).await;
        assert_eq!((scene.audits("abandoned").await, scene.state()), (round, SourceState::Exact));
        scene.beat(round, Some(digests(&[1]).total(0))).await;
        assert_eq!(scene.audits("same").await, round);
    }
    scene.end().await;
}
