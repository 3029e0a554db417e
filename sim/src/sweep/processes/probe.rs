//! Measures the delay of the index behind a cache, while the other engines are busy.

use super::fleet::{Fleet, SPARE_MODEL};
use crate::client::Indexer;
use crate::engine::openai::client::call;
use crate::workload::tokens;
use anyhow::{Context, Result, ensure};
use futures::future::try_join;
use hyper::{Method, StatusCode};
use router_client::Prompt;
use serde_json::json;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Seed of the prompts' tokens.
const SEED: u64 = 0x9406e;
/// Time between two probes.
const PAUSE: Duration = Duration::from_millis(200);
/// Polling interval.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Timeout for the index.
const PATIENCE: Duration = Duration::from_secs(10);

/// Repeatedly sends a new prompt to the idle spare engine, and records the time until the index lists its block. An
/// idle engine announces a block when it begins to compute it. So this time exceeds the index's delay by at most the
/// request's own network time.
///
/// # Errors
/// If the engine or the index does not answer. Otherwise it never returns.
pub(super) async fn probe(
    fleet: &Fleet,
    block_size: u32,
    delays: &mut Vec<Duration>,
) -> Result<()> {
    let mut indexer = fleet.indexer.clone();
    let spare = fleet.spare();
    for number in 0.. {
        let mut prompt = Vec::new();
        tokens::append(SEED, number, 0..block_size as usize, &mut prompt);
        let start = Instant::now();
        let known = known(&mut indexer, Prompt::new(SPARE_MODEL, block_size, &prompt), start);
        let (delay, ()) = try_join(known, compute(spare, &prompt)).await?;
        delays.push(delay);
        sleep(PAUSE).await;
    }
    Ok(())
}

/// Time from `start` until the index lists the prompt.
async fn known(indexer: &mut Indexer, prompt: Prompt<'_>, start: Instant) -> Result<Duration> {
    let request = prompt.request();
    loop {
        let answer = indexer.find_matches(request.clone()).await.context("ask the index")?;
        if !answer.into_inner().matches.is_empty() {
            return Ok(start.elapsed());
        }
        ensure!(start.elapsed() < PATIENCE, "the index did not hear of a block in {PATIENCE:?}");
        sleep(POLL_INTERVAL).await;
    }
}

async fn compute(address: SocketAddr, prompt: &[u32]) -> Result<()> {
    let body = json!({"model": SPARE_MODEL, "prompt": prompt, "max_tokens": 1}).to_string();
    let host = address.ip().to_string();
    let path = "/v1/completions";
    let called = call(Method::POST, (&host, address.port()), path, body, PATIENCE).await;
    let (status, _answer) = called.context("ask the spare engine")?;
    ensure!(status == StatusCode::OK, "the spare engine answered {status}");
    Ok(())
}
