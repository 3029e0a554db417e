//! The clients that others build on, the agent's uplink and the router's client, against a real
//! server; and against one that never answers.

use futures::stream;
use kvasir_feed::uplink::{Acknowledged, SourceIdentity, Uplink, UplinkError};
use kvasir_proto::hash::Namespace;
use kvasir_proto::limits::{GRPC_MESSAGE_BYTES_MAX, SEQUENCE_MAX};
use kvasir_proto::pb;
use kvasir_proto::pb::event_ingest_client::EventIngestClient;
use kvasir_proto::pb::publish_events_request::Message;
use kvasir_proto::types::{
    BlockName, Incarnation, KvEvent, PartitionKey, SourceState, StoredBlock, Tier, WorkerId,
    WorkerKey,
};
use kvasir_sim::client;
use kvasir_sim::server::Server;
use router_client::{
    Answer, ClientConfig, ClientError, IndexerClient, Prompt, ShardedClient, ShardedConfig,
};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;
use tokio::io::copy;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tonic::Code;

const MODEL: &str = "m";
const WORKER: &str = "w";
const BLOCK_SIZE: u32 = 4;
/// Nothing in these tests takes nearly as long.
const PATIENCE: Duration = Duration::from_secs(30);

fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

/// A server that knows one worker of one tenant.
async fn server(tenant: &str) -> Server {
    let server = Server::start_anywhere().await.expect("a server");
    register(&server, tenant).await;
    server
}

async fn register(server: &Server, tenant: &str) {
    let mut indexer = client::connect(server.addresses.grpc).await.expect("a server that listens");
    let request = pb::RegisterWorkerRequest {
        worker_id: WORKER.to_owned(),
        model: MODEL.to_owned(),
        tenant: tenant.to_owned(),
        block_size: BLOCK_SIZE,
        ..Default::default()
    };
    indexer.register_worker(request).await.expect("a first worker");
}

fn source(tenant: &str, incarnation: u128) -> SourceIdentity {
    SourceIdentity {
        partition: PartitionKey::new(MODEL, tenant).expect("a name"),
        worker: WorkerId::new(WORKER).expect("a name"),
        source: "agent".to_owned(),
        block_size: BLOCK_SIZE,
        incarnation: Incarnation(incarnation),
    }
}

async fn uplink(server: &Server, source: SourceIdentity) -> Uplink {
    Uplink::open(&url(server.addresses.grpc), source).await.expect("a registered worker")
}

fn router(address: SocketAddr) -> IndexerClient {
    let config = ClientConfig { deadline: PATIENCE, ..ClientConfig::default() };
    IndexerClient::connect(&url(address), config).expect("a URL")
}

fn tokens(blocks: u32) -> Vec<u32> {
    (0..blocks * BLOCK_SIZE).collect()
}

/// All blocks of a prompt, named 1, 2, 3 and so on.
fn stored(prompt: &Prompt<'_>) -> KvEvent {
    let blocks = (1..).zip(prompt.local_hashes());
    let blocks = blocks.map(|(name, local)| StoredBlock { name: BlockName(name), local });
    KvEvent::Stored { parent: None, tier: Tier::Device, blocks: blocks.collect() }
}

fn removed(names: &[u64]) -> KvEvent {
    KvEvent::Removed { tier: Tier::Device, names: names.iter().copied().map(BlockName).collect() }
}

/// Blocks of the prompt that the best worker holds.
async fn held(router: &IndexerClient, prompt: &Prompt<'_>) -> u32 {
    let answer = router.find(prompt).await.expect("an answer");
    answer.best().map_or(0, |best| best.blocks)
}

fn fresh(sequence: u64) -> Acknowledged {
    Acknowledged { sequence, duplicate: false, rejected: 0 }
}

fn code(outcome: Result<impl std::fmt::Debug, ClientError>) -> Code {
    match outcome {
        Err(ClientError::Status(status)) => status.code(),
        other => panic!("not a status: {other:?}"),
    }
}

