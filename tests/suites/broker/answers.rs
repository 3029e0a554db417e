//! `LocalIndexer` by request and reply.

use crate::agents::{
    Broker, INCARNATION, MODEL, PATIENCE, SOURCE, WORKER, address, config, delivered, heard,
    publish, start_connected, status,
};
use crate::engine::Engine;
use async_nats::{Client, Message, StatusCode, Subject, Subscriber};
use kvasir_proto::broker::{LocalCall, answer, local_subject};
use kvasir_proto::convert::{EventsQuery, LocalDumpPart, LocalDumpQuery, LocalSource};
use kvasir_proto::limits::ANSWER_PARTS_AHEAD_MAX;
use kvasir_proto::pb;
use kvasir_proto::pb::local_indexer_client::LocalIndexerClient;
use kvasir_proto::types::{Incarnation, Tier};
use kvbm_agent::agent::Agent;
use kvbm_agent::broker::Delivery;
use prost::Message as _;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;
use tonic::Code;

/// An answer's error.
#[derive(Debug, PartialEq, Eq)]
struct Failed {
    code: Code,
    text: String,
}

/// A question whose parts come.
struct Asked {
    client: Client,
    parts: Subscriber,
    taken: u64,
}

impl Asked {
    async fn ask(broker: &Broker, call: LocalCall, question: Vec<u8>) -> Self {
        let client = broker.client().await;
        let inbox = client.new_inbox();
        let parts = client.subscribe(inbox.clone()).await.expect("a subscription");
        let subject = local_subject(&address(), call);
        client.publish_with_reply(subject, inbox, question.into()).await.expect("it is sent");
        Self { client, parts, taken: 0 }
    }

    /// The next part, and where it is to be confirmed.
    async fn part(&mut self) -> Result<(bytes::Bytes, Subject), Failed> {
        let Message { headers, payload, reply, .. } = heard(&mut self.parts).await;
        let headers = headers.expect("headers");
        let header = |name: &str| headers.get(name).map(ToString::to_string);
        if let Some(code) = header(answer::ERROR_CODE) {
            assert!(payload.is_empty());
            let code = Code::from_i32(code.parse().expect("a number"));
            return Err(Failed { code, text: header(answer::ERROR).expect("a text") });
        }
        assert_eq!(header(answer::PART), Some(self.taken.to_string()));
        self.taken += 1;
        Ok((payload, reply.expect("where to confirm it")))
    }

    async fn confirm(&self, at: Subject) {
        self.client.publish(at, "".into()).await.expect("it is sent");
    }
}

/// What an answer is made of.
trait Part: prost::Message + Default + PartialEq + Debug {
    fn ends(&self) -> bool;
}

impl Part for pb::GetEventsResponse {
    fn ends(&self) -> bool {
        !matches!(self.part, Some(pb::get_events_response::Part::Batch(_)))
    }
}

impl Part for pb::LocalDumpResponse {
    fn ends(&self) -> bool {
        !matches!(self.part, Some(pb::local_dump_response::Part::Chunk(_)))
    }
}

impl Part for pb::GetLocalStatusResponse {
    fn ends(&self) -> bool {
        true
    }
}

/// All parts of an answer.
async fn ask<T: Part>(
    broker: &Broker,
    call: LocalCall,
    question: &impl prost::Message,
) -> Result<Vec<T>, Failed> {
    let mut asked = Asked::ask(broker, call, question.encode_to_vec()).await;
    let mut parts: Vec<T> = Vec::new();
    while !parts.last().is_some_and(Part::ends) {
        let (part, confirm) = asked.part().await?;
        asked.confirm(confirm).await;
        parts.push(T::decode(part).expect("a valid part"));
    }
    Ok(parts)
}

fn source() -> LocalSource {
    LocalSource { address: address(), name: SOURCE.to_owned() }
}

fn events(incarnation: Incarnation, from: u64, to: u64) -> pb::GetEventsRequest {
    EventsQuery { source: source(), incarnation, range: from..=to }.into()
}

fn dump(chunk_records: usize) -> pb::LocalDumpRequest {
    LocalDumpQuery {
        source: source(),
        incarnation: Some(INCARNATION),
        chunk_records,
        buckets: None,
    }
    .into()
}

/// Names with their copies in device memory.
fn copies(parts: &[pb::LocalDumpResponse]) -> BTreeMap<u64, u32> {
    let mut copies = BTreeMap::new();
    for part in parts {
        match LocalDumpPart::try_from(part.clone()).expect("a valid part") {
            LocalDumpPart::Chunk { records, .. } => {
                copies.extend(
                    records
                        .iter()
                        .map(|record| (record.name.0, record.copies[Tier::Device.index()])),
                );
            }
            LocalDumpPart::End(end) => assert_eq!(end.records as usize, copies.len()),
            LocalDumpPart::WrongIncarnation { present } => panic!("the life is {present}"),
        }
    }
    copies
}

