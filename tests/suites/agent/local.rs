//! `LocalIndexer` over the wire.

use crate::engine::{BLOCK_SIZE, Engine};
use crate::harness::{
    INCARNATION, MODEL, PATIENCE, SOURCE, WORKER, address, config, publish, start, url,
};
use kvasir_proto::convert::{
    EventsPart, EventsQuery, LocalDumpEnd, LocalDumpPart, LocalDumpQuery, LocalSource, LocalStatus,
};
use kvasir_proto::limits::GRPC_MESSAGE_BYTES_MAX;
use kvasir_proto::pb;
use kvasir_proto::pb::local_indexer_client::LocalIndexerClient;
use kvasir_proto::types::{
    BlockName, CopyMode, Incarnation, KvEvent, LocalHash, StoredBlock, Tier,
};
use kvbm_agent::agent::{Agent, AgentConfig};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tonic_reflection::pb::{v1, v1alpha};

type Client = LocalIndexerClient<Channel>;
/// Names with their copies in device memory.
type Copies = BTreeMap<u64, u32>;

async fn client(agent: &Agent) -> Client {
    let address = agent.local_address().expect("it serves");
    let endpoint = Endpoint::from_shared(url(address)).expect("a URL").tcp_nodelay(true);
    LocalIndexerClient::new(endpoint.connect().await.expect("an agent that listens"))
        .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
}

async fn serving(config: AgentConfig) -> (Agent, Client) {
    let agent = start(config).await;
    let client = client(&agent).await;
    (agent, client)
}

fn source() -> LocalSource {
    LocalSource { address: address(), name: SOURCE.to_owned() }
}

async fn events(
    client: &mut Client,
    incarnation: Incarnation,
    range: RangeInclusive<u64>,
) -> Vec<EventsPart> {
    let query = EventsQuery { source: source(), incarnation, range };
    let mut stream = client.get_events(pb::GetEventsRequest::from(query)).await;
    let stream = stream.as_mut().expect("a stream").get_mut();
    let mut parts = Vec::new();
    while let Some(part) = stream.message().await.expect("a message") {
        parts.push(EventsPart::read(part, BLOCK_SIZE).expect("a valid message"));
    }
    parts
}

/// The numbers of the batches of a range, and how it ended.
async fn numbers(client: &mut Client, range: RangeInclusive<u64>) -> (Vec<u64>, EventsPart) {
    let mut parts = events(client, INCARNATION, range).await;
    let last = parts.pop().expect("an end");
    let numbers = parts.iter().map(|part| match part {
        EventsPart::Batch(batch) => batch.sequence,
        other => panic!("{other:?} before the end"),
    });
    (numbers.collect(), last)
}

fn dump_query(chunk_records: usize) -> LocalDumpQuery {
    LocalDumpQuery {
        source: source(),
        incarnation: Some(INCARNATION),
        chunk_records,
        buckets: None,
    }
}

/// A whole dump of the device tier of rank 0, with its end.
async fn dump(client: &mut Client, chunk_records: usize) -> Result<(Copies, LocalDumpEnd), Status> {
    let query = pb::LocalDumpRequest::from(dump_query(chunk_records));
    let mut stream = client.dump(query).await?.into_inner();
    let mut copies = Copies::new();
    let mut received = 0;
    while let Some(part) = stream.message().await? {
        match LocalDumpPart::try_from(part).expect("a valid message") {
            LocalDumpPart::Chunk { rank, records } => {
                assert!(rank == 0 && (1..=chunk_records).contains(&records.len()));
                received += records.len() as u64;
                for record in records {
                    copies.insert(record.name.0, record.copies[Tier::Device.index()]);
                }
            }
            LocalDumpPart::End(end) => {
                assert_eq!(end.records, received);
                assert!(stream.message().await?.is_none(), "nothing follows the end");
                copies.retain(|_, copies| *copies > 0);
                return Ok((copies, end));
            }
            other => panic!("{other:?}"),
        }
    }
    Err(Status::data_loss("no end"))
}

/// More blocks than fit between an agent and a client that takes nothing.
const MANY_BLOCKS: u64 = 200_000;

fn publish_many(agent: &Agent) {
    const EVENT_BLOCKS: u64 = 50_000;
    let block = |name| StoredBlock { name: BlockName(name), local: LocalHash(name) };
    for from in (0..MANY_BLOCKS).step_by(EVENT_BLOCKS as usize) {
        let blocks = (from..from + EVENT_BLOCKS).map(block).collect();
        let stored = KvEvent::Stored { parent: None, tier: Tier::Device, blocks };
        agent.publish(0, vec![stored]).expect("a batch");
    }
}

