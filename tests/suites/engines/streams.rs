//! Recorded streams of vLLM 0.33's block manager: at every snapshot of the engine's own state the
//! index holds just what the engine holds in its main attention group, and just the same when an agent
//! relays the stream.

use crate::harness::Fleet;
use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use flate2::read::GzDecoder;
use kvasir_engine::decode::EngineKind;
use kvasir_proto::pb;
use kvasir_sim::engine::WireForm;
use kvasir_sim::engine::publisher::{Endpoints, EpochForm, Publisher, PublisherConfig};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;

const BLOCK_SIZE: u32 = 16;
const MAIN_GROUP: &str = "0";

#[derive(Deserialize)]
struct Frame {
    worker: u32,
    seq: u64,
    payload: String,
}

#[derive(Deserialize)]
struct State {
    groups: BTreeMap<String, BTreeSet<u64>>,
}

#[derive(Deserialize)]
struct Snapshot {
    worker: u32,
    seq: u64,
    groups: BTreeMap<String, BTreeSet<u64>>,
}

/// One worker's part of a recording.
#[derive(Default)]
struct Recording {
    payloads: Vec<Vec<u8>>,
    /// The engine's state after batch `seq`.
    states: BTreeMap<u64, State>,
}

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("data/engine-streams").join(name)
}

fn load(name: &str) -> Result<BTreeMap<u32, Recording>> {
    let mut workers: BTreeMap<u32, Recording> = BTreeMap::new();
    let frames = fs::File::open(data(&format!("{name}.frames.jsonl.gz")))?;
    for line in BufReader::new(GzDecoder::new(frames)).lines() {
        let frame: Frame = serde_json::from_str(&line?)?;
        let recording = workers.entry(frame.worker).or_default();
        ensure!(frame.seq == recording.payloads.len() as u64, "frames are in order");
        let payload = base64::engine::general_purpose::STANDARD.decode(&frame.payload)?;
        recording.payloads.push(payload);
    }
    for line in fs::read_to_string(data(&format!("{name}.truth.json.snaps.jsonl")))?.lines() {
        let Snapshot { worker, seq, groups } = serde_json::from_str(line)?;
        let recording = workers.get_mut(&worker).context("a recorded worker")?;
        recording.states.insert(seq, State { groups });
    }
    let ends: BTreeMap<u32, State> =
        serde_json::from_str(&fs::read_to_string(data(&format!("{name}.truth.json")))?)?;
    for (worker, end) in ends {
        let recording = workers.get_mut(&worker).context("a recorded worker")?;
        recording.states.insert(recording.payloads.len() as u64 - 1, end);
    }
    Ok(workers)
}

/// The worker that an agent feeds from the engine of another.
fn agent_of(id: &str) -> String {
    format!("{id}-by-agent")
}

async fn check(name: &str, snapshots: usize) -> Result<()> {
    let mut fleet = Fleet::start().await?;
    let recordings = load(name)?;
    let mut publishers = Vec::new();
    for worker in recordings.keys() {
        let config = PublisherConfig {
            topic: "kv-events".to_owned(),
            buffer_batches: 10_000,
            form: WireForm::Map,
            epoch: EpochForm::None,
        };
        let publisher = Publisher::bind(config, &Endpoints::any()).await?;
        let Endpoints { live, replay } = publisher.endpoints().clone();
        let id = format!("vllm-{worker}");
        fleet.register(&id, pb::Engine::Vllm, BLOCK_SIZE, (&live, &replay)).await?;
        let sockets = (&*live, &*replay);
        let agent = agent_of(&id);
        let relayed = fleet.relay(EngineKind::Vllm, BLOCK_SIZE, sockets, &agent).await?;
        publishers.push((publisher, relayed));
    }
    let mut checked = 0;
    for ((worker, recording), (publisher, relayed)) in recordings.into_iter().zip(&mut publishers) {
        let id = format!("vllm-{worker}");
        for (seq, payload) in (0..).zip(recording.payloads) {
            publisher.publish(payload).await?;
            if let Some(state) = recording.states.get(&seq) {
                fleet.wait_exact(&id, seq).await?;
                compare(&mut fleet, &id, seq, state).await?;
                relayed.wait_exact(seq).await?;
                compare(&mut fleet, &agent_of(&id), seq, state).await?;
                fleet.ensure_equal(&id, &agent_of(&id)).await?;
                checked += 1;
            }
        }
    }
    ensure!(checked == snapshots, "{name}: compared {checked} states");
    fleet.stop().await;
    Ok(())
}

async fn compare(fleet: &mut Fleet, id: &str, seq: u64, state: &State) -> Result<()> {
    let truth = &state.groups[MAIN_GROUP];
    let held = fleet.held(id).await?;
    let missing = truth.difference(&held).count();
    let phantom = held.difference(truth).count();
    ensure!(
        missing == 0 && phantom == 0,
        "{id} after batch {seq}: {missing} of {} blocks missing, {phantom} phantoms",
        truth.len()
    );
    // A block that only another group holds is in no answer.
    let others = state.groups.iter().filter(|(group, _)| *group != MAIN_GROUP);
    for name in others.flat_map(|(_, names)| names.difference(truth)).take(20) {
        let request = pb::FindMatchesRequest {
            sequence_hashes: vec![*name],
            ..pb::FindMatchesRequest::default()
        };
        let found = fleet.find(request).await?;
        ensure!(found.iter().all(|(worker, _)| worker != id), "{name:x} leaked: {found:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_stream_equals_the_engine() -> Result<()> {
    check("small-plain", 8).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_with_second_copies_equals_the_engine() -> Result<()> {
    check("small-dup", 12).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_with_a_sliding_window_group_equals_the_engine() -> Result<()> {
    check("small-swa", 8).await
}
