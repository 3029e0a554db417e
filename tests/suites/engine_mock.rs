//! The mock engine as a subscriber sees it: live batches, gaps, replays, restarts.
//!
//! The subscriber is naive: it applies batches in order and counts copies. What it believes must be
//! what the engine holds.

use bytes::Bytes;
use kvasir_proto::pb;
use kvasir_sim::client::{self, Indexer};
use kvasir_sim::engine::process::serve;
use kvasir_sim::engine::publisher::EpochForm;
use kvasir_sim::engine::{EngineConfig, EngineProcess, HashForm, MockEngine, Prompt, WireForm};
use kvasir_sim::server::Server;
use std::collections::BTreeMap;
use std::time::Duration;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

/// Longest wait for anything; a test that reaches it fails.
const PATIENCE: Duration = Duration::from_secs(20);
const BLOCK: usize = 4;

fn config() -> EngineConfig {
    EngineConfig {
        block_size: BLOCK,
        capacity_blocks: 64,
        topic: "kv-events".to_owned(),
        ..EngineConfig::default()
    }
}

/// A batch as it came: sequence number and payload.
type Batch = (u64, Vec<u8>);

async fn patiently<T>(what: &str, future: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(PATIENCE, future).await;
    done.unwrap_or_else(|_| panic!("no {what} within {PATIENCE:?}"))
}

fn prompt(start: u32, tokens: u32, answer: u32) -> Prompt {
    let text = |range: std::ops::Range<u32>| range.collect::<Vec<_>>();
    Prompt {
        tokens: text(start..start + tokens),
        answer: text(start + tokens..start + tokens + answer),
    }
}

/// The end of a replay, or a batch.
fn parse_reply(message: &ZmqMessage, frames: usize) -> Option<Batch> {
    assert_eq!(message.len(), frames, "frames of a reply");
    assert!(message.get(0).expect("a first frame").is_empty(), "the delimiter");
    let sequence = message.get(frames - 2).expect("a sequence number").as_ref();
    let sequence = u64::from_be_bytes(sequence.try_into().expect("eight bytes"));
    let payload = message.get(frames - 1).expect("a payload").to_vec();
    if sequence == u64::MAX {
        assert!(payload.is_empty(), "an end has no payload");
        return None;
    }
    Some((sequence, payload))
}

async fn replay(endpoint: &str, start: u64, frames: usize) -> Vec<Batch> {
    let mut dealer = DealerSocket::new();
    patiently("replay socket", dealer.connect(endpoint)).await.unwrap();
    let request: Vec<Bytes> = vec![Bytes::new(), start.to_be_bytes().to_vec().into()];
    dealer.send(ZmqMessage::try_from(request).unwrap()).await.unwrap();
    let mut batches = Vec::new();
    loop {
        let message = patiently("reply", dealer.recv()).await.unwrap();
        match parse_reply(&message, frames) {
            Some(batch) => batches.push(batch),
            None => return batches,
        }
    }
}

/// A subscriber that gets live batches: connects, then has the engine publish until one arrives.
async fn subscribe(engine: &MockEngine) -> (SubSocket, Batch) {
    let mut subscriber = SubSocket::new();
    patiently("live socket", subscriber.connect(engine.endpoint())).await.unwrap();
    subscriber.subscribe("kv-").await.unwrap();
    let first = patiently("live batch", async {
        let mut start = 1_000_000;
        loop {
            engine.run(prompt(start, 4, 1)).await.unwrap();
            start += 100;
            let received = tokio::time::timeout(Duration::from_millis(50), subscriber.recv());
            if let Ok(message) = received.await {
                break parse_live(&message.unwrap());
            }
        }
    });
    let first = first.await;
    (subscriber, first)
}

fn parse_live(message: &ZmqMessage) -> Batch {
    assert_eq!(message.len(), 3, "frames of a live batch");
    assert_eq!(message.get(0).unwrap().as_ref(), b"kv-events");
    let sequence = message.get(1).unwrap().as_ref().try_into().expect("eight bytes");
    (u64::from_be_bytes(sequence), message.get(2).unwrap().to_vec())
}

