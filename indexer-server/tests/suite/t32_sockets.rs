//! Ranks that an engine has announced, and one worker per socket and topic.

use crate::harness::{BLOCK_SIZE, Server, registration, scores, within};
use crate::t31_events::{TOKENS, stored, write};
use kvasir_proto::pb;
use kvasir_proto::pb::indexer_client::IndexerClient;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::sleep;
use tonic::Code;
use tonic::transport::Channel;
use zeromq::{PubSocket, Socket, SocketSend, ZmqMessage};

/// An engine without a replay socket.
struct Engine {
    socket: PubSocket,
    endpoint: String,
    sequence: u64,
}

impl Engine {
    async fn begin() -> Self {
        Self::at("tcp://127.0.0.1:0").await
    }

    async fn at(endpoint: &str) -> Self {
        let mut socket = PubSocket::new();
        // The previous listener may still be closing.
        let bound = within(async {
            loop {
                if let Ok(bound) = socket.bind(endpoint).await {
                    break bound;
                }
                sleep(Duration::from_millis(5)).await;
            }
        });
        let endpoint = bound.await.to_string();
        Self { socket, endpoint, sequence: 0 }
    }

    async fn publish(&mut self, topic: &str, rank: &Value, events: &[Value]) {
        let mut payload = Vec::new();
        write(&json!([1, events, rank]), &mut payload);
        let mut message = ZmqMessage::from(topic);
        message.push_back(self.sequence.to_be_bytes().to_vec().into());
        message.push_back(payload.into());
        self.socket.send(message).await.expect("a bound socket");
        self.sequence += 1;
    }

    fn worker(&self, name: &str, topic: &str) -> pb::RegisterWorkerRequest {
        let endpoint = self.endpoint.clone();
        let topic = topic.to_owned();
        pb::RegisterWorkerRequest {
            engine: pb::Engine::Vllm.into(),
            endpoints: vec![pb::EngineEndpoint { endpoint, topic, ..Default::default() }],
            ..registration(name)
        }
    }
}

/// All workers in a query's answer: (worker, rank, blocks).
async fn listed(client: &mut IndexerClient<Channel>) -> Vec<(String, u32, u32)> {
    let request = pb::FindMatchesRequest {
        model: "m".to_owned(),
        token_ids: TOKENS.to_vec(),
        minimum_overlap_blocks: Some(0),
        ..Default::default()
    };
    let answer = match client.find_matches(request).await {
        Ok(answer) => answer.into_inner(),
        Err(status) => {
            assert_eq!(status.code(), Code::NotFound, "{status}");
            return Vec::new();
        }
    };
    let scores = scores(&answer).into_iter();
    scores.map(|(worker, rank, blocks)| (worker.to_owned(), rank, blocks)).collect()
}

async fn workers(client: &mut IndexerClient<Channel>) -> Vec<pb::WorkerInfo> {
    let list = client.list_workers(pb::ListWorkersRequest::default()).await.expect("a list");
    list.into_inner().workers
}

async fn ranks(client: &mut IndexerClient<Channel>) -> Vec<u32> {
    let workers = workers(client).await;
    workers.iter().flat_map(|worker| &worker.ranks).map(|rank| rank.dp_rank).collect()
}