async fn over_grpc(agent: &Agent) -> LocalIndexerClient<tonic::transport::Channel> {
    let address = agent.local_address().expect("it serves");
    LocalIndexerClient::connect(format!("http://{address}")).await.expect("an agent")
}

async fn all<T>(mut stream: tonic::Streaming<T>) -> Vec<T> {
    let mut parts = Vec::new();
    while let Some(part) = stream.message().await.expect("a part") {
        parts.push(part);
    }
    parts
}

#[tokio::test]
async fn answers_are_those_of_grpc() {
    let broker = Broker::start().await;
    let agent = start_connected(config(&broker, Delivery::Core)).await;
    let mut engine = Engine::new(21);
    let last = publish(&agent, &mut engine, 400);
    delivered(&agent, last).await;
    let mut grpc = over_grpc(&agent).await;
    // Many times as many parts as may be on their way, and ends of every kind.
    let other = Incarnation(9);
    for (life, from, to) in [
        (INCARNATION, 0, last),
        (INCARNATION, 390, 10_000),
        (INCARNATION, 999, 1_000),
        (other, 0, 9),
    ] {
        let question = events(life, from, to);
        let expected = grpc.get_events(question.clone()).await.expect("a stream").into_inner();
        let parts = ask::<pb::GetEventsResponse>(&broker, LocalCall::Events, &question).await;
        assert_eq!(parts.expect("an answer"), all(expected).await);
    }
    for chunk_records in [7, 2_000] {
        let question = dump(chunk_records);
        let expected = all(grpc.dump(question.clone()).await.expect("a stream").into_inner()).await;
        let parts = ask::<pb::LocalDumpResponse>(&broker, LocalCall::Dump, &question).await;
        let parts = parts.expect("an answer");
        assert_eq!((copies(&parts), parts.len()), (engine.truth(), expected.len()));
        assert_eq!((copies(&expected), expected.last()), (engine.truth(), parts.last()));
    }
    let worker_id = WORKER.to_owned();
    let question =
        pb::GetLocalStatusRequest { model: MODEL.to_owned(), tenant: String::new(), worker_id };
    let expected = grpc.get_status(question.clone()).await.expect("a status").into_inner();
    let parts = ask::<pb::GetLocalStatusResponse>(&broker, LocalCall::Status, &question).await;
    assert_eq!(parts, Ok(vec![expected]));
}

#[tokio::test]
async fn questions_that_make_no_sense_are_refused() {
    let broker = Broker::start().await;
    let _agent = start_connected(config(&broker, Delivery::Core)).await;
    let unknown = pb::LocalDumpRequest { source: "other".to_owned(), ..dump(1) };
    let elsewhere = pb::LocalDumpRequest { worker_id: "other".to_owned(), ..dump(1) };
    let nameless = pb::LocalDumpRequest { source: String::new(), ..dump(1) };
    for (question, code, expected) in [
        (unknown.encode_to_vec(), Code::NotFound, "source \"other\" is not one of [\"agent\"]"),
        (elsewhere.encode_to_vec(), Code::NotFound, "is not served here"),
        (nameless.encode_to_vec(), Code::InvalidArgument, "source is required"),
        (
            vec![0; 20_000],
            Code::InvalidArgument,
            "the question has 20000 bytes, the limit is 16384",
        ),
        (vec![0xff; 10], Code::Internal, ""),
    ] {
        let mut asked = Asked::ask(&broker, LocalCall::Dump, question).await;
        let failed = asked.part().await.expect_err(expected);
        assert_eq!(failed.code, code, "{failed:?}");
        assert!(failed.text.contains(expected), "{failed:?}");
    }
}

/// It is known at once, not after a time.
#[tokio::test]
async fn a_question_that_nobody_hears_says_so() {
    let broker = Broker::start().await;
    let agent = start_connected(config(&broker, Delivery::Core)).await;
    assert!(agent.stop(PATIENCE).await);
    let mut asked = Asked::ask(&broker, LocalCall::Dump, dump(10).encode_to_vec()).await;
    let message = heard(&mut asked.parts).await;
    assert_eq!(message.status, Some(StatusCode::NO_RESPONDERS));
}