async fn receive(subscriber: &mut SubSocket) -> Batch {
    parse_live(&patiently("live batch", subscriber.recv()).await.unwrap())
}

/// Applies batches to a count of copies, as far as the main group goes.
fn count(batches: &[Batch]) -> BTreeMap<u64, u32> {
    let mut copies = BTreeMap::new();
    for (index, (sequence, payload)) in batches.iter().enumerate() {
        assert_eq!(*sequence, batches[0].0 + index as u64, "batches are contiguous");
        let batch = rmpv::decode::read_value(&mut payload.as_slice()).expect("MessagePack");
        for event in batch[1].as_array().expect("events") {
            apply(&mut copies, event);
        }
    }
    copies
}

fn apply(copies: &mut BTreeMap<u64, u32>, event: &rmpv::Value) {
    // A map by its keys, an array by the slots of 0.23: the group's differs by event.
    let field = |key: &str, slot: usize| match event {
        rmpv::Value::Map(_) => &event[key],
        _ => &event[slot],
    };
    let kind = field("type", 0).as_str().expect("a type");
    let group = match kind {
        "BlockStored" => field("group_idx", 9),
        "BlockRemoved" => field("group_idx", 3),
        "AllBlocksCleared" => return copies.clear(),
        other => panic!("unknown event {other}"),
    };
    if group.as_u64() != Some(0) {
        return;
    }
    for name in field("block_hashes", 1).as_array().expect("names") {
        let name = match name.as_slice() {
            Some(bytes) => u64::from_be_bytes(bytes[bytes.len() - 8..].try_into().unwrap()),
            None => name.as_u64().expect("an unsigned name"),
        };
        let held = copies.entry(name).or_default();
        *held = if kind == "BlockStored" { *held + 1 } else { *held - 1 };
        if *held == 0 {
            copies.remove(&name);
        }
    }
}

/// More text than the pool holds, with shared prefixes, answers and repetitions.
async fn work(engine: &MockEngine) {
    for round in 0..12 {
        let start = 1_000 * (round % 5);
        let (first, second) = tokio::join!(
            engine.run(prompt(start, 16 + round, 9)),
            engine.run(prompt(start, 24 + 4 * (round % 3), 9)),
        );
        first.unwrap();
        second.unwrap();
    }
}

async fn check_stream(config: EngineConfig, frames: usize) {
    let engine = MockEngine::start(config.clone()).await.unwrap();
    work(&engine).await;
    let truth = engine.truth().await.unwrap();
    let batches = replay(engine.replay_endpoint(), 0, frames).await;
    assert_eq!(batches.first().map(|batch| batch.0), Some(0), "{config:?}");
    assert_eq!(batches.last().map(|batch| batch.0), truth.last_sequence, "{config:?}");
    assert_eq!(count(&batches), truth.copies, "{config:?}");
    engine.stop().await;
}

#[tokio::test]
async fn counted_events_are_the_truth_in_every_form() {
    for sliding_window in [None, Some(12)] {
        for hashes in [HashForm::Integer, HashForm::Bytes] {
            for (form, frames) in [(WireForm::Map, 4), (WireForm::Array, 3)] {
                let config = EngineConfig { sliding_window, hashes, form, ..config() };
                check_stream(config, frames).await;
            }
        }
    }
}

#[tokio::test]
async fn a_dropped_batch_is_a_gap_that_a_replay_fills() {
    let engine = MockEngine::start(config()).await.unwrap();
    let (mut subscriber, first) = subscribe(&engine).await;
    engine.drop_next(2).await.unwrap();
    let before = engine.truth().await.unwrap().last_sequence.unwrap();
    for start in [1, 2, 3].map(|round| 10_000 * round) {
        engine.run(prompt(start, 8, 1)).await.unwrap();
    }
    let truth = engine.truth().await.unwrap();
    assert_eq!(truth.last_sequence, Some(before + 3));
    let mut live = vec![first];
    while live.last().unwrap().0 < before + 3 {
        live.push(receive(&mut subscriber).await);
    }
    let missing = |sequence: u64| !live.iter().any(|batch| batch.0 == sequence);
    assert!(missing(before + 1) && missing(before + 2) && !missing(before + 3));
    let replayed = replay(engine.replay_endpoint(), before + 1, 4).await;
    assert_eq!(replayed.len(), 3);
    assert_eq!(replayed.last(), live.last(), "a replay repeats the payload");
    engine.stop().await;
}