/// Publishes the same event until the answer equals the expected one: slow joiners miss messages.
async fn publish_until(
    engine: &mut Engine,
    client: &mut IndexerClient<Channel>,
    (topic, rank, event): (&str, Value, Value),
    expected: &[(&str, u32, u32)],
) {
    let owned = |&(worker, rank, blocks): &(&str, u32, u32)| (worker.to_owned(), rank, blocks);
    let expected: Vec<_> = expected.iter().map(owned).collect();
    within(async {
        while listed(client).await != expected {
            engine.publish(topic, &rank, std::slice::from_ref(&event)).await;
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

fn cleared() -> Value {
    json!({"type": "AllBlocksCleared"})
}

fn block() -> Value {
    stored(1, &json!({"medium": "GPU"}))
}

#[tokio::test]
async fn a_rank_that_no_batch_named_goes_once_another_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let checkpoints = format!("--checkpoint-dir={}", folder.path().display());
    let mut engine = Engine::begin().await;
    // The worker is restored before the engine has announced any rank.
    for named in [false, true] {
        let server = Server::start(&[&checkpoints]).await;
        let mut client = server.indexer().await;
        client.register_worker(engine.worker("w", "")).await.expect("an endpoint");
        within(async {
            while ranks(&mut client).await != [0] {
                sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        assert_eq!(listed(&mut client).await, [("w".to_owned(), 0, 0)]);
        if named {
            // SGLang starts with a clear.
            let first = ("", json!(3), cleared());
            publish_until(&mut engine, &mut client, first, &[("w", 3, 0)]).await;
            let more = ("", json!(3), block());
            publish_until(&mut engine, &mut client, more, &[("w", 3, 1)]).await;
            assert_eq!(ranks(&mut client).await, [3]);
            let metrics = server.http("/metrics").await.1;
            assert!(!metrics.contains("rank=\"0\""), "{metrics}");
        }
        server.stop().await.expect("a clean stop");
    }
    let server = Server::start(&[&checkpoints]).await;
    let mut client = server.indexer().await;
    within(async {
        while ranks(&mut client).await != [3] {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    // A batch without a rank uses the registered one.
    let expected = [("w", 0, 1), ("w", 3, 1)];
    publish_until(&mut engine, &mut client, ("", Value::Null, block()), &expected).await;
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn each_of_two_endpoints_keeps_its_own_rank() {
    let mut one = Engine::begin().await;
    let two = Engine::begin().await;
    let mut worker = one.worker("w", "");
    worker.endpoints[0].dp_rank = 1;
    worker.endpoints.extend(two.worker("w", "").endpoints);
    let server = Server::start(&[]).await;
    let mut client = server.indexer().await;
    client.register_worker(worker).await.expect("two endpoints");
    let before = [("w".to_owned(), 0, 0), ("w".to_owned(), 1, 0)];
    assert_eq!(listed(&mut client).await, before);
    // Rank 0 still belongs to the other endpoint.
    let expected = [("w", 4, 1), ("w", 0, 0)];
    publish_until(&mut one, &mut client, ("", json!(4), block()), &expected).await;
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn a_new_pod_gets_the_address_of_a_dead_one() {
    let mut engine = Engine::begin().await;
    let server = Server::start(&[]).await;
    let mut client = server.indexer().await;
    client.register_worker(engine.worker("pod-a", "kv@a")).await.expect("a free socket");
    let batch = || ("kv@a@m", json!(0), block());
    publish_until(&mut engine, &mut client, batch(), &[("pod-a", 0, 1)]).await;
    let refused = client.register_worker(engine.worker("pod-b", "")).await.expect_err("in use");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    for name in ["pod-a (model m)", "pod-b (model m)", &engine.endpoint] {
        assert!(refused.message().contains(name), "{refused}");
    }
    client.register_worker(engine.worker("pod-c", "kv@c@")).await.expect("a topic of its own");
    let endpoint = engine.endpoint.clone();
    engine.socket.close().await;
    // The server may need a moment to detect this. Until then the socket is in use.
    let registered = async |client: &mut IndexerClient<Channel>, engine: &Engine| {
        within(async {
            loop {
                match client.register_worker(engine.worker("pod-b", "kv@a")).await {
                    Ok(registered) => break assert!(registered.into_inner().created),
                    Err(status) => assert_eq!(status.code(), Code::FailedPrecondition, "{status}"),
                }
                sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    };
    let mut engine = Engine::at(&endpoint).await;
    registered(&mut client, &engine).await;
    let names: Vec<_> = workers(&mut client).await.into_iter().map(|at| at.worker_id).collect();
    assert_eq!(names, ["pod-b", "pod-c"]);
    let nothing = [("pod-b".to_owned(), 0, 0), ("pod-c".to_owned(), 0, 0)];
    assert_eq!(listed(&mut client).await, nothing, "nothing is inherited");
    let expected = [("pod-b", 0, 1), ("pod-c", 0, 0)];
    publish_until(&mut engine, &mut client, batch(), &expected).await;
    // A healthy worker is replaced only on request.
    let request = pb::RegisterWorkerRequest { take_over: true, ..engine.worker("pod-d", "kv@a@m") };
    client.register_worker(request).await.expect("it takes over");
    let names: Vec<_> = workers(&mut client).await.into_iter().map(|at| at.worker_id).collect();
    assert_eq!(names, ["pod-c", "pod-d"]);
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn batches_of_a_topic_that_begins_alike_are_skipped_and_counted() {
    let mut engine = Engine::begin().await;
    let worker = format!(
        "--worker=id=w,model=m,block-size={BLOCK_SIZE},engine=vllm,endpoint={},topic=kv@10.0.0.1",
        engine.endpoint
    );
    let server = Server::start(&[&worker]).await;
    let mut client = server.indexer().await;
    let skipped = "kvasir_batches_total{outcome=\"other_topic\"} ";
    let count = async || {
        let metrics = server.http("/metrics").await.1;
        let line = metrics.lines().find_map(|line| line.strip_prefix(skipped)).map(str::to_owned);
        line.expect("a counter").parse::<u64>().expect("a number")
    };
    within(async {
        while count().await == 0 {
            engine.publish("kv@10.0.0.12:8000@m", &json!(0), &[block()]).await;
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(listed(&mut client).await, [("w".to_owned(), 0, 0)]);
    let own = ("kv@10.0.0.1:8000@m", json!(0), block());
    publish_until(&mut engine, &mut client, own, &[("w", 0, 1)]).await;
    within(async {
        while workers(&mut client).await[0].sources[0].state() != pb::WorkerState::Degraded {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    server.stop().await.expect("a clean stop");
}
