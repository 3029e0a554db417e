//! Sends one pass of a workload to one fleet.

use super::fleet::Fleet;
use super::progress::Progress;
use super::route::Policy;
use super::{Args, MODEL, Workload};
use crate::client;
use crate::client::Indexer;
use crate::engine::{Completion, Prompt};
use crate::workload::{Profile, Request};
use anyhow::{Context, Result, bail};
use futures::stream::{FuturesUnordered, StreamExt};
use kvasir_proto::hash::tokens_le;
use kvasir_proto::pb;
use router_client::Prompt as RouterPrompt;
use router_client::router::{Hints, IndexUse, Router};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of active requests when requests are sent at their arrival times (open loop).
const OPEN_LOOP_REQUESTS_MAX: usize = 1_024;
/// Maximum number of prompts that are kept for the later single queries.
const SAMPLES_MAX: usize = 256;
/// Block size of the workload's profile, equal to the published traces'.
const PROFILE_BLOCK_TOKENS: usize = 512;

/// A pass to run.
#[derive(Debug)]
pub struct Pass<'a> {
    /// The demo's options.
    pub args: &'a Args,
    /// Routing policy.
    pub policy: Policy,
    /// The engines of the pass.
    pub fleet: &'a Fleet,
    /// Address of the server.
    pub server: SocketAddr,
}

/// Results of a pass.
#[derive(Debug)]
pub struct PassResult {
    /// Number of served requests.
    pub requests: u64,
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Prompt tokens that the engines found in their caches.
    pub hit_tokens: u64,
    /// Round-trip times of FindMatches; empty if the policy does not use it.
    pub latencies: Vec<Duration>,
    /// Duration of the pass.
    pub elapsed: Duration,
    /// Statistics of the workload.
    pub profile: Profile,
    /// Some of the prompts, for later single queries.
    pub samples: Vec<Vec<u32>>,
}

/// The result of one request.
struct Served {
    completion: Completion,
    latency: Option<Duration>,
}

// === impl Pass ===

impl Pass<'_> {
    /// Sends every request of the workload and waits for all answers.
    ///
    /// # Errors
    /// At the first request that fails.
    pub(super) async fn run(self, workload: Workload) -> Result<PassResult> {
        let router = self.fleet.router(self.args, self.policy, self.server)?;
        let under_way_max = match self.args.speed {
            Some(_) => OPEN_LOOP_REQUESTS_MAX,
            None => self.args.concurrency * self.args.engines,
        };
        let mut result = PassResult::new();
        let mut progress = Progress::new(self.policy, workload.len as u64);
        let mut under_way = FuturesUnordered::new();
        let start = Instant::now();
        for request in workload.requests.take(workload.len) {
            let request = request.context("read the workload")?;
            while under_way.len() >= under_way_max {
                result.finish(under_way.next().await, &mut progress)?;
            }
            if let Some(speed) = self.args.speed {
                let at = start + request.arrival.div_f64(speed);
                self.serve_until(at, &mut under_way, &mut result, &mut progress).await?;
            }
            result.start(&request);
            under_way.push(self.serve(&router, request));
        }
        while !under_way.is_empty() {
            result.finish(under_way.next().await, &mut progress)?;
        }
        result.elapsed = start.elapsed();
        progress.finish();
        Ok(result)
    }

    /// Completes active requests until the next request is due.
    async fn serve_until<F: Future<Output = Result<Served>>>(
        &self,
        at: Instant,
        under_way: &mut FuturesUnordered<F>,
        result: &mut PassResult,
        progress: &mut Progress,
    ) -> Result<()> {
        let due = tokio::time::sleep_until(at);
        tokio::pin!(due);
        loop {
            tokio::select! {
                biased;
                () = &mut due => return Ok(()),
                served = under_way.next(), if !under_way.is_empty() => {
                    result.finish(served, progress)?;
                }
            }
        }
    }

    /// Chooses a worker for a request and sends it there.
    async fn serve(&self, router: &Router, request: Request) -> Result<Served> {
        let block_size = u32::try_from(self.args.block_size)?;
        let prompt = RouterPrompt::new(MODEL, block_size, &request.prompt);
        let reservation = router.select(&prompt, &Hints::default()).await?;
        let latency = match reservation.index_use() {
            IndexUse::NotNeeded => None,
            IndexUse::Answered { elapsed, .. } => Some(*elapsed),
            IndexUse::Failed { error, .. } => bail!("the index does not answer: {error}"),
        };
        let engine = self.fleet.engine(&reservation.worker().worker).context("an engine")?;
        let prompt = Prompt { tokens: request.prompt, answer: request.answer };
        let completion = engine.mock.run(prompt).await;
        let completion =
            completion.with_context(|| format!("run a request on {}", engine.worker_id))?;
        Ok(Served { completion, latency })
    }
}

// === impl PassResult ===

impl PassResult {
    fn new() -> Self {
        Self {
            requests: 0,
            prompt_tokens: 0,
            hit_tokens: 0,
            latencies: Vec::new(),
            elapsed: Duration::ZERO,
            profile: Profile::new(PROFILE_BLOCK_TOKENS),
            samples: Vec::new(),
        }
    }

    /// Share of prompt tokens that were found in caches.
    #[must_use]
    pub fn hit_share(&self) -> f64 {
        self.hit_tokens as f64 / self.prompt_tokens.max(1) as f64
    }

    fn start(&mut self, request: &Request) {
        self.profile.record(request);
        if self.samples.len() < SAMPLES_MAX {
            self.samples.push(request.prompt.clone());
        }
    }

    fn finish(&mut self, served: Option<Result<Served>>, progress: &mut Progress) -> Result<()> {
        let Some(served) = served else { return Ok(()) };
        let Served { completion, latency } = served?;
        self.requests += 1;
        self.prompt_tokens += completion.prompt_tokens;
        self.hit_tokens += completion.hit_tokens;
        self.latencies.extend(latency);
        progress.advance(self.requests, self.hit_share());
        Ok(())
    }
}

/// Queries each prompt once, one after the other, and returns the duration of each answer.
///
/// # Errors
/// If a call fails.
pub async fn probe(client: &mut Indexer, prompts: &[Vec<u32>]) -> Result<Vec<Duration>> {
    let mut latencies = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        latencies.push(find_matches(client, prompt).await?.1);
    }
    Ok(latencies)
}

/// Queries a prompt, and returns the answer with its duration.
pub(super) async fn find_matches(
    client: &mut Indexer,
    prompt: &[u32],
) -> Result<(Vec<pb::WorkerMatch>, Duration)> {
    let request = pb::FindMatchesRequest {
        model: MODEL.to_owned(),
        tenant: client::TENANT.to_owned(),
        token_ids_le: tokens_le(prompt).into_owned().into(),
        ..pb::FindMatchesRequest::default()
    };
    let start = Instant::now();
    let response = client.find_matches(request).await.context("find matches")?;
    Ok((response.into_inner().matches, start.elapsed()))
}
