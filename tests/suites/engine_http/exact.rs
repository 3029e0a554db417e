//! An index that hears the events holds what the engines hold, whoever leaves, and wherever blocks come from.

use crate::harness::{BLOCK, MODEL, PATIENCE, Streaming, config, start};
use futures::stream::{FuturesUnordered, StreamExt};
use kvasir_tests::client::{self, Indexer};
use kvasir_tests::engine::openai::EngineServer;
use kvasir_tests::server::Server;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use std::net::SocketAddr;

/// Requests of a run.
const REQUESTS: usize = 300;
/// Requests at a time.
const CONCURRENCY: usize = 24;
/// Seeds of the runs.
const SEEDS: [u64; 2] = [1, 2];

/// A client: sends one request, and may leave after some tokens.
async fn client(at: [SocketAddr; 2], mut rng: ChaCha8Rng) {
    let (family, len) = (rng.random_range(0..6_u32) * 10_000, rng.random_range(1..200));
    let shared = rng.random_range(0..=len);
    let own = rng.random_range(100_000..1_000_000);
    let prompt: Vec<u32> = (family..family + shared).chain(own..own + len - shared).collect();
    let mut params = Value::Null;
    if rng.random_bool(0.3) {
        let body = json!({"prompt": prompt, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": true}});
        let (_, mut prefilled) =
            crate::harness::post(at[0], "/v1/completions", body.to_string()).await;
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

async fn check(indexer: &mut Indexer, worker: &str, engine: &EngineServer) {
    crate::harness::until_idle(engine.address()).await;
    engine.engine().validate().await.expect("a sound pool");
    let truth = engine.engine().truth().await.expect("an engine");
    let last = truth.last_sequence.expect("it has published");
    client::wait_until_exact_at(indexer, (MODEL, worker), last, PATIENCE).await.expect("exact");
    let held = client::dump_device_copies(indexer, MODEL, worker).await.expect("a dump");
    assert!(held.len() > 50, "{worker} holds {} blocks", held.len());
    assert_eq!(held, truth.copies, "{worker}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_holds_what_engines_hold_after_requests_that_end_early() {
    let mut server = Server::start_anywhere().await.expect("a server");
    let mut indexer = client::connect(server.addresses.grpc).await.expect("a client");
    for seed in SEEDS {
        println!("seed {seed}");
        let mut small = config();
        // Room for some requests: they wait, and evict each other's blocks.
        small.live.engine.capacity_blocks = 250;
        small.live.running_max = 8;
        small.live.step_tokens_max = 64;
        small.live.hold_timeout = std::time::Duration::from_millis(200);
        small.live.model.step = 500_000;
        let engines = [start(small.clone()).await, start(small).await];
        let names = [0, 1].map(|number| format!("{seed}-{number}"));
        for (name, engine) in names.iter().zip(&engines) {
            let at = engine.engine().endpoints();
            let endpoints = (at.live.as_str(), at.replay.as_str());
            client::register_endpoints(&mut indexer, (MODEL, name), BLOCK, endpoints)
                .await
                .expect("a worker");
        }
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
        for (name, engine) in names.iter().zip(&engines) {
            check(&mut indexer, name, engine).await;
        }
        for engine in engines {
            engine.stop().await.expect("an end");
        }
    }
    server.stop().await.expect("an end");
}
