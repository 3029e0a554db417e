//! One engine computes prompts, another one fetches their blocks and answers.

use crate::harness::{MODEL, config, get, metric, post, start, until_idle};
use kvasir_sim::engine::openai::remote::LoadFailure;
use kvasir_sim::engine::openai::{EngineServer, ServerConfig};
use serde_json::{Value, json};
use std::time::Duration;

/// Ten blocks.
fn prompt() -> Vec<u32> {
    (1_000..1_040).collect()
}

/// The answer of an engine that computes the prompt for another one.
async fn prefill(engine: &EngineServer) -> (u16, Value) {
    let params = json!({"do_remote_decode": true, "do_remote_prefill": false});
    let body =
        json!({"model": MODEL, "prompt": prompt(), "max_tokens": 1, "kv_transfer_params": params});
    post(engine.address(), "/v1/completions", body.to_string()).await
}

async fn decode(engine: &EngineServer, params: &Value) -> (u16, Value) {
    let body = json!({"prompt": prompt(), "max_tokens": 6, "kv_transfer_params": params});
    post(engine.address(), "/v1/completions", body.to_string()).await
}

fn cached(answer: &Value) -> u64 {
    let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    cached.as_u64().unwrap_or_else(|| panic!("no cached tokens in {answer}"))
}

#[tokio::test]
async fn blocks_of_one_engine_come_to_another_which_computes_one_token() {
    let first = start(config()).await;
    let second = start(config()).await;
    let (status, prefilled) = prefill(&first).await;
    let params = &prefilled["kv_transfer_params"];
    assert_eq!(status, 200, "{prefilled}");
    assert_eq!(
        (&params["do_remote_prefill"], &params["do_remote_decode"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(params["remote_block_ids"].as_array().map(Vec::len), Some(10));
    assert_eq!(params["remote_port"], first.address().port());
    let (_, text) = get(first.address(), "/metrics").await;
    assert_eq!(metric(&text, "vllm:kv_cache_usage_perc"), 0.01, "the blocks are held");
    let (status, answer) = decode(&second, params).await;
    assert_eq!((status, cached(&answer)), (200, 39), "{answer}");
    assert!(answer["kv_transfer_params"].is_null());
    // Both have the ten blocks; the answer's five computed tokens fill one more.
    let truths = [first.engine().truth().await, second.engine().truth().await];
    let lens = truths.map(|truth| truth.expect("an engine").copies.len());
    assert_eq!(lens, [10, 11]);
    let (_, text) = get(second.address(), "/metrics").await;
    assert_eq!(metric(&text, "vllm:external_prefix_cache_hits_total"), 39.0);
    // The first one lets go of its blocks, and keeps them in its cache.
    until_idle(first.address()).await;
    // Another time, nothing needs to be fetched but the tokens of the last block.
    let (_, prefilled) = prefill(&first).await;
    assert_eq!(cached(&prefilled), 36);
    let (_, answer) = decode(&second, &prefilled["kv_transfer_params"]).await;
    assert_eq!(cached(&answer), 39);
    for engine in [first, second] {
        engine.stop().await.expect("an end");
    }
}

#[tokio::test]
async fn a_transfer_takes_its_time() {
    let mut slow = config();
    slow.live.transfer.begin = 100_000_000;
    let first = start(config()).await;
    let second = start(slow).await;
    let (_, prefilled) = prefill(&first).await;
    let begin = tokio::time::Instant::now();
    decode(&second, &prefilled["kv_transfer_params"]).await;
    assert!(begin.elapsed() >= Duration::from_millis(100), "{:?}", begin.elapsed());
    for engine in [first, second] {
        engine.stop().await.expect("an end");
    }
}

#[tokio::test]
async fn blocks_that_nobody_fetches_are_released() {
    let mut short = config();
    short.live.hold_timeout = Duration::from_millis(30);
    let first = start(short).await;
    let second = start(config()).await;
    let (_, prefilled) = prefill(&first).await;
    until_idle(first.address()).await;
    let (status, answer) = decode(&second, &prefilled["kv_transfer_params"]).await;
    assert_eq!((status, cached(&answer)), (200, 0), "it computes the prompt itself");
    for engine in [first, second] {
        engine.stop().await.expect("an end");
    }
}

#[tokio::test]
async fn parameters_that_name_no_blocks_are_computed_or_refused() {
    let strict = ServerConfig { load_failure: LoadFailure::Fail, ..config() };
    let first = start(config()).await;
    let second = start(strict).await;
    let (_, prefilled) = prefill(&first).await;
    let good = &prefilled["kv_transfer_params"];
    let wrong = |field: &str, value: Value| {
        let mut params = good.clone();
        params[field] = value;
        params
    };
    for (params, message) in [
        (wrong("remote_request_id", json!("77")), "does not hold request 77"),
        (wrong("remote_engine_id", json!("other")), "does not hold request"),
        (wrong("remote_host", json!(null)), "remote_host is missing"),
        (wrong("remote_port", json!(1)), "connect"),
    ] {
        let (status, error) = decode(&second, &params).await;
        let text = error["error"]["message"].as_str().unwrap_or_default();
        assert_eq!(status, 500, "{message}");
        assert!(text.contains(message), "{message}: {text}");
        assert_eq!(decode(&first, &params).await.0, 200, "{message}: the other policy");
    }
    // Blocks of another prompt are none of this one.
    let body = json!({"prompt": [1, 2, 3], "max_tokens": 1, "kv_transfer_params": good});
    let (status, error) = post(second.address(), "/v1/completions", body.to_string()).await;
    let text = error["error"]["message"].as_str().unwrap_or_default();
    assert!(status == 500 && text.contains("has another prompt"), "{status}: {text}");
    for engine in [first, second] {
        engine.stop().await.expect("an end");
    }
}

#[tokio::test]
async fn prefills_fail_when_they_are_told_to() {
    let engine = start(ServerConfig { prefills_max: Some(2), ..config() }).await;
    let mut statuses = Vec::new();
    for _ in 0..4 {
        statuses.push(prefill(&engine).await.0);
    }
    assert_eq!(statuses, [200, 200, 500, 500]);
    // Other requests go on.
    assert_eq!(decode(&engine, &Value::Null).await.0, 200);
    engine.stop().await.expect("an end");
}
