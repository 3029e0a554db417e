//! Metrics under vLLM's names, as the agent reads them.

use crate::harness::{BLOCK, Streaming, complete, config, get, metric, start, until_idle};
use kvasir_proto::types::WorkerMetrics;
use kvbm_agent::load::scrape::{ScrapedEngine, read_metrics};
use serde_json::json;
use std::net::SocketAddr;

async fn scrape(at: SocketAddr) -> WorkerMetrics {
    let (_, text) = get(at, "/metrics").await;
    let ranks = read_metrics(ScrapedEngine::Vllm, text.as_bytes(), BLOCK as u32);
    let mut ranks = ranks.expect("metrics of vLLM");
    ranks.remove(&3).expect("the rank")
}

#[tokio::test]
async fn an_agent_reads_them() {
    let mut config = config();
    config.live.engine.dp_rank = 3;
    config.live.running_max = 1;
    config.live.model.step = 20_000_000;
    let engine = start(config).await;
    let at = engine.address();
    let idle = scrape(at).await;
    assert_eq!((idle.request_active_slots, idle.num_requests_waiting), (Some(0), Some(0)));
    assert_eq!((idle.kv_total_blocks, idle.gpu_prefix_cache_hit_rate), (Some(1_000), None));
    let body = |from: u32| {
        let prompt: Vec<u32> = (from..from + 40).collect();
        json!({"prompt": prompt, "max_tokens": 3_000, "stream": true, "ignore_eos": true})
    };
    let mut first = Streaming::post(at, "/v1/completions", &body(0)).await;
    first.event().await.expect("a token");
    let second = Streaming::post(at, "/v1/completions", &body(100)).await;
    let busy = scrape(at).await;
    assert_eq!((busy.request_active_slots, busy.num_requests_waiting), (Some(1), Some(1)));
    assert!(busy.kv_active_blocks >= Some(10), "{busy:?}");
    drop((first, second));
    until_idle(at).await;
    let prompt: Vec<u32> = (0..40).collect();
    complete(at, &prompt, 1).await;
    // 36 of 40 tokens were found.
    assert_eq!(scrape(at).await.gpu_prefix_cache_hit_rate, Some(0.9));
    engine.stop().await.expect("an end");
}

#[tokio::test]
async fn tokens_and_times_are_counted() {
    let engine = start(config()).await;
    let at = engine.address();
    let prompt: Vec<u32> = (0..10).collect();
    for _ in 0..3 {
        complete(at, &prompt, 5).await;
    }
    let (_, text) = get(at, "/metrics").await;
    for (name, value) in [
        ("vllm:prompt_tokens_total", 30.0),
        ("vllm:generation_tokens_total", 15.0),
        ("vllm:prefix_cache_queries_total", 30.0),
        ("vllm:prefix_cache_hits_total", 16.0),
        ("vllm:time_to_first_token_seconds_count", 3.0),
        ("vllm:inter_token_latency_seconds_count", 12.0),
        ("vllm:e2e_request_latency_seconds_count", 3.0),
        ("vllm:request_success_total", 3.0),
    ] {
        assert_eq!(metric(&text, name), value, "{name}");
    }
    let labelled = "vllm:num_requests_running{model_name=\"m\",engine=\"0\"}";
    assert_eq!(metric(&text, labelled), 0.0);
    // Ten tokens and a step; then four steps.
    assert!(metric(&text, "vllm:time_to_first_token_seconds_sum") >= 3.0 * 100e-6);
    assert!(metric(&text, "vllm:inter_token_latency_seconds_sum") >= 12.0 * 99e-6);
    engine.stop().await.expect("an end");
}