#[tokio::test]
async fn a_replay_begins_at_the_oldest_batch_that_is_kept() {
    let engine = MockEngine::start(EngineConfig { buffer_batches: 2, ..config() }).await.unwrap();
    for start in [1, 2, 3, 4, 5].map(|round| 10_000 * round) {
        engine.run(prompt(start, 8, 1)).await.unwrap();
    }
    let sequences = |batches: Vec<Batch>| batches.into_iter().map(|batch| batch.0).collect();
    let kept: Vec<u64> = sequences(replay(engine.replay_endpoint(), 0, 4).await);
    assert_eq!(kept, [3, 4]);
    let beyond: Vec<u64> = sequences(replay(engine.replay_endpoint(), 5, 4).await);
    assert!(beyond.is_empty());
    engine.stop().await;
}

#[tokio::test]
async fn a_reset_clears_everything() {
    let engine = MockEngine::start(config()).await.unwrap();
    work(&engine).await;
    assert!(engine.reset().await.unwrap());
    let truth = engine.truth().await.unwrap();
    assert!(truth.copies.is_empty());
    assert!(count(&replay(engine.replay_endpoint(), 0, 4).await).is_empty());
    engine.stop().await;
}

#[tokio::test]
async fn a_restart_is_a_new_incarnation_on_the_same_ports() {
    let engine = MockEngine::start(config()).await.unwrap();
    let (mut subscriber, _) = subscribe(&engine).await;
    work(&engine).await;
    let before = replay(engine.replay_endpoint(), 0, 4).await;
    engine.restart().await.unwrap();
    let truth = engine.truth().await.unwrap();
    assert_eq!((truth.copies.len(), truth.last_sequence), (0, None));
    work(&engine).await;
    let after = replay(engine.replay_endpoint(), 0, 4).await;
    assert_eq!(after[0].0, 0);
    assert_ne!(after[0].1, before[0].1, "no two lives publish equal batches");
    assert_eq!(count(&after), engine.truth().await.unwrap().copies);
    // The old subscriber comes back by itself and hears the new life. Errors are the end of the old
    // connection.
    patiently("live batch of the new life", async {
        loop {
            engine.run(prompt(7_000_000, 4, 1)).await.unwrap();
            let received = tokio::time::timeout(Duration::from_millis(50), subscriber.recv());
            let Ok(Ok(message)) = received.await else {
                continue;
            };
            let (sequence, payload) = parse_live(&message);
            let old = before.iter().any(|batch| *batch == (sequence, payload.clone()));
            if !old {
                break;
            }
        }
    })
    .await;
    engine.stop().await;
}

#[tokio::test]
async fn a_killed_process_is_a_new_incarnation_on_the_same_ports() {
    let engine = EngineProcess::start(config()).await.unwrap();
    let mut first_batches = Vec::new();
    for life in 0..3 {
        let done = engine.run(prompt(0, 40, 10)).await.unwrap().expect("nobody kills it");
        assert_eq!((done.prompt_tokens, done.hit_tokens), (40, 0), "life {life}");
        let replayed = replay(engine.replay_endpoint(), 0, 4).await;
        let truth = engine.truth().await.unwrap();
        assert_eq!(
            (count(&replayed), replayed.last().map(|last| last.0)),
            (truth.copies, truth.last_sequence)
        );
        assert_eq!(replayed[0].0, 0);
        first_batches.push(replayed[0].1.clone());
        // As a rule under a prompt, of which nothing is left.
        let (asked, killed) = tokio::join!(engine.run(prompt(500, 200, 50)), engine.kill());
        killed.unwrap();
        asked.expect("an answer, or none");
        let truth = engine.truth().await.unwrap();
        assert_eq!((truth.copies.len(), truth.last_sequence), (0, None));
    }
    first_batches.dedup();
    assert_eq!(first_batches.len(), 3, "no two lives publish equal batches");
    let refused = engine.run(prompt(0, 1_000, 1)).await.unwrap_err().to_string();
    assert_eq!(refused, "the engine has ended");
    engine.kill().await.expect_err("it ended by itself");
}

