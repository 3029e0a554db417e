//! Many clients at two engines: some leave, some have a prompt computed by one engine for the other.

use crate::harness::{Streaming, config, post, start, until_idle};
use futures::stream::{FuturesUnordered, StreamExt};
use kvasir_sim::engine::Truth;
use kvasir_sim::engine::openai::EngineServer;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;

/// Requests of a run.
const REQUESTS: usize = 300;
/// Requests at a time.
const CONCURRENCY: usize = 24;
/// Seeds of the runs.
pub(crate) const SEEDS: [u64; 2] = [1, 2];

/// Two engines with room for some requests: they wait, and evict each other's blocks.
pub(crate) async fn engines() -> [EngineServer; 2] {
    let mut small = config();
    small.live.engine.capacity_blocks = 250;
    small.live.running_max = 8;
    small.live.step_tokens_max = 64;
    small.live.hold_timeout = Duration::from_millis(200);
    small.live.model.step = 500_000;
    [start(small.clone()).await, start(small).await]
}

/// Runs all requests to their ends, early or not.
pub(crate) async fn drive(engines: &[EngineServer; 2], seed: u64) {
    println!("seed {seed}");
    let at = [engines[0].address(), engines[1].address()];
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut clients = FuturesUnordered::new();
    for _ in 0..REQUESTS {
        if clients.len() == CONCURRENCY {
            clients.next().await;
        }
        clients.push(client(at, ChaCha8Rng::seed_from_u64(rng.random())));
    }
    while clients.next().await.is_some() {}
}

/// What an engine holds once it is idle; its pool is sound.
pub(crate) async fn settled(engine: &EngineServer) -> Truth {
    until_idle(engine.address()).await;
    engine.engine().validate().await.expect("a sound pool");
    let truth = engine.engine().truth().await.expect("an engine");
    assert!(truth.copies.len() > 50, "it holds {} blocks", truth.copies.len());
    truth
}

/// A client: sends one request, and may leave after some tokens.
async fn client(at: [SocketAddr; 2], mut rng: ChaCha8Rng) {
    let family = rng.random_range(0..6_u32) * 10_000;
    let len = rng.random_range(1..200);
    let shared = rng.random_range(0..=len);
    let own = rng.random_range(100_000..1_000_000);
    let prompt: Vec<u32> = (family..family + shared).chain(own..own + len - shared).collect();
    let mut params = Value::Null;
    if rng.random_bool(0.3) {
        let body = json!({"prompt": prompt, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": true}});
        let (_, mut prefilled) = post(at[0], "/v1/completions", body.to_string()).await;
        params = prefilled["kv_transfer_params"].take();
    }
    let max_tokens = rng.random_range(1..60);
    let body = json!({
        "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": true, "stream": true, "kv_transfer_params": params,
    });
    let engine = if params.is_null() { rng.random_range(0..2) } else { 1 };
    let mut streaming = Streaming::post(at[engine], "/v1/completions", &body).await;
    let patience = if rng.random_bool(0.4) { rng.random_range(0..30) } else { usize::MAX };
    for _ in 0..patience {
        if streaming.event().await.is_none() {
            break;
        }
    }
}