#[tokio::test]
async fn whoever_confirms_nothing_is_cut_off_and_gives_up_its_place() {
    let broker = Broker::start().await;
    let mut config = config(&broker, Delivery::Core);
    config.service.stall_timeout = Duration::from_millis(500);
    config.service.streams_max = 1;
    let agent = start_connected(config).await;
    let mut engine = Engine::new(22);
    publish(&agent, &mut engine, 400);
    let mut slow = Asked::ask(&broker, LocalCall::Dump, dump(10).encode_to_vec()).await;
    for _ in 0..ANSWER_PARTS_AHEAD_MAX {
        slow.part().await.expect("a part");
    }
    let second = ask::<pb::LocalDumpResponse>(&broker, LocalCall::Dump, &dump(10)).await;
    let full = Failed {
        code: Code::ResourceExhausted,
        text: "1 questions are being answered already: ask later".to_owned(),
    };
    assert_eq!(second, Err(full));
    let failed = slow.part().await.expect_err("it is cut off");
    let text = "no part was confirmed for too long".to_owned();
    assert_eq!(failed, Failed { code: Code::Aborted, text });
    // Its place is free soon.
    let parts = loop {
        match ask::<pb::LocalDumpResponse>(&broker, LocalCall::Dump, &dump(10)).await {
            Ok(parts) => break parts,
            Err(failed) => assert_eq!(failed.code, Code::ResourceExhausted, "{failed:?}"),
        }
    };
    assert_eq!(copies(&parts), engine.truth());
}

#[tokio::test]
async fn whoever_went_away_is_cut_off_at_once() {
    let broker = Broker::start().await;
    let mut config = config(&broker, Delivery::Core);
    config.service.streams_max = 1;
    // Only that is noticed in time.
    config.service.stall_timeout = 2 * PATIENCE;
    let agent = start_connected(config).await;
    let mut engine = Engine::new(23);
    publish(&agent, &mut engine, 400);
    let mut gone = Asked::ask(&broker, LocalCall::Dump, dump(10).encode_to_vec()).await;
    let mut confirm = Vec::new();
    for _ in 0..ANSWER_PARTS_AHEAD_MAX {
        confirm.push(gone.part().await.expect("a part").1);
    }
    let Asked { client, mut parts, .. } = gone;
    parts.unsubscribe().await.expect("it is sent");
    client.publish(confirm.remove(0), "".into()).await.expect("it is sent");
    client.flush().await.expect("it is sent");
    let parts = loop {
        match ask::<pb::LocalDumpResponse>(&broker, LocalCall::Dump, &dump(10)).await {
            Ok(parts) => break parts,
            Err(failed) => assert_eq!(failed.code, Code::ResourceExhausted, "{failed:?}"),
        }
    };
    assert_eq!(copies(&parts), engine.truth());
}

#[tokio::test]
async fn a_part_that_the_server_refuses_for_its_size_is_an_error_that_says_so() {
    let broker = Broker::start_with("max_payload: 4096").await;
    let agent = start_connected(config(&broker, Delivery::Core)).await;
    let mut engine = Engine::new(24);
    publish(&agent, &mut engine, 400);
    let failed = ask::<pb::LocalDumpResponse>(&broker, LocalCall::Dump, &dump(2_000)).await;
    let failed = failed.expect_err("it is too large");
    assert_eq!(failed.code, Code::ResourceExhausted);
    let expected = "bytes exceeds the broker's limit (4096): raise max_payload";
    assert!(failed.text.ends_with(expected), "{failed:?}");
    let parts = ask::<pb::LocalDumpResponse>(&broker, LocalCall::Dump, &dump(20)).await;
    assert_eq!(copies(&parts.expect("small parts")), engine.truth());
}

#[tokio::test]
async fn questions_are_heard_again_after_the_broker_was_killed() {
    let mut broker = Broker::start().await;
    let agent = start_connected(config(&broker, Delivery::Core)).await;
    let mut engine = Engine::new(25);
    publish(&agent, &mut engine, 100);
    broker.server.kill().await;
    status(&agent, |status| !status.answering).await;
    broker.server.restart().await.expect("the server again");
    status(&agent, |status| status.answering).await;
    let parts = ask::<pb::LocalDumpResponse>(&broker, LocalCall::Dump, &dump(100)).await;
    assert_eq!(copies(&parts.expect("an answer")), engine.truth());
}

/// It says so, rather than nothing.
#[tokio::test]
async fn an_answer_under_way_ends_when_the_agent_does() {
    let broker = Broker::start().await;
    let agent = start_connected(config(&broker, Delivery::Core)).await;
    publish(&agent, &mut Engine::new(26), 400);
    let mut asked = Asked::ask(&broker, LocalCall::Dump, dump(10).encode_to_vec()).await;
    for _ in 0..ANSWER_PARTS_AHEAD_MAX {
        asked.part().await.expect("a part");
    }
    assert!(agent.stop(PATIENCE).await);
    let failed = asked.part().await.expect_err("it is cut off");
    assert_eq!(failed.text, "the agent stops");
}
