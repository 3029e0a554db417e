//! Events of an engine, from its socket to an answer.

use crate::harness::{BLOCK_SIZE, Server, within};
use crate::t30_engine::send;
use kvasir_proto::pb;
use kvasir_proto::pb::indexer_client::IndexerClient;
use serde_json::{Value, json};
use std::ops::Range;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tonic::transport::Channel;
use zeromq::{PubSocket, Socket};

pub(crate) const TOKENS: [u32; 4] = [1, 2, 3, 4];

pub(crate) fn write(value: &Value, out: &mut Vec<u8>) {
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

/// Blocks with always the same tokens, and further fields.
pub(crate) fn stored(name: u64, fields: &Value) -> Value {
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
    /// Starts with a worker that is configured with these further keys. Its cache is known to be empty.
    async fn begin(keys: &str) -> Self {
        let mut engine = PubSocket::new();
        let endpoint = engine.bind("tcp://127.0.0.1:0").await.expect("a free port").to_string();
        let worker = format!(
            "--worker=id=w,model=m,block-size={BLOCK_SIZE},engine=vllm,endpoint={endpoint}{keys}"
        );
        let server = Server::start(&[&worker]).await;
        let client = server.indexer().await;
        let mut scene = Self { engine, server, client, sequence: 0 };
        // Slow joiners miss messages, so the cache is cleared until one clear arrives.
        within(async {
            while !matches!(scene.state().await, pb::WorkerState::Exact | pb::WorkerState::Partial)
            {
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

    /// Matched blocks of the prompt for an adapter, and the worker's state.
    async fn ask(&mut self, lora_name: &str) -> (u32, pb::WorkerState) {
        let lora_name = lora_name.to_owned();
        let request =
            pb::FindMatchesRequest { token_ids: TOKENS.to_vec(), lora_name, ..Default::default() };
        let found = self.find(request).await;
        (found.matched_blocks, found.state())
    }

    /// The worker's match of a prompt.
    async fn find(&mut self, request: pb::FindMatchesRequest) -> pb::WorkerMatch {
        let model = "m".to_owned();
        let minimum_overlap_blocks = Some(0);
        let request = pb::FindMatchesRequest { model, minimum_overlap_blocks, ..request };
        let answer = self.client.find_matches(request).await.expect("a valid query").into_inner();
        let [found] = &answer.matches[..] else { panic!("one worker: {answer:?}") };
        found.clone()
    }

    /// Matched blocks of a prompt, on the device and in host memory, and the worker's state.
    async fn ask_tiers(&mut self, token_ids: Range<u32>) -> (u32, u32, u32, pb::WorkerState) {
        let token_ids = token_ids.collect();
        let found = self.find(pb::FindMatchesRequest { token_ids, ..Default::default() }).await;
        let tiers = found.blocks_by_tier.unwrap_or_default();
        (found.matched_blocks, tiers.device, tiers.host, found.state())
    }

    async fn state(&mut self) -> pb::WorkerState {
        self.ask("").await.1
    }

    /// Waits until all published events are in the index.
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
    // Block 2 is missing, and the state reports it.
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

/// LMCache announces blocks that it puts on the CPU, but not their eviction.
#[tokio::test]
async fn blocks_on_a_medium_that_never_removes_leave_after_their_time() {
    const TTL: Duration = Duration::from_secs(4);
    let mut scene = Scene::begin(",ttl.cpu=4s").await;
    let published = Instant::now();
    scene.publish(&[stored(1, &json!({"medium": "CPU", "extra_keys": [null]}))]).await;
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
    // Other media and the cursor are unaffected.
    scene.publish(&[stored(1, &json!({"medium": "GPU"}))]).await;
    scene.publish(&[stored(1, &json!({"medium": "CPU", "extra_keys": [null]}))]).await;
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

/// One block of a prompt of the tokens 0, 1, 2 and so on, on a medium.
fn nth(at: u64, medium: &str) -> Value {
    let tokens = u64::from(BLOCK_SIZE);
    let parent = at.checked_sub(1).map(|before| before + 100);
    let ids: Vec<u64> = (at * tokens..(at + 1) * tokens).collect();
    let fields = json!({"parent_block_hash": parent, "token_ids": ids, "medium": medium, "extra_keys": [null]});
    stored(at + 100, &fields)
}

/// vLLM's offloading connector announces blocks, and loads chunks.
#[tokio::test]
async fn blocks_on_a_medium_with_chunks_count_by_complete_chunks() {
    const EXACT: pb::WorkerState = pb::WorkerState::Exact;
    let mut scene = Scene::begin(",connector-chunk.CPU=2").await;
    let all = 0..4 * BLOCK_SIZE;
    scene.publish(&[nth(0, "CPU")]).await;
    scene.applied().await;
    assert_eq!(scene.ask_tiers(all.clone()).await, (0, 0, 0, EXACT));
    scene.publish(&[nth(1, "CPU"), nth(2, "CPU")]).await;
    scene.applied().await;
    assert_eq!(scene.ask_tiers(all.clone()).await, (2, 0, 2, EXACT));
    assert_eq!(scene.ask_tiers(0..BLOCK_SIZE).await, (0, 0, 0, EXACT));
    // Blocks on the device count one by one.
    scene.publish(&[nth(0, "GPU"), nth(1, "GPU"), nth(2, "GPU")]).await;
    scene.applied().await;
    assert_eq!(scene.ask_tiers(all.clone()).await, (3, 3, 2, EXACT));
    scene.publish(&[nth(3, "CPU")]).await;
    scene.applied().await;
    assert_eq!(scene.ask_tiers(all).await, (4, 3, 4, EXACT));
    scene.end().await;
}

/// LMCache 0.5.6: a chunk of two blocks under one hash, with one token too many.
fn chunk(name: u64, parent: Option<u64>, from: u32) -> Value {
    let ids: Vec<u32> = (from..=from + 2 * BLOCK_SIZE).collect();
    let size = 2 * BLOCK_SIZE;
    let fields =
        json!({"parent_block_hash": parent, "token_ids": ids, "block_size": size, "medium": "cpu"});
    stored(name, &fields)
}

#[tokio::test]
async fn chunks_under_one_hash_count_where_their_size_is_stated() {
    let mut scene = Scene::begin(",connector-chunk.cpu=2").await;
    let all = 0..5 * BLOCK_SIZE;
    scene.publish(&[chunk(7, None, 0), chunk(8, Some(7), 2 * BLOCK_SIZE)]).await;
    scene.applied().await;
    assert_eq!(scene.ask_tiers(all.clone()).await, (4, 0, 4, pb::WorkerState::Exact));
    let removal = json!({"type": "BlockRemoved", "block_hashes": [8], "medium": "cpu"});
    scene.publish(&[removal]).await;
    scene.applied().await;
    assert_eq!(scene.ask_tiers(all.clone()).await, (2, 0, 2, pb::WorkerState::Exact));
    // Parent 0 means an unknown parent, not the start of a prompt.
    scene.publish(&[chunk(9, Some(0), 500)]).await;
    scene.applied().await;
    assert_eq!(scene.ask_tiers(all).await, (2, 0, 2, pb::WorkerState::Partial));
    assert_eq!(scene.ask_tiers(500..500 + 2 * BLOCK_SIZE).await.0, 0);
    scene.end().await;
}

#[tokio::test]
async fn chunks_of_an_unstated_size_make_the_worker_partial() {
    let mut scene = Scene::begin("").await;
    scene.publish(&[nth(0, "GPU"), chunk(7, None, 0)]).await;
    scene.applied().await;
    let all = 0..2 * BLOCK_SIZE;
    assert_eq!(scene.ask_tiers(all.clone()).await, (1, 1, 0, pb::WorkerState::Partial));
    let token_ids = all.collect();
    let request = pb::FindMatchesRequest { token_ids, explain: true, ..Default::default() };
    let found = scene.find(request).await;
    let [reason] = &found.reasons[..] else { panic!("one reason: {found:?}") };
    assert_eq!(reason.reason(), pb::Reason::BlockSize);
    assert_eq!(reason.example, "block_size=8 medium=cpu");
    scene.end().await;
}

/// Blocks `at` of the prompt 0, 1, 2 and so on in a sliding-window group of two blocks and one token.
fn in_window(at: &[u64]) -> Value {
    let names: Vec<u64> = at.iter().map(|at| at + 100).collect();
    let ids: Vec<u32> = (0..4 * BLOCK_SIZE).collect();
    let window = 2 * BLOCK_SIZE + 1;
    stored(
        0,
        &json!({"block_hashes": names, "token_ids": ids, "medium": "GPU", "group_idx": 1,
            "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": window,
            "extra_keys": null}),
    )
}

fn in_main_group(at: u64) -> Value {
    let mut event = nth(at, "GPU");
    event["group_idx"] = json!(0);
    event["kv_cache_spec_kind"] = json!("full_attention");
    event
}

#[tokio::test]
async fn a_match_is_what_every_group_serves() {
    let mut scene = Scene::begin("").await;
    let full: Vec<Value> = (0..4).map(in_main_group).collect();
    scene.publish(&[full, vec![in_window(&[1, 2])]].concat()).await;
    scene.applied().await;
    let tokens = u64::from(BLOCK_SIZE);
    let prompt = |blocks: u32, more: u32| pb::FindMatchesRequest {
        token_ids: (0..blocks * BLOCK_SIZE + more).collect(),
        ..Default::default()
    };
    let counts = |at: &pb::WorkerMatch| {
        (at.matched_blocks, at.reusable_tokens, at.main_group_blocks, at.state())
    };
    let exact = pb::WorkerState::Exact;
    // The window is held at the end of block 2 only.
    let found = scene.find(prompt(4, 1)).await;
    assert_eq!(counts(&found), (3, 3 * tokens, 4, exact));
    assert_eq!(found.matched_tokens, 3 * tokens);
    // A prompt that ends there computes its last token, where nothing shorter can be resumed.
    assert_eq!(counts(&scene.find(prompt(3, 0)).await), (3, 0, 3, exact));
    // By the engine's hashes, with the prompt's length and without.
    let by_names = |prompt_tokens| pb::FindMatchesRequest {
        sequence_hashes: (100..103).collect(),
        prompt_tokens,
        ..Default::default()
    };
    assert_eq!(counts(&scene.find(by_names(Some(3 * BLOCK_SIZE))).await), (3, 0, 3, exact));
    assert_eq!(counts(&scene.find(by_names(None)).await), (3, 3 * tokens, 3, exact));
    let removal = json!({"type": "BlockRemoved", "block_hashes": [101], "group_idx": 1});
    scene.publish(&[removal]).await;
    scene.applied().await;
    assert_eq!(counts(&scene.find(prompt(4, 1)).await), (0, 0, 4, exact));
    scene.end().await;
}

#[tokio::test]
async fn facts_about_the_engine_limit_a_match() {
    let mut scene = Scene::begin(",eagle-drops-block=true").await;
    scene.publish(&[nth(0, "GPU"), nth(1, "GPU")]).await;
    scene.applied().await;
    let token_ids = (0..3 * BLOCK_SIZE).collect();
    let found = scene.find(pb::FindMatchesRequest { token_ids, ..Default::default() }).await;
    assert_eq!((found.matched_blocks, found.main_group_blocks), (1, 2));
    scene.end().await;
    // SGLang with sliding windows announces full attention alone.
    let mut scene = Scene::begin(",unannounced-groups=true").await;
    scene.publish(&[nth(0, "GPU")]).await;
    scene.applied().await;
    let token_ids = (0..BLOCK_SIZE).collect();
    let request = pb::FindMatchesRequest { token_ids, explain: true, ..Default::default() };
    let found = scene.find(request).await;
    assert_eq!((found.state(), found.may_be_high), (pb::WorkerState::Partial, true));
    assert_eq!(found.reasons[0].reason(), pb::Reason::UnannouncedGroups);
    scene.end().await;
}