#[tokio::test]
async fn targets_need_no_scheme_and_what_can_be_none_is_refused_at_once() {
    let mut server = server("").await;
    let address = server.addresses.grpc.to_string();
    let tokens = tokens(4);
    let prompt = Prompt::new(MODEL, BLOCK_SIZE, &tokens);
    let config = ClientConfig { deadline: PATIENCE, ..ClientConfig::default() };
    let mut uplink = Uplink::open(&address, source("", 1)).await.expect("a registered worker");
    uplink.publish(0, &[stored(&prompt)]).await.expect("a valid batch");
    let single = IndexerClient::connect(&address, config.clone()).expect("a target");
    assert_eq!(held(&single, &prompt).await, 4);
    let best = single.find(&prompt).await.expect("an answer").overlaps.remove(0);
    assert!(best.connected);
    let sharded = ShardedConfig { client: config.clone(), ..ShardedConfig::default() };
    let whole = ShardedClient::connect([[&address]], &sharded).expect("a target");
    let answer = whole.find(&prompt).await.expect("an answer");
    assert!(answer.best().is_some_and(|best| best.blocks == 4 && best.connected));

    for bad in ["host", "ftp://127.0.0.1:1", "127.0.0.1:0", "http://127.0.0.1:1/path"] {
        let expected = format!(
            "{bad:?} must be host:port, http://host:port or https://host:port, such as 10.0.0.2:50051"
        );
        let refused = IndexerClient::connect(bad, config.clone()).map(drop).expect_err(bad);
        assert_eq!(refused.to_string(), format!("endpoint {expected}"));
        let refused = ShardedClient::connect([[bad]], &sharded).map(drop).expect_err(bad);
        assert_eq!(refused.to_string(), format!("endpoint {expected}"));
        let refused = Uplink::open(bad, source("", 1)).await.map(drop).expect_err(bad);
        assert_eq!(refused.to_string(), format!("endpoint {expected}"));
    }
    server.stop().await;
}

#[tokio::test]
async fn what_is_published_is_found() {
    let mut server = server("").await;
    let router = router(server.addresses.grpc);
    let tokens = tokens(4);
    let prompt = Prompt::new(MODEL, BLOCK_SIZE, &tokens);
    assert_eq!(held(&router, &prompt).await, 0);
    let mut uplink = uplink(&server, source("", 1)).await;
    assert_eq!(uplink.next_sequence(), Some(0));

    let acked = uplink.publish(3, &[stored(&prompt)]).await.expect("a valid batch");
    assert_eq!(acked, fresh(0));
    let answer = router.find(&prompt).await.expect("an answer");
    assert_eq!((answer.query_blocks, answer.overlaps.len()), (4, 1));
    let best = answer.best().expect("one overlap");
    assert_eq!((best.worker.worker.as_str(), best.worker.rank), (WORKER, 3));
    assert_eq!((best.blocks, best.device_blocks, best.host_blocks, best.disk_blocks), (4, 4, 0, 0));
    assert_eq!((best.state, best.lag_batches), (SourceState::Exact, 0));
    assert!(best.verified_age.is_some());

    let host = KvEvent::StoredNames { tier: Tier::Host, names: vec![BlockName(1), BlockName(2)] };
    let acked = uplink.publish(3, &[host, removed(&[2, 4])]).await.expect("a valid batch");
    assert_eq!(acked, fresh(1));
    let answer = router.find(&prompt).await.expect("an answer");
    let best = answer.best().expect("one overlap");
    assert_eq!((best.blocks, best.device_blocks, best.host_blocks), (3, 2, 2));

    let acked = uplink.publish(3, &[KvEvent::Cleared]).await.expect("a valid batch");
    assert_eq!((acked, uplink.next_sequence()), (fresh(2), Some(3)));
    assert_eq!(held(&router, &prompt).await, 0);
    server.stop().await;
}

