//! A gateway in one file: reads prompts as token ids, one per line, and sends each to a worker.
//!
//! `cargo run -p router-client --example gateway -- 127.0.0.1:50051 demo < prompts.txt`
#![allow(clippy::print_stdout, clippy::missing_errors_doc, reason = "an example")]

use kvasir_proto::types::{PartitionKey, WorkerKey};
use router_client::router::{Ended, Hints, Index, Router, RouterWorker};
use router_client::{ClientConfig, IndexerClient, Prompt};
use std::env;
use std::error::Error;
use std::future::ready;
use std::io::stdin;
use std::num::NonZeroU32;
type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A router over the workers of a model, and their block size.
pub async fn connect(server: &str, model: &str) -> Result<(Router, u32)> {
    let index = IndexerClient::connect(server, ClientConfig::default())?;
    let listed = index.list_workers(Some(&PartitionKey::new(model, "")?)).await?;
    let block_size = listed.first().ok_or("no worker of that model")?.block_size;
    let builder = Router::builder(NonZeroU32::new(block_size).ok_or("a block size of 0")?);
    // Workers join and leave: list them periodically, and call router.set_workers.
    let workers = listed.iter().flat_map(RouterWorker::of);
    Ok((builder.index(Index::One(index)).workers(workers).build()?, block_size))
}

/// Serves a prompt by a worker, and by another one if that fails. Returns the worker, and how many blocks it had
/// cached.
pub async fn serve(router: &Router, prompt: &Prompt<'_>) -> Result<(WorkerKey, f64)> {
    let mut hints = Hints::default();
    for _attempt in 0..2 {
        // Counts as load of its worker until it is dropped, even after an error.
        let reservation = router.select(prompt, &hints).await?;
        let worker = reservation.worker().clone();
        let cost = reservation.decision().cost;
        if send(&worker, prompt.tokens).await {
            reservation.first_token();
            reservation.end(Ended { has_failed: Some(false), cached_tokens: None });
            return Ok((worker, cost.credited_blocks));
        }
        hints = hints.excluding(&worker.worker);
        reservation.failed();
    }
    Err("no worker took the prompt".into())
}

/// Replace this by your gateway's HTTP request to the engine. Returns whether the engine answered; engines named
/// "broken" do not.
fn send(worker: &WorkerKey, _tokens: &[u32]) -> impl Future<Output = bool> {
    ready(worker.worker.as_str() != "broken")
}

#[tokio::main]
async fn main() -> Result<()> {
    let named = env::args().nth(1).zip(env::args().nth(2));
    let (server, model) = named.ok_or("usage: gateway SERVER MODEL < prompts.txt")?;
    let (router, block_size) = connect(&server, &model).await?;
    for line in stdin().lines() {
        let tokens: Vec<u32> =
            line?.split_whitespace().map(str::parse).collect::<std::result::Result<_, _>>()?;
        let prompt = Prompt::new(&model, block_size, &tokens);
        let (worker, blocks) = serve(&router, &prompt).await?;
        println!("{worker} has {blocks} of {} blocks", tokens.len() / block_size as usize);
    }
    Ok(())
}
