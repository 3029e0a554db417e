//! Simulates one run: requests arrive at engines in virtual time, whether the engines keep up or not (open loop).

use super::options::{ClusterOptions, Placement};
use super::router::Router;
use super::way::Way;
use crate::engine::timed::{Engine, Event, Job, Nanos, PeerFetch, Terms, Timed, TransferModel};
use anyhow::{Context, Result, ensure};
use router_client::route::Fetch;
use std::num::NonZeroU32;

/// Times and token counts of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Served {
    /// Arrival time.
    pub arrival: Nanos,
    /// Time from the arrival to the end of the current step of the engine that computed the prompt.
    pub residual: Nanos,
    /// Start of the first step with the request.
    pub begun: Nanos,
    /// Time of the first token.
    pub first_token: Nanos,
    /// End of the request.
    pub end: Nanos,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens that the router expected in the cache.
    pub predicted_tokens: usize,
    /// Prompt tokens found in the cache.
    pub hit_tokens: usize,
    /// Tokens of the answer.
    pub answer_tokens: usize,
}

/// Results of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Requests in the order of arrival.
    pub served: Vec<Served>,
    /// Tokens computed by each engine that computes prompts.
    pub computed_tokens: Vec<u64>,
}

/// Engines and routers of a run.
#[derive(Debug)]
pub(super) struct Cluster<'a> {
    pub(super) engines: Vec<Engine<&'a Job>>,
    pub(super) router: Router,
    way: Way,
    block_size: usize,
    transfer: TransferModel,
    jobs: Vec<&'a Job>,
    placements: Vec<Placement>,
    /// For each engine's agent, the time until which it is busy sending blocks to other engines.
    links: Vec<Nanos>,
    served: Vec<Served>,
    /// Events of engines that are not passed on yet, with the engine's number.
    news: Vec<(usize, Timed)>,
    /// Buffer that is empty between calls, kept for its capacity.
    events: Vec<Timed>,
}

/// Runs requests that arrive at these times, in order, until the last one has ended.
///
/// # Errors
/// If a request does not fit into an engine, or a core rejects a call.
pub fn run(
    options: &ClusterOptions,
    jobs: &[Job],
    arrivals: &[Nanos],
    way: Way,
    seed: u64,
) -> Result<Run> {
    let mut cluster = Cluster::new(options, way, seed)?;
    for (number, (job, &arrival)) in jobs.iter().zip(arrivals).enumerate() {
        if way.has_kill && number == jobs.len() / 2 {
            cluster.run_until(arrival)?;
            cluster.router.kill();
        }
        cluster.arrive(job, arrival)?;
    }
    cluster.run_until(Nanos::MAX)?;
    let prefilling = if way.prefill_engines > 0 { way.prefill_engines } else { options.engines };
    let prefilling = cluster.engines.iter().take(prefilling);
    let computed_tokens = prefilling.map(Engine::computed_tokens).collect();
    Ok(Run { served: cluster.served, computed_tokens })
}

// === impl Cluster ===

impl<'a> Cluster<'a> {
    pub(super) fn new(options: &ClusterOptions, way: Way, seed: u64) -> Result<Self> {
        ensure!(way.prefill_engines < options.engines, "no engine is left to answer");
        let block_size = options.engine.block_size;
        let engines = (0..options.engines).map(|_| Engine::new(options.engine)).collect();
        let of_router = u32::try_from(block_size).ok().and_then(NonZeroU32::new);
        let of_router = of_router.context("the block size is 0, or too large")?;
        Ok(Self {
            engines,
            router: Router::new(way, options, of_router, seed)?,
            way,
            block_size,
            transfer: options.transfer,
            jobs: Vec::new(),
            placements: Vec::new(),
            links: vec![0; options.engines],
            served: Vec::new(),
            news: Vec::new(),
            events: Vec::new(),
        })
    }

    /// Handles a request's arrival, not before the previous one's.
    pub(super) fn arrive(&mut self, job: &'a Job, now: Nanos) -> Result<()> {
        self.run_until(now)?;
        let id = self.served.len();
        let placement = self.router.place(job, &self.engines, now)?;
        let first = placement.prefill.unwrap_or(placement.engine);
        let is_prompt_only = placement.prefill.is_some();
        let engine = self.engines.get(first).context("an engine that is not there")?;
        ensure!(
            engine.can_hold(job),
            "a request of {} tokens does not fit into an engine's cache",
            job.total_tokens()
        );
        let Job { prompt_tokens, answer_tokens, .. } = *job;
        let most_blocks = (prompt_tokens - 1) / self.block_size;
        let predicted_blocks = most_blocks.min(placement.predicted_blocks as usize);
        self.served.push(Served {
            arrival: now,
            residual: engine.residual(now),
            prompt_tokens,
            answer_tokens,
            predicted_tokens: predicted_blocks * self.block_size,
            ..Served::default()
        });
        self.jobs.push(job);
        self.placements.push(placement);
        let fetch = placement.fetch.map(|fetch| self.fetch(job, &fetch, now));
        self.submit(first, id, Terms { is_prompt_only, fetch, ..Terms::default() }, now)?;
        self.hear()
    }