#[tokio::test]
async fn a_incarnation_goes_on_and_a_new_one_begins_empty() {
    let mut server = server("").await;
    let router = router(server.addresses.grpc);
    let tokens = tokens(2);
    let prompt = Prompt::new(MODEL, BLOCK_SIZE, &tokens);
    let mut first = uplink(&server, source("", 1)).await;
    for sequence in 0..3 {
        let acked = first.publish(0, &[stored(&prompt)]).await.expect("a valid batch");
        assert_eq!(acked, fresh(sequence));
    }
    drop(first);

    let mut again = uplink(&server, source("", 1)).await;
    assert_eq!((again.next_sequence(), held(&router, &prompt).await), (Some(3), 2));
    assert_eq!(again.publish(0, &[removed(&[2])]).await.expect("a valid batch"), fresh(3));
    assert_eq!(held(&router, &prompt).await, 1);
    drop(again);

    let mut reborn = uplink(&server, source("", 2)).await;
    assert_eq!((reborn.next_sequence(), held(&router, &prompt).await), (Some(0), 0));
    assert_eq!(reborn.publish(0, &[stored(&prompt)]).await.expect("a valid batch"), fresh(0));
    assert_eq!(held(&router, &prompt).await, 2);
    server.stop().await;
}

#[tokio::test]
async fn a_placement_counts_until_events_confirm_more() {
    let mut server = server("").await;
    let router = router(server.addresses.grpc);
    let tokens = tokens(4);
    let prompt = Prompt::new(MODEL, BLOCK_SIZE, &tokens);
    let rank = |name: &str, rank| WorkerKey { worker: WorkerId::new(name).expect("a name"), rank };
    let three = rank(WORKER, 3);
    let five = rank(WORKER, 5);
    let mut uplink = uplink(&server, source("", 1)).await;
    uplink.publish(3, &[stored(&prompt)]).await.expect("a batch");
    let longer: Vec<_> = (0..6 * BLOCK_SIZE).collect();
    let longer = Prompt::new(MODEL, BLOCK_SIZE, &longer);
    router.record_placement(&longer, &five, None).await.expect("a registered worker");
    let answer = router.find(&longer).await.expect("an answer");
    let found = answer
        .overlaps
        .iter()
        .map(|at| (&at.worker, at.blocks, at.speculative_blocks, at.expected_blocks(), at.state));
    let found: Vec<_> = found.collect();
    let expected = [(&five, 0, 6, 6, SourceState::Cold), (&three, 4, 0, 4, SourceState::Exact)];
    assert_eq!(found, expected);
    assert_eq!(answer.best().map(|best| &best.worker), Some(&five));

    // Too short for a block: nothing to say, and nobody is asked.
    let short = Prompt::new(MODEL, BLOCK_SIZE, &tokens[..3]);
    router.record_placement(&short, &rank("x", 0), None).await.expect("nothing to record");
    let ttl = Some(Duration::from_millis(1));
    let unknown = router.record_placement(&prompt, &rank("x", 0), ttl).await;
    assert_eq!(code(unknown), Code::NotFound);
    let endless = router.record_placement(&prompt, &three, Some(Duration::MAX)).await;
    assert_eq!(code(endless), Code::InvalidArgument);
    server.stop().await;
}

#[tokio::test]
async fn a_prompt_shorter_than_a_block_has_an_empty_answer_and_asks_nobody() {
    // Nobody listens there: whoever asks gets an error.
    let nobody = "http://127.0.0.1:1";
    let one = IndexerClient::connect(nobody, ClientConfig::default()).expect("a URL");
    let sharded = ShardedClient::connect([[nobody]], &ShardedConfig::default()).expect("a URL");
    let tokens = tokens(1);
    for (count, minimum_overlap_blocks) in [(0, 1), (3, 1), (3, 0)] {
        let short = Prompt::new(MODEL, BLOCK_SIZE, &tokens[..count]);
        let short = Prompt { minimum_overlap_blocks, ..short };
        for answer in [one.find(&short).await, sharded.find(&short).await] {
            let answer = answer.expect("an answer without a question");
            assert_eq!(answer, Answer::default());
            assert_eq!((answer.query_blocks, answer.best()), (0, None));
        }
    }
    // A whole block is asked about, and so is a block size that cannot be.
    for block_size in [BLOCK_SIZE, 0] {
        let asked = Prompt::new(MODEL, block_size, &tokens);
        for answer in [one.find(&asked).await, sharded.find(&asked).await] {
            answer.expect_err("nobody answers");
        }
    }
}

