//! One run: requests arrive at engines in virtual time, whether these keep up or not.

use super::job::Job;
use super::router::{ClusterOptions, Policy, Router};
use crate::engine::timed::model::Nanos;
use crate::engine::timed::{CacheChange, Engine, Event, Timed};
use anyhow::{Context, Result, ensure};
use kvasir_proto::types::{BlockName, KvEvent, LocalHash, StoredBlock, Tier};
use std::num::NonZeroU32;

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Served {
    /// When it arrived.
    pub arrival: Nanos,
    /// When its first token was out.
    pub first_token: Nanos,
    /// When it ended.
    pub end: Nanos,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Tokens of its prompt that were found in the cache.
    pub hit_tokens: usize,
    /// Tokens of its answer.
    pub answer_tokens: usize,
}

/// What became of all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Requests in the order of arrival.
    pub served: Vec<Served>,
    /// Tokens that each engine computed.
    pub computed_tokens: Vec<u64>,
}

/// Engines and a router.
#[derive(Debug)]
pub(super) struct Cluster<'a> {
    pub(super) engines: Vec<Engine<&'a Job>>,
    pub(super) router: Router,
    served: Vec<Served>,
    events: Vec<Timed>,
}

/// Runs requests that arrive at these times, in their order, until the last one has ended.
///
/// # Errors
/// If an engine can never hold a request, or a core refuses something.
pub fn run(
    options: &ClusterOptions,
    jobs: &[Job],
    arrivals: &[Nanos],
    policy: Policy,
    seed: u64,
) -> Result<Run> {
    let mut cluster = Cluster::new(options, policy, seed)?;
    for (job, &arrival) in jobs.iter().zip(arrivals) {
        cluster.arrive(job, arrival)?;
    }
    cluster.run_until(Nanos::MAX)?;
    let computed_tokens = cluster.engines.iter().map(Engine::computed_tokens).collect();
    Ok(Run { served: cluster.served, computed_tokens })
}

// === impl Cluster ===

impl<'a> Cluster<'a> {
    pub(super) fn new(options: &ClusterOptions, policy: Policy, seed: u64) -> Result<Self> {
        let block_size = u32::try_from(options.engine.block_size).ok().and_then(NonZeroU32::new);
        let block_size = block_size.context("the block size is 0, or too large")?;
        let engines = (0..options.engines).map(|_| Engine::new(options.engine)).collect();
        let router = Router::new(policy, options, block_size, seed)?;
        Ok(Self { engines, router, served: Vec::new(), events: Vec::new() })
    }

    /// A request arrives, not before the last one.
    pub(super) fn arrive(&mut self, job: &'a Job, now: Nanos) -> Result<()> {
        self.run_until(now)?;
        let id = self.served.len();
        let number = self.router.place(id, job, &self.engines, now)?;
        let Job { prompt_tokens, answer_tokens, .. } = *job;
        let served = Served { arrival: now, prompt_tokens, answer_tokens, ..Served::default() };
        self.served.push(served);
        let engine = self.engines.get_mut(number).context("an engine that is not there")?;
        ensure!(
            engine.can_hold(job),
            "a request of {} tokens does not fit into an engine's cache",
            job.total_tokens()
        );
        engine.submit(id, job, now, &mut self.events);
        self.hear(number)
    }

    pub(super) fn run_until(&mut self, now: Nanos) -> Result<()> {
        for number in 0..self.engines.len() {
            if let Some(engine) = self.engines.get_mut(number) {
                engine.run_until(now, &mut self.events);
            }
            self.hear(number)?;
        }
        Ok(())
    }

    /// Notes and tells the router what happened in an engine.
    fn hear(&mut self, engine: usize) -> Result<()> {
        for Timed { at, event } in self.events.drain(..) {
            match event {
                Event::Cache(events) => {
                    self.router.cache_changed(engine, at, kv_events(events));
                }
                Event::FirstToken(id) => {
                    self.router.first_token(id, at)?;
                    self.served.get_mut(id).context("an unknown request")?.first_token = at;
                }
                Event::Finished { id, hit_tokens } => {
                    self.router.finished(id)?;
                    let served = self.served.get_mut(id).context("an unknown request")?;
                    (served.end, served.hit_tokens) = (at, hit_tokens);
                }
            }
        }
        Ok(())
    }
}

/// What the index is told of changes of a cache. Consecutive removals become one event.
fn kv_events(changes: Vec<CacheChange>) -> Vec<KvEvent> {
    let mut events = Vec::new();
    for change in changes {
        match (change, events.last_mut()) {
            (CacheChange::Stored { names, parent, .. }, _) => {
                let block = |name| StoredBlock { name: BlockName(name), local: LocalHash(name) };
                let blocks = names.into_iter().map(block).collect();
                let parent = parent.map(BlockName);
                events.push(KvEvent::Stored { parent, tier: Tier::Device, blocks });
            }
            (CacheChange::Removed { name, .. }, Some(KvEvent::Removed { names, .. })) => {
                names.push(BlockName(name));
            }
            (CacheChange::Removed { name, .. }, _) => {
                events.push(KvEvent::Removed { tier: Tier::Device, names: vec![BlockName(name)] });
            }
        }
    }
    events
}

#[cfg(test)]
#[path = "cluster_test.rs"]
mod cluster_test;