/// Takes batches, as an index that counts does.
fn apply(copies: &mut Copies, parts: &[EventsPart]) {
    for part in parts {
        let EventsPart::Batch(batch) = part else { panic!("{part:?}") };
        for event in &batch.events {
            match event {
                KvEvent::Stored { blocks, .. } => {
                    for block in blocks {
                        *copies.entry(block.name.0).or_default() += 1;
                    }
                }
                KvEvent::Removed { names, .. } => {
                    for name in names {
                        *copies.get_mut(&name.0).expect("held") -= 1;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }
    copies.retain(|_, copies| *copies > 0);
}

#[tokio::test]
async fn ranges_are_what_was_published_and_every_other_answer_has_its_type() {
    let mut config = config(vec![]);
    config.source.first_sequence = 1_000;
    config.source.journal.batches_max = 300;
    let (agent, mut client) = serving(config).await;
    let end = |head| EventsPart::End { head };
    assert_eq!(numbers(&mut client, 0..=u64::MAX).await, (vec![], end(None)));
    assert_eq!(numbers(&mut client, 1_000..=1_005).await, (vec![], end(None)));
    let ahead = EventsPart::Ahead { head: None };
    assert_eq!(numbers(&mut client, 1_001..=1_005).await, (vec![], ahead));

    let mut engine = Engine::new(1);
    let batches: Vec<_> = (0..200).map(|_| engine.batch()).collect();
    for batch in &batches {
        agent.publish(3, batch.clone()).expect("a batch");
    }
    let mut parts = events(&mut client, INCARNATION, 0..=u64::MAX).await;
    assert_eq!(parts.pop(), Some(end(Some(1_199))));
    for (at, part) in parts.into_iter().enumerate() {
        let EventsPart::Batch(batch) = part else { panic!("{part:?}") };
        assert_eq!((batch.sequence, batch.rank), (1_000 + at as u64, 3));
        assert_eq!(batch.events, batches[at]);
    }
    let head = end(Some(1_199));
    assert_eq!(
        numbers(&mut client, 1_100..=1_102).await,
        (vec![1_100, 1_101, 1_102], head.clone())
    );
    assert_eq!(numbers(&mut client, 1_199..=1_199).await, (vec![1_199], head.clone()));
    assert_eq!(numbers(&mut client, 1_198..=u64::MAX).await, (vec![1_198, 1_199], head.clone()));
    assert_eq!(numbers(&mut client, 0..=999).await, (vec![], head.clone()));
    assert_eq!(numbers(&mut client, 1_200..=1_300).await, (vec![], head));
    let ahead = EventsPart::Ahead { head: Some(1_199) };
    assert_eq!(numbers(&mut client, 1_201..=1_300).await, (vec![], ahead));
    let wrong = EventsPart::WrongIncarnation { present: INCARNATION };
    assert_eq!(events(&mut client, Incarnation(1), 0..=5).await, [wrong]);

    publish(&agent, &mut engine, 200);
    let old = EventsPart::TooOld { oldest: 1_100, head: 1_399 };
    assert_eq!(numbers(&mut client, 1_099..=1_300).await, (vec![], old.clone()));
    assert_eq!(numbers(&mut client, 0..=u64::MAX).await, (vec![], old));
    let (all, _) = numbers(&mut client, 1_100..=u64::MAX).await;
    assert_eq!(all, (1_100..1_400).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_dump_is_what_the_engine_holds() {
    let (agent, mut client) = serving(config(vec![])).await;
    let (copies, end) = dump(&mut client, 10).await.expect("a dump");
    assert_eq!((copies.len(), end.watermark, end.records, end.incomplete), (0, None, 0, false));
    let mut engine = Engine::new(1);
    for chunk_records in [1, 7, 2_048] {
        let last = publish(&agent, &mut engine, 100);
        let (copies, end) = dump(&mut client, chunk_records).await.expect("a dump");
        assert_eq!((copies, end.watermark), (engine.truth(), Some(last)));
        assert_eq!(end.incarnation, INCARNATION);
    }
    let query = LocalDumpQuery { incarnation: Some(Incarnation(1)), ..dump_query(1) };
    let mut stream = client.dump(pb::LocalDumpRequest::from(query)).await.expect("a stream");
    let answer = stream.get_mut().message().await.expect("a message").expect("a message");
    let wrong = LocalDumpPart::WrongIncarnation { present: INCARNATION };
    assert_eq!(LocalDumpPart::try_from(answer), Ok(wrong));
    assert!(stream.get_mut().message().await.expect("an end").is_none());
}

/// While the engine goes on as fast as it can, several replicas dump again and again: each dump, with
/// the batches after it, leads to what the engine holds in the end.
#[tokio::test]
async fn dumps_under_load_and_the_batches_after_them_are_the_truth() {
    const BATCHES: u64 = 2_000;
    const REPLICAS: usize = 3;
    let (agent, first) = serving(config(vec![])).await;
    let mut engine = Engine::new(1);
    publish(&agent, &mut engine, 100);
    let replica = async |mut client: Client| {
        let mut dumps = Vec::new();
        while agent.status().head < Some(BATCHES) {
            dumps.push(dump(&mut client, 5).await.expect("a dump"));
        }
        dumps
    };
    let load = async {
        while publish(&agent, &mut engine, 1) < BATCHES {
            tokio::task::yield_now().await;
        }
    };
    let second = client(&agent).await;
    let third = client(&agent).await;
    let replicas = [replica(first), replica(second), replica(third)];
    let all = async { tokio::join!(load, futures::future::join_all(replicas)).1 };
    let all = timeout(PATIENCE, all).await.expect("dumps end under load");
    let mut client = client(&agent).await;
    let mut batches = events(&mut client, INCARNATION, 0..=u64::MAX).await;
    assert_eq!(batches.pop(), Some(EventsPart::End { head: Some(BATCHES) }));
    let mut watermarks = Vec::new();
    for (mut copies, end) in all.into_iter().flatten() {
        let watermark = end.watermark.expect("after the first batch");
        apply(&mut copies, &batches[watermark as usize + 1..]);
        assert_eq!(copies, engine.truth(), "dump at {watermark}");
        watermarks.push(watermark);
    }
    let between = watermarks.iter().filter(|at| (101..BATCHES).contains(*at)).count();
    assert!(between >= REPLICAS, "no dump was cut under load: {watermarks:?}");
}

#[tokio::test]
async fn a_dump_that_is_cut_off_has_failed_and_is_not_empty() {
    let (agent, mut client) = serving(config(vec![])).await;
    for change in ["clear", "new life"] {
        publish_many(&agent);
        let query = pb::LocalDumpRequest::from(dump_query(256));
        let mut stream = client.dump(query).await.expect("a stream").into_inner();
        stream.message().await.expect("a message").expect("a first chunk");
        match change {
            "clear" => drop(agent.publish(0, vec![KvEvent::Cleared]).expect("a batch")),
            _ => agent.begin_incarnation(Incarnation(8), 0),
        }
        let failed = loop {
            match stream.message().await {
                Ok(Some(part)) => {
                    let part = LocalDumpPart::try_from(part).expect("a valid message");
                    assert!(matches!(part, LocalDumpPart::Chunk { .. }), "{part:?}");
                }
                Ok(None) => panic!("no error"),
                Err(status) => break status,
            }
        };
        assert_eq!(failed.code(), Code::Aborted, "{failed:?}");
        assert!(failed.message().contains("dump again"), "{failed:?}");
    }
}

#[tokio::test]
async fn who_asks_for_another_worker_or_source_learns_which_there_are() {
    let (_agent, mut client) = serving(config(vec![])).await;
    let mut check = async |change: fn(&mut pb::GetEventsRequest), code: Code, text: &str| {
        let query = EventsQuery { source: source(), incarnation: INCARNATION, range: 0..=1 };
        let mut request = pb::GetEventsRequest::from(query);
        change(&mut request);
        let status = client.get_events(request).await.expect_err(text);
        assert_eq!((status.code(), status.message()), (code, text));
    };
    let served = "is not served here, w (model m) is";
    let not = |which: &str| format!("worker {which} {served}");
    check(|request| request.worker_id = "x".to_owned(), Code::NotFound, &not("x (model m)")).await;
    check(|request| request.model = "x".to_owned(), Code::NotFound, &not("w (model x)")).await;
    check(|request| request.tenant = "x".to_owned(), Code::NotFound, &not("w (model m, tenant x)"))
        .await;
    let text = "source \"x\" is not one of [\"agent\"]";
    check(|request| request.source = "x".to_owned(), Code::NotFound, text).await;
    let text = "source is required";
    check(|request| request.source.clear(), Code::InvalidArgument, text).await;
    let text = "to_sequence is 0, must be 5 to 18446744073709551615";
    let backwards = |request: &mut pb::GetEventsRequest| {
        (request.from_sequence, request.to_sequence) = (5, Some(0));
    };
    check(backwards, Code::InvalidArgument, text).await;
}

#[tokio::test]
async fn a_status_says_where_each_source_stands() {
    let mut config = config(vec![]);
    config.source.journal.batches_max = 30;
    let (agent, mut client) = serving(config).await;
    let mut engine = Engine::new(1);
    publish(&agent, &mut engine, 50);
    let worker_id = WORKER.to_owned();
    let request =
        pb::GetLocalStatusRequest { model: MODEL.to_owned(), worker_id, tenant: String::new() };
    let status = client.get_status(request).await.expect("a status").into_inner();
    let status = LocalStatus::try_from(status).expect("a valid status");
    assert_eq!((status.block_size, status.sources.len()), (BLOCK_SIZE, 1));
    let source = &status.sources[0];
    assert_eq!((source.name.as_str(), source.incarnation, source.first), (SOURCE, INCARNATION, 0));
    assert_eq!((source.oldest, source.head, source.journal_batches), (Some(20), Some(49), 30));
    assert_eq!(source.held_blocks, engine.truth().len() as u64);
    assert_eq!((source.copy_mode, source.incomplete), (CopyMode::Counted, false));
    assert!(source.journal_bytes > 0 && source.inventory_bytes > 0);
}

/// A client that takes nothing of a large source is cut off, its stream has no end, and the next dump
/// gets its turn.
#[tokio::test]
async fn a_client_that_takes_nothing_is_cut_off() {
    let mut config = config(vec![]);
    config.service.stall_timeout = Duration::from_millis(100);
    let (agent, mut stalled) = serving(config).await;
    publish_many(&agent);
    let query = pb::LocalDumpRequest::from(dump_query(2_048));
    let mut stream = stalled.dump(query).await.expect("a stream").into_inner();
    // Waits for its turn, which comes once the other was cut off.
    let mut other = client(&agent).await;
    let (copies, _) = dump(&mut other, 8_192).await.expect("a dump");
    assert_eq!(copies.len() as u64, MANY_BLOCKS);
    let mut ended = false;
    while let Some(part) = stream.message().await.expect("what was under way") {
        ended |= matches!(LocalDumpPart::try_from(part), Ok(LocalDumpPart::End(_)));
    }
    assert!(!ended, "a dump that was cut off looks whole");
}

#[tokio::test]
async fn streams_and_waiting_dumps_are_bounded() {
    let mut config = config(vec![]);
    config.service.streams_max = 2;
    let (agent, mut client) = serving(config).await;
    publish_many(&agent);
    let query = || pb::LocalDumpRequest::from(dump_query(256));
    let first = client.dump(query()).await.expect("a stream");
    let second = client.dump(query()).await.expect("a stream, which waits");
    let refused = client.dump(query()).await.expect_err("one too many");
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(refused.message(), "2 streams are under way already: ask later");
    drop((first, second));
    // Places come back once the agent has noticed.
    let again = async {
        while let Err(status) = dump(&mut client, 2_048).await {
            assert_eq!(status.code(), Code::ResourceExhausted);
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, again).await.expect("room for another");
}

/// Tools that ask by hand speak one of them, older ones the second only.
#[tokio::test]
async fn both_versions_of_reflection_tell_what_is_served() {
    let agent = start(config(vec![])).await;
    let address = url(agent.local_address().expect("it serves"));
    let channel = Endpoint::from_shared(address).expect("a URL").connect_lazy();
    let symbol = "kvasir.v1.WorkerLoads.WatchLoads";
    let ask = v1::server_reflection_request::MessageRequest::FileContainingSymbol(symbol.into());
    let ask = v1::ServerReflectionRequest { host: String::new(), message_request: Some(ask) };
    let mut client = v1::server_reflection_client::ServerReflectionClient::new(channel.clone());
    let answers = client.server_reflection_info(tokio_stream::once(ask)).await;
    let answer = answers.expect("a stream").into_inner().message().await.expect("an answer");
    assert!(format!("{answer:?}").contains("FileDescriptorResponse"), "{answer:?}");

    let ask =
        v1alpha::server_reflection_request::MessageRequest::FileContainingSymbol(symbol.into());
    let ask = v1alpha::ServerReflectionRequest { host: String::new(), message_request: Some(ask) };
    let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(channel);
    let answers = client.server_reflection_info(tokio_stream::once(ask)).await;
    let answer = answers.expect("a stream").into_inner().message().await.expect("an answer");
    assert!(format!("{answer:?}").contains("FileDescriptorResponse"), "{answer:?}");
    assert!(agent.stop(PATIENCE).await);
}
