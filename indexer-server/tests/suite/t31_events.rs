//! What an engine says of its blocks, from its socket to an answer.

use crate::{
    harness::{BLOCK_SIZE, Server, within},
    t30_engine::send,
};
use kvasir_proto::pb::{self, indexer_client::IndexerClient};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tonic::transport::Channel;
use zeromq::{PubSocket, Socket};

const TOKENS: [u32; 4] = [1, 2, 3, 4];

fn write(value: &Value, out: &mut Vec<u8>) {
    let unwritten = "a Vec takes everything";
    let length = |length: usize| u32::try_from(length).expect("few");
    match value {
        Value::Null => rmp::encode::write_nil(out).expect(unwritten),
        Value::Bool(flag) => rmp::encode::write_bool(out, *flag).expect(unwritten),
        Value::Number(number) => {
            rmp::encode::write_uint(out, number.as_u64().expect("no sign")).expect(unwritten);
        }
        Value::String(text) => rmp::encode::write_str(out, text).expect(unwritten),
        Value::Array(members) => {
            rmp::encode::write_array_len(out, length(members.len())).expect(unwritten);
            members.iter().for_each(|member| write(member, out));
        }
        Value::Object(entries) => {
            rmp::encode::write_map_len(out, length(entries.len())).expect(unwritten);
            for (key, value) in entries {
                rmp::encode::write_str(out, key).expect(unwritten);
                write(value, out);
            }
        }
    }
}

/// Blocks whose tokens are always the same, with further fields.
fn stored(name: u64, fields: &Value) -> Value {
    let mut event = json!({
        "type": "BlockStored",
        "block_hashes": [name],
        "parent_block_hash": null,
        "token_ids": TOKENS,
        "block_size": BLOCK_SIZE,
    });
    let more = fields.as_object().expect("an object").clone();
    event.as_object_mut().expect("an object").extend(more);
    event
}

fn removed(name: u64, group: u64) -> Value {
    json!({"type": "BlockRemoved", "block_hashes": [name], "medium": "GPU", "group_idx": group})
}

/// An engine and the server that follows it.
struct Scene {
    engine: PubSocket,
    server: Server,
    client: IndexerClient<Channel>,
    /// Number of the next batch.
    sequence: u64,
}