    /// Fetches the blocks that holders really have: a delayed index may list blocks that are gone. Blocks after the
    /// first missing one are computed. A holder sends one block after the other, first come, first served: all fetches
    /// together take as long as if they shared its bandwidth.
    fn fetch(&mut self, job: &Job, fetch: &Fetch, now: Nanos) -> PeerFetch {
        let mut blocks = fetch.first_block as usize;
        let mut at = now;
        for segment in fetch.segments() {
            let Some(holder) = self.engines.get(segment.candidate) else { break };
            let wanted = job.names.iter().skip(blocks).take(segment.blocks as usize);
            let found = wanted.take_while(|name| holder.keeps(**name)).count();
            let Some(link) = self.links.get_mut(segment.candidate) else { break };
            *link = at.max(*link) + self.transfer.nanos(found * self.block_size);
            at = *link;
            blocks += found;
            if found < segment.blocks as usize {
                break;
            }
        }
        PeerFetch { blocks, at }
    }

    /// Advances to `now`. Prefill engines go first: decode engines never affect them.
    pub(super) fn run_until(&mut self, now: Nanos) -> Result<()> {
        let split = self.way.prefill_engines;
        for number in 0..split {
            self.run_engine(number, now);
        }
        let terms = Terms { transfer: Some(self.transfer), ..Terms::default() };
        for (at, id) in self.prefilled() {
            let engine = self.placements.get(id).context("an unknown request")?.engine;
            self.run_engine(engine, at);
            self.submit(engine, id, terms, at)?;
        }
        for number in split..self.engines.len() {
            self.run_engine(number, now);
        }
        self.hear()
    }

    fn run_engine(&mut self, number: usize, now: Nanos) {
        if let Some(engine) = self.engines.get_mut(number) {
            engine.run_until(now, &mut self.events);
            self.news.extend(self.events.drain(..).map(|event| (number, event)));
        }
    }

    fn submit(&mut self, number: usize, id: usize, terms: Terms, now: Nanos) -> Result<()> {
        let engine = self.engines.get_mut(number).context("an engine that is not there")?;
        let job = *self.jobs.get(id).context("an unknown request")?;
        engine.submit_with(id, job, terms, now, &mut self.events);
        self.news.extend(self.events.drain(..).map(|event| (number, event)));
        Ok(())
    }

    /// Requests whose prompts are computed by prefill engines and not passed on yet, by time.
    fn prefilled(&self) -> Vec<(Nanos, usize)> {
        let ended = self.news.iter().filter_map(|(_, timed)| match timed.event {
            Event::Finished { id, .. } => Some((timed.at, id)),
            Event::Cache(_) | Event::FirstToken { .. } => None,
        });
        let mut ended: Vec<_> = ended.collect();
        ended.sort_unstable();
        ended
    }

    /// Records the engines' events and passes them on to the router, in order.
    fn hear(&mut self) -> Result<()> {
        let mut news = std::mem::take(&mut self.news);
        news.sort_by_key(|(_, timed)| timed.at);
        for (engine, Timed { at, event }) in news.drain(..) {
            let is_prefill = engine < self.way.prefill_engines;
            match event {
                Event::Cache(changes) => self.router.cache_changed(engine, at, changes),
                Event::FirstToken { id, begun } => {
                    let placement = self.placements.get(id).context("an unknown request")?;
                    let served = self.served.get_mut(id).context("an unknown request")?;
                    if is_prefill || placement.prefill.is_none() {
                        served.begun = begun;
                    }
                    if !is_prefill {
                        served.first_token = at;
                        self.router.first_token(id, at)?;
                    }
                }
                Event::Finished { id, hit_tokens } => {
                    let placement = self.placements.get(id).context("an unknown request")?;
                    let served = self.served.get_mut(id).context("an unknown request")?;
                    if is_prefill || placement.prefill.is_none() {
                        served.hit_tokens = hit_tokens;
                    }
                    if is_prefill {
                        self.router.prefill_done(id, at)?;
                    } else {
                        served.end = at;
                        self.router.finished(id, at)?;
                    }
                }
            }
        }
        self.news = news;
        Ok(())
    }
}

#[cfg(test)]
#[path = "cluster_test.rs"]
mod cluster_test;
