//! What OpenAI's client asks for, and what it gets.

use crate::fleet::{FAST, Fleet, cached, engine, profile, prompt, tokenizer, until};
use anyhow::{Context, Result, ensure};
use kvasir_proto::pb::WorkerRole;
use kvasir_sim::demo::metrics;
use kvasir_sim::workload::trace::Trace;
use serde_json::{Value, json};
use std::fs;
use tempfile::TempDir;

/// Engines that do both, with steps of so many nanoseconds.
fn both(count: usize, step: u64) -> Vec<(WorkerRole, kvasir_sim::engine::openai::ServerConfig)> {
    (0..count).map(|_| (WorkerRole::Both, engine(step))).collect()
}

#[tokio::test]
async fn the_openai_client_is_served() -> Result<()> {
    let folder = TempDir::new()?;
    let record = folder.path().join("requests.jsonl");
    let file = tokenizer();
    let path = record.display().to_string();
    let file = file.display().to_string();
    let flags = ["--tokenizer", &file, "--limits", "body-bytes=512KiB", "--record", &path];
    let mut fleet = Fleet::start(both(2, FAST), &flags).await?;
    fleet.ask("answers,models,errors,hints").await?;
    fleet.idle().await?;
    // The engines had computed what they were asked for again, and the gateway's tokens are theirs.
    fleet.exact().await?;
    let again = fleet.complete(&prompt("again")).await?;
    ensure!(cached(&again) == 0, "{again}");
    fleet.exact().await?;
    let again = fleet.complete(&prompt("again")).await?;
    ensure!(cached(&again) > 0, "{again}");
    ensure!(fleet.metric("gateway_tokens_total", "known").await? > 10.0);
    ensure!(fleet.metric("gateway_token_mismatches", "").await? == 0.0);
    ensure!(fleet.metric("gateway_token_cache_total", "hit").await? > 0.0);
    let complete = fleet.metric("gateway_requests_total", "complete").await?;
    let dropped = fleet.metric("recorder_dropped_total", "").await?;
    fleet.stop().await?;
    let text = fs::read_to_string(&record)?;
    let lines: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    // Those that an engine refused are there, too: they had a worker.
    ensure!(lines.len() as f64 >= complete && dropped == 0.0, "{} of {complete}", lines.len());
    let last = lines.last().context("a line")?;
    let hashes = last["hash_ids"].as_array().context("hashes")?.len() as u64;
    let input = last["input_length"].as_u64().context("a length")?;
    ensure!(hashes == input / 16 && last["block_size"] == 16, "{last}");
    ensure!(last["output_length"] == 4 && last["cached_tokens"].as_u64() > Some(0), "{last}");
    // When the first token of a whole answer was out, only the engine knows.
    ensure!(last["ttft_ms"].is_null() && last["total_ms"].as_f64() > Some(0.0), "{last}");
    let in_pieces = lines.iter().find(|line| line["ttft_ms"].is_f64()).context("a stream")?;
    ensure!(in_pieces["ttft_ms"].as_f64() <= in_pieces["total_ms"].as_f64(), "{in_pieces}");
    let read = Trace::open(&record, 1)?.next_entry().context("an entry")??;
    ensure!(read.input_length > 0 && !read.hash_ids.is_empty(), "{read:?}");
    Ok(())
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_request() -> Result<()> {
    // A step takes 2 ms, so that an answer takes longer than any client waits.
    let fleet = Fleet::start(both(1, 2_000_000), &["--tokens", "render"]).await?;
    fleet.ask("leaves").await?;
    fleet.idle().await?;
    fleet.metric_is("gateway_requests_total", "cancelled", 2.0).await?;
    until("the engine has cancelled both", async || {
        let aborted = fleet.of_engine(0, "request_success_total", "abort").await?;
        let running = fleet.of_engine(0, "num_requests_running", "").await?;
        Ok((aborted == 2.0 && running == 0.0).then_some(()))
    })
    .await?;
    fleet.stop().await
}

#[tokio::test]
async fn requests_follow_their_prefix_and_modes_can_be_compared() -> Result<()> {
    let file = tokenizer().display().to_string();
    for (mode, expected) in [("kv", 4), ("round-robin", 2)] {
        let flags = ["--tokenizer", &file, "--mode", mode];
        let mut fleet = Fleet::start(both(3, FAST), &flags).await?;
        let mut hits = 0;
        // Five times the same: four can hit. Three workers in turn hit at the fourth and the fifth.
        for number in 0..5 {
            let answer = fleet.complete(&prompt("same")).await?;
            hits += u32::from(cached(&answer) > 0);
            ensure!(number > 0 || cached(&answer) == 0, "{answer}");
            fleet.exact().await?;
        }
        ensure!(hits == expected, "{mode}: {hits}");
        fleet.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_next_turn_is_computed_ahead() -> Result<()> {
    let file = tokenizer().display().to_string();
    let mut fleet = Fleet::start(both(2, FAST), &["--tokenizer", &file]).await?;
    let answer = fleet.ask("turns").await?;
    fleet.metric_is("gateway_speculative_prefills_total", "done", 1.0).await?;
    let mut ended = Vec::new();
    for number in 0..2 {
        ended.push(fleet.of_engine(number, "request_success_total", "").await?);
    }
    ended.sort_by(f64::total_cmp);
    ensure!(ended == [0.0, 2.0], "one worker has both: {ended:?}");
    fleet.exact().await?;
    // The conversation as it goes on.
    let system =
        "The licensor grants a licence to use, to copy, to change and to hand on the work. ";
    let history = [
        json!({"role": "system", "content": system.repeat(8)}),
        json!({"role": "user", "content": "What is granted?"}),
        json!({"role": "assistant", "content": answer.trim_end_matches('\n')}),
    ];
    let body =
        json!({"model": "m", "messages": history, "max_tokens": 1, "add_generation_prompt": false});
    let (status, again) = fleet.post("/v1/chat/completions", &body).await?;
    ensure!(status == 200, "{again}");
    let all = again["usage"]["prompt_tokens"].as_u64().context("a length")?;
    // All whole blocks, but what has to be computed for the one token.
    ensure!(cached(&again) >= (all - 1) / 16 * 16, "{again}");
    fleet.stop().await
}

#[tokio::test]
async fn workers_without_an_address_are_left_alone_and_named() -> Result<()> {
    let mut fleet =
        Fleet::start(both(1, FAST), &["--tokens", "none", "--mode", "round-robin"]).await?;
    let nowhere = profile(WorkerRole::Both, "127.0.0.1:1".parse()?);
    let unknown = kvasir_proto::pb::WorkerProfile { labels: Vec::new(), ..nowhere };
    fleet.register("unknown", unknown, Vec::new()).await?;
    for number in 0..4 {
        fleet.complete(&prompt(&number.to_string())).await?;
    }
    let (_, ready) = metrics::get(fleet.gateway.addresses.http, "/readyz").await?;
    ensure!(ready.contains("unknown") && ready.contains("label http"), "{ready}");
    ensure!(fleet.metric("gateway_tokens_total", "off").await? == 4.0);
    fleet.stop().await
}