impl Scene {
    /// The worker is configured with these further keys. Its cache is known to be empty.
    async fn begin(keys: &str) -> Self {
        let mut engine = PubSocket::new();
        let endpoint = engine.bind("tcp://127.0.0.1:0").await.expect("a free port").to_string();
        let worker = format!(
            "--worker=id=w,model=m,block-size={BLOCK_SIZE},engine=vllm,endpoint={endpoint}{keys}"
        );
        let server = Server::start(&[&worker]).await;
        let client = server.indexer().await;
        let mut scene = Self { engine, server, client, sequence: 0 };
        // Slow joiners miss messages: the cache is cleared until that is heard.
        within(async {
            while scene.state().await != pb::WorkerState::Exact {
                scene.publish(&[json!({"type": "AllBlocksCleared"})]).await;
                sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        scene
    }

    async fn publish(&mut self, events: &[Value]) {
        let mut payload = Vec::new();
        write(&json!([1, events, 0]), &mut payload);
        send(&mut self.engine, self.sequence, payload).await;
        self.sequence += 1;
    }

    /// Blocks of the prompt that the worker holds, as it is asked for with an adapter, and how far that
    /// can be trusted.
    async fn ask(&mut self, lora_name: &str) -> (u32, pb::WorkerState) {
        let request = pb::FindMatchesRequest {
            model: "m".to_owned(),
            token_ids: TOKENS.to_vec(),
            lora_name: lora_name.to_owned(),
            minimum_overlap_blocks: Some(0),
            ..Default::default()
        };
        let answer = self.client.find_matches(request).await.expect("a valid query").into_inner();
        let [found] = &answer.matches[..] else { panic!("one worker: {answer:?}") };
        (found.matched_blocks, found.state())
    }

    async fn state(&mut self) -> pb::WorkerState {
        self.ask("").await.1
    }

    /// Waits until all that was published is in the index.
    async fn applied(&mut self) {
        within(async {
            loop {
                let request = pb::ListWorkersRequest::default();
                let list = self.client.list_workers(request).await.expect("a list").into_inner();
                let applied = list.workers[0].sources[0].applied.as_ref().map(|at| at.sequence);
                if applied.is_some_and(|applied| applied + 1 == self.sequence) {
                    break;
                }
                sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    async fn end(self) {
        self.server.stop().await.expect("a clean stop");
    }
}

#[tokio::test]
async fn adapter_0_is_none_and_configured_names_are_used() {
    let mut scene = Scene::begin(",lora.7=sql").await;
    scene.publish(&[stored(1, &json!({"lora_id": 0}))]).await;
    scene.applied().await;
    assert_eq!(scene.ask("").await, (1, pb::WorkerState::Exact));
    assert_eq!(scene.ask("sql").await.0, 0);
    scene.publish(&[stored(2, &json!({"lora_id": 7}))]).await;
    scene.applied().await;
    assert_eq!(scene.ask("sql").await, (1, pb::WorkerState::Exact));
    scene.end().await;
}

#[tokio::test]
async fn an_unknown_kind_of_the_main_group_leaves_no_block_behind() {
    let mut scene = Scene::begin("").await;
    let main = json!({"group_idx": 0, "kv_cache_spec_kind": "full_attention"});
    scene.publish(&[stored(1, &main)]).await;
    scene.applied().await;
    assert_eq!(scene.ask("").await, (1, pb::WorkerState::Exact));
    scene.publish(&[stored(2, &json!({"group_idx": 0, "kv_cache_spec_kind": "unknown"}))]).await;
    scene.publish(&[removed(1, 0)]).await;
    scene.applied().await;
    // Block 2 is missing, and that is said.
    assert_eq!(scene.ask("").await, (0, pb::WorkerState::Partial));
    scene.publish(&[stored(3, &main)]).await;
    scene.applied().await;
    assert_eq!(scene.ask("").await, (1, pb::WorkerState::Partial));
    scene.publish(&[json!({"type": "AllBlocksCleared"})]).await;
    scene.applied().await;
    assert_eq!(scene.ask("").await, (0, pb::WorkerState::Exact));
    scene.end().await;
}

#[tokio::test]
async fn blocks_that_were_taken_for_the_main_groups_are_doubted() {
    let mut scene = Scene::begin("").await;
    scene.publish(&[stored(1, &json!({"group_idx": 0}))]).await;
    scene.applied().await;
    assert_eq!(scene.ask("").await, (1, pb::WorkerState::Exact));
    let main = json!({"group_idx": 1, "kv_cache_spec_kind": "full_attention"});
    scene.publish(&[stored(2, &main)]).await;
    within(async {
        while scene.state().await != pb::WorkerState::Degraded {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    scene.end().await;
}

/// LMCache says what it puts on the CPU, and never what it evicts there.
#[tokio::test]
async fn blocks_on_a_medium_that_never_removes_leave_after_their_time() {
    const TTL: Duration = Duration::from_secs(4);
    let mut scene = Scene::begin(",ttl.cpu=4s").await;
    let published = Instant::now();
    scene.publish(&[stored(1, &json!({"medium": "CPU"}))]).await;
    scene.applied().await;
    assert_eq!(scene.ask("").await, (1, pb::WorkerState::Exact));
    within(async {
        while scene.ask("").await.0 > 0 {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert!(published.elapsed() >= TTL, "{:?}", published.elapsed());
    assert_eq!(scene.state().await, pb::WorkerState::Exact);
    // Other media are as ever, and so is the cursor.
    scene.publish(&[stored(1, &json!({"medium": "GPU"}))]).await;
    scene.publish(&[stored(1, &json!({"medium": "CPU"}))]).await;
    scene.applied().await;
    within(async {
        loop {
            let (_, metrics) = scene.server.http("/metrics").await;
            if metrics.contains("kvasir_expired_blocks_total{reason=\"ttl\"} 2\n") {
                break;
            }
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_eq!(scene.ask("").await, (1, pb::WorkerState::Exact));
    scene.end().await;
}