/// Where its input ends, so does it.
#[test]
fn a_process_without_requests_ends() {
    let mut replayed = Vec::new();
    serve(&b""[..], &mut replayed).unwrap();
    assert!(replayed.is_empty());
    let refused = serve(&b"\"Truth\"\n"[..], &mut replayed).unwrap_err();
    assert_eq!(refused.to_string(), "no engine was started");
}

#[tokio::test]
async fn a_lost_request_is_reported() {
    let engine = MockEngine::start(config()).await.unwrap();
    let too_large = engine.run(prompt(0, 1_000, 1)).await.unwrap_err();
    assert!(too_large.to_string().contains("needs 250 blocks, the pool has 64"), "{too_large}");
    engine.stop().await;
}

const MODEL: &str = "m";

async fn register(indexer: &mut Indexer, engine: &MockEngine, worker: &str, mode: pb::CopyMode) {
    let request = pb::RegisterWorkerRequest {
        worker_id: worker.to_owned(),
        model: MODEL.to_owned(),
        block_size: BLOCK as u32,
        engine: pb::Engine::Vllm.into(),
        copy_mode: mode.into(),
        endpoints: vec![pb::EngineEndpoint {
            endpoint: engine.endpoint().to_owned(),
            replay_endpoint: engine.replay_endpoint().to_owned(),
            topic: "kv-".to_owned(),
            ..pb::EngineEndpoint::default()
        }],
        ..pb::RegisterWorkerRequest::default()
    };
    indexer.register_worker(request).await.expect("a new worker");
}

/// Waits until the server holds for a worker just the blocks that its engine holds, and says so.
async fn until_held(indexer: &mut Indexer, engine: &MockEngine, worker: &str) {
    let truth = engine.truth().await.unwrap();
    let last = truth.last_sequence.expect("it has published");
    let exact = async {
        loop {
            client::wait_until_exact_at(indexer, (MODEL, worker), last, PATIENCE).await.unwrap();
            let held = client::dump_device_copies(indexer, MODEL, worker).await.unwrap();
            // An exact state may be that of an earlier life with as many batches.
            if held.keys().eq(truth.copies.keys()) {
                break;
            }
        }
    };
    patiently(&format!("equal state of {worker}"), exact).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_follows_engines_that_state_their_incarnation() {
    let mut server = Server::start_anywhere().await.unwrap();
    let mut indexer = client::connect(server.addresses.grpc).await.unwrap();
    for (worker, epoch) in [("frame", EpochForm::Frame), ("topic", EpochForm::Topic)] {
        let engine = MockEngine::start(EngineConfig { epoch, ..config() }).await.unwrap();
        work(&engine).await;
        register(&mut indexer, &engine, worker, pb::CopyMode::Counted).await;
        until_held(&mut indexer, &engine, worker).await;
        engine.drop_next(1).await.unwrap();
        work(&engine).await;
        until_held(&mut indexer, &engine, worker).await;
        engine.restart().await.unwrap();
        work(&engine).await;
        until_held(&mut indexer, &engine, worker).await;
        engine.stop().await;
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_engine_says_of_copies_decides_in_either_mode() {
    let mut server = Server::start_anywhere().await.unwrap();
    let mut indexer = client::connect(server.addresses.grpc).await.unwrap();
    for (worker, mode) in [("counted", pb::CopyMode::Counted), ("set", pb::CopyMode::Set)] {
        let engine = EngineConfig { copy_counts: true, ..config() };
        let engine = MockEngine::start(engine).await.unwrap();
        register(&mut indexer, &engine, worker, mode).await;
        // Prompts that are cached whole compute their last block again: a second copy.
        for round in 0..40 {
            let start = 1_000 * (round % 7);
            engine.run(prompt(start, 16 + 4 * (round % 3), 1)).await.unwrap();
            if round % 10 == 9 {
                let truth = engine.truth().await.unwrap();
                assert!(truth.copies.values().any(|copies| *copies > 1), "no second copies");
                until_held(&mut indexer, &engine, worker).await;
            }
        }
        engine.stop().await;
    }
    server.stop().await;
}