#[tokio::test]
async fn a_stream_that_is_taken_over_is_fenced() {
    let mut server = server("").await;
    let router = router(server.addresses.grpc);
    let tokens = tokens(2);
    let prompt = Prompt::new(MODEL, BLOCK_SIZE, &tokens);
    let mut old = uplink(&server, source("", 1)).await;
    old.publish(0, &[stored(&prompt)]).await.expect("a valid batch");
    let mut new = uplink(&server, source("", 1)).await;
    let error = old.publish(0, &[KvEvent::Cleared]).await.expect_err("taken over");
    let UplinkError::Refused { reason: pb::RefusalReason::Fenced, .. } = error else {
        panic!("not fenced: {error:?}")
    };
    assert_eq!(held(&router, &prompt).await, 2);
    assert_eq!(new.publish(0, &[removed(&[2])]).await.expect("a valid batch"), fresh(1));
    assert_eq!(held(&router, &prompt).await, 1);
    server.stop().await;
}

#[tokio::test]
async fn an_uplink_says_why_it_cannot_go_on() {
    let mut server = server("").await;
    let endpoint = url(server.addresses.grpc);
    let check = async |endpoint: &str, source: SourceIdentity, expected: Code| match Uplink::open(
        endpoint, source,
    )
    .await
    {
        Err(UplinkError::Status(status)) => assert_eq!(status.code(), expected, "{status}"),
        other => panic!("{expected:?} is not {other:?}"),
    };
    let unknown = SourceIdentity { worker: WorkerId::new("x").expect("a name"), ..source("", 1) };
    check(&endpoint, unknown, Code::NotFound).await;
    let wide = SourceIdentity { block_size: 16, ..source("", 1) };
    check(&endpoint, wide, Code::FailedPrecondition).await;
    let error = Uplink::open("http://[", source("", 1)).await.expect_err("it is no target");
    assert!(matches!(error, UplinkError::Target(_)), "{error:?}");
    assert!(error.to_string().contains("\"http://[\""), "{error}");
    let nobody = "http://127.0.0.1:1";
    let error = Uplink::open(nobody, source("", 1)).await.expect_err("nobody is there");
    assert!(matches!(error, UplinkError::Endpoint(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.starts_with("cannot be reached: "), "{text}");
    assert!(!text.contains("transport error"), "{text} is no cause");

    // Events that break the contract are refused, and the stream goes on with the same number.
    let mut uplink = uplink(&server, source("", 1)).await;
    let error = uplink.publish(0, &[removed(&[])]).await.expect_err("no names");
    assert_eq!(
        error.to_string(),
        "refused (REFUSAL_REASON_INVALID): events[0].removed.names is required"
    );
    assert_eq!(uplink.publish(0, &[KvEvent::Cleared]).await.expect("a valid batch"), fresh(0));

    // A batch that was given up half-way may be in the index or not: only a new stream can tell.
    let given_up = uplink.publish(0, &[KvEvent::Cleared]);
    drop(futures::poll!(Box::pin(given_up)));
    let error = uplink.publish(0, &[KvEvent::Cleared]).await.expect_err("given up");
    assert!(matches!(error, UplinkError::Abandoned), "{error:?}");
    server.stop().await;
}

#[tokio::test]
async fn the_last_sequence_number_ends_an_incarnation() {
    let mut server = server("").await;
    let channel = tonic::transport::Endpoint::from_shared(url(server.addresses.grpc));
    let channel = channel.expect("a URL").connect().await.expect("a server that listens");
    let hello = pb::PublishHello {
        model: MODEL.to_owned(),
        worker_id: WORKER.to_owned(),
        source: "agent".to_owned(),
        block_size: BLOCK_SIZE,
        incarnation: vec![0; 16].into(),
        first_sequence: Some(SEQUENCE_MAX - 1),
        ..Default::default()
    };
    let batch = pb::PublishBatch { sequence: SEQUENCE_MAX - 1, ..Default::default() };
    let requests = [Message::Hello(hello), Message::Batch(batch)]
        .map(|message| pb::PublishEventsRequest { message: Some(message) });
    let answers = EventIngestClient::new(channel).publish_events(stream::iter(requests)).await;
    let mut answers = answers.expect("an open stream").into_inner();
    while answers.message().await.expect("an answer").is_some() {}

    let mut last = uplink(&server, source("", 0)).await;
    assert_eq!(last.next_sequence(), Some(SEQUENCE_MAX));
    assert_eq!(last.publish(0, &[KvEvent::Cleared]).await.expect("the last"), fresh(SEQUENCE_MAX));
    for mut uplink in [last, uplink(&server, source("", 0)).await] {
        assert_eq!(uplink.next_sequence(), None);
        let error = uplink.publish(0, &[KvEvent::Cleared]).await.expect_err("no number left");
        assert!(matches!(error, UplinkError::Exhausted), "{error:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn namespaces_and_tenants_do_not_mix() {
    let mut server = server("").await;
    register(&server, "t").await;
    let router = router(server.addresses.grpc);
    let tokens = tokens(2);
    let plain = Prompt::new(MODEL, BLOCK_SIZE, &tokens);
    let adapter = Namespace { lora_name: "adapter", cache_salt: "" };
    let salted = Namespace { lora_name: "adapter", cache_salt: "salt" };
    let adapter = Prompt { namespace: adapter, ..plain };
    let salted = Prompt { namespace: salted, ..plain };
    let tenant = Prompt { tenant: "t", ..plain };
    let prompts = [plain, adapter, salted, tenant];
    let mut first = uplink(&server, source("", 1)).await;
    let mut second = uplink(&server, source("t", 1)).await;
    // What is stored for one of them is found by that one only.
    for (stored_at, prompt) in prompts.iter().enumerate() {
        let uplink = if prompt.tenant.is_empty() { &mut first } else { &mut second };
        uplink.publish(0, &[stored(prompt)]).await.expect("a valid batch");
        for (asked_at, asked) in prompts.iter().enumerate() {
            let expected = if asked_at == stored_at { 2 } else { 0 };
            assert_eq!(held(&router, asked).await, expected, "{prompt:?} asked as {asked:?}");
        }
        uplink.publish(0, &[KvEvent::Cleared]).await.expect("a valid batch");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_question_that_is_refused_says_why() {
    let mut server = server("").await;
    let router = router(server.addresses.grpc);
    let tokens = tokens(2);
    let known = Prompt::new(MODEL, BLOCK_SIZE, &tokens);
    let check = async |prompt: Prompt<'_>, expected: Code| {
        assert_eq!(code(router.find(&prompt).await), expected, "{prompt:?}");
    };
    check(Prompt { model: "unknown", ..known }, Code::NotFound).await;
    check(Prompt { tenant: "unknown", ..known }, Code::NotFound).await;
    check(Prompt { model: "", ..known }, Code::InvalidArgument).await;
    check(Prompt { block_size: 2, ..known }, Code::FailedPrecondition).await;
    check(Prompt { block_size: 0, ..known }, Code::InvalidArgument).await;
    server.stop().await;
    let gone = router.find(&known).await;
    assert_eq!(code(gone), Code::Unavailable);
}

/// What no server takes is not sent: it would end the stream that all questions share.
#[tokio::test]
async fn a_question_that_is_too_long_does_not_hurt_the_others() {
    let mut server = server("").await;
    let router = router(server.addresses.grpc);
    let short = tokens(2);
    let long = vec![1; GRPC_MESSAGE_BYTES_MAX / 8 + 1];
    let known = Prompt::new(MODEL, BLOCK_SIZE, &short);
    let too_long = Prompt::new(MODEL, 1, &long);
    for _ in 0..3 {
        let asked = tokio::join!(router.find(&known), router.find(&too_long), router.find(&known));
        assert!(asked.0.is_ok() && asked.2.is_ok(), "{asked:?}");
        let refused = asked.1.map(drop).expect_err("too long");
        let expected = "the tokens fill 1048577 blocks, the limit is 65536: send fewer";
        assert_eq!(refused.to_string(), expected);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_malformed_endpoint_is_refused_at_once() {
    for endpoint in ["", "http://[", "two words"] {
        match IndexerClient::connect(endpoint, ClientConfig::default()) {
            Err(error @ ClientError::Target(_)) => {
                assert!(error.to_string().contains(&format!("{endpoint:?}")), "{error}");
            }
            other => panic!("{endpoint:?}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_server_that_never_answers_costs_a_deadline() {
    // Connections wait in its queue; nobody takes them.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = url(silent.local_addr().expect("an address"));
    let tokens = tokens(1);
    let prompt = Prompt::new(MODEL, BLOCK_SIZE, &tokens);
    let deadline = Duration::from_millis(50);
    // With one turn, the second question waits for it and has the same time. None is one.
    for in_flight_max in [0, 1, usize::MAX] {
        let config = ClientConfig { deadline, in_flight_max, ..ClientConfig::default() };
        let router = IndexerClient::connect(&endpoint, config).expect("a URL");
        let (first, second) = tokio::join!(router.find(&prompt), router.find(&prompt));
        for outcome in [first, second] {
            let error = outcome.expect_err("nobody answers");
            assert_eq!(error.to_string(), "no answer within 50 ms");
        }
    }
}

/// Carries one connection to `server`, and its answers back only once `open` is notified.
async fn withhold_answers(listener: tokio::net::TcpListener, server: SocketAddr, open: &Notify) {
    let (client, _) = listener.accept().await.expect("a client");
    let server = TcpStream::connect(server).await.expect("a server that listens");
    let (mut questions, mut to_client) = client.into_split();
    let (mut answers, mut to_server) = server.into_split();
    let back = async {
        open.notified().await;
        // The connection ends in whatever way the client ends it.
        drop(copy(&mut answers, &mut to_client).await);
    };
    tokio::join!(copy(&mut questions, &mut to_server), back).0.expect("a connection");
}

#[tokio::test]
async fn questions_wait_for_their_turn() {
    let mut server = server("").await;
    let mut indexer = client::connect(server.addresses.grpc).await.expect("a server that listens");
    let mut queries = async || {
        let stats = indexer.get_stats(pb::GetStatsRequest::default()).await;
        stats.expect("stats").into_inner().queries
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let endpoint = url(listener.local_addr().expect("an address"));
    let open = Notify::new();
    let config = ClientConfig { deadline: PATIENCE, in_flight_max: 1, ..ClientConfig::default() };
    let stalled = IndexerClient::connect(&endpoint, config).expect("a URL");
    let direct = router(server.addresses.grpc);
    let tokens = tokens(1);
    let prompt = Prompt::new(MODEL, BLOCK_SIZE, &tokens);

    let other = stalled.clone();
    let questions = async { tokio::join!(stalled.find(&prompt), other.find(&prompt)) };
    let observed = async {
        while queries().await == 0 {
            tokio::task::yield_now().await;
        }
        // The first question is answered and the client does not know. A second one would be at
        // the server before those that are asked now.
        for _ in 0..10 {
            direct.find(&prompt).await.expect("an answer");
        }
        let before = queries().await;
        open.notify_one();
        before
    };
    let carried = withhold_answers(listener, server.addresses.grpc, &open);
    let asked = async { tokio::join!(questions, observed) };
    let ((first, second), before) = tokio::select! {
        asked = asked => asked,
        () = carried => panic!("the connection broke off"),
    };
    assert_eq!(before, 1 + 10);
    first.expect("an answer");
    second.expect("an answer");
    assert_eq!(queries().await, 1 + 10 + 1);
    server.stop().await;
}
