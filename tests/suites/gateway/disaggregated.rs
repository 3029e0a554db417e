//! One worker computes the prompt, another one generates, and the gateway hands on what they tell each other.

use crate::fleet::{FAST, Fleet, engine, prompt, tokenizer};
use anyhow::{Result, ensure};
use kvasir_proto::pb::WorkerRole;
use kvasir_sim::engine::openai::ServerConfig;
use serde_json::json;

async fn start(prefill: ServerConfig, flags: &[&str]) -> Result<Fleet> {
    let file = tokenizer().display().to_string();
    let engines = vec![(WorkerRole::Prefill, prefill), (WorkerRole::Decode, engine(FAST))];
    let own = ["--tokenizer", &file, "--remote-prefill-tokens-min", "16"];
    Fleet::start(engines, &[&own, flags].concat()).await
}

#[tokio::test]
async fn the_prefill_workers_blocks_reach_the_decode_worker() -> Result<()> {
    let fleet = start(engine(FAST), &[]).await?;
    let whole = fleet.complete(&prompt("whole")).await?;
    ensure!(whole["usage"]["completion_tokens"] == 4, "{whole}");
    fleet.metric_is("gateway_prefills_total", "done", 1.0).await?;
    ensure!(fleet.of_engine(0, "request_success_total", "").await? == 1.0);
    ensure!(fleet.of_engine(0, "generation_tokens_total", "").await? == 1.0, "one token");
    ensure!(fleet.of_engine(1, "generation_tokens_total", "").await? == 4.0);
    ensure!(fleet.of_engine(1, "external_prefix_cache_hits_total", "").await? > 0.0);
    // A stream, and the OpenAI client.
    let body = json!({"model": "m", "prompt": prompt("stream"), "max_tokens": 4, "stream": false});
    ensure!(fleet.post("/v1/completions", &body).await?.0 == 200);
    fleet.ask("answers").await?;
    ensure!(fleet.metric("gateway_prefills_total", "failed").await? == 0.0);
    ensure!(fleet.metric("router_prefill_outcomes_total", "chosen").await? >= 3.0);
    fleet.idle().await?;
    fleet.stop().await
}

#[tokio::test]
async fn a_prefill_that_fails_is_done_by_the_decode_worker() -> Result<()> {
    let failing = ServerConfig { prefills_max: Some(1), ..engine(FAST) };
    let fleet = start(failing, &[]).await?;
    fleet.complete(&prompt("first")).await?;
    fleet.metric_is("gateway_prefills_total", "done", 1.0).await?;
    let fetched = fleet.of_engine(1, "external_prefix_cache_hits_total", "").await?;
    for name in ["second", "third"] {
        let answer = fleet.complete(&prompt(name)).await?;
        ensure!(answer["usage"]["completion_tokens"] == 4, "{answer}");
    }
    fleet.metric_is("gateway_prefills_total", "failed", 2.0).await?;
    let now = fleet.of_engine(1, "external_prefix_cache_hits_total", "").await?;
    ensure!(now == fetched, "nothing more was fetched: {fetched}, {now}");
    fleet.metric_is("gateway_requests_total", "complete", 3.0).await?;
    fleet.idle().await?;
    fleet.stop().await
}

#[tokio::test]
async fn a_request_counts_while_its_prefill_worker_computes() -> Result<()> {
    /// Nanoseconds of the prefill worker's step: longer than the lease.
    const SLOW: u64 = 3_500_000_000;
    let fleet = start(engine(SLOW), &["--timing", "request-lease=1s"]).await?;
    fleet.complete(&prompt("slow")).await?;
    fleet.metric_is("gateway_prefills_total", "done", 1.0).await?;
    let expired = fleet.metric("router_expired_requests_total", "").await?;
    ensure!(expired == 0.0, "{expired} leases ended");
    fleet.idle().await?;
    fleet.stop().await
}
