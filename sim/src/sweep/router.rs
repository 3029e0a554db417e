//! Chooses the engine for each request: by the cores of `router-client` and the index, or by an oracle.

use super::feed::{Feed, state_group};
use super::forecast;
use super::options::{ClusterOptions, Placement};
use super::replica::{Asked, Replica};
use super::way::{Policy, Way};
use crate::engine::timed::{CacheChange, Engine, Job, Nanos, SECOND};
use anyhow::{Context, Result};
use kvasir_index::Prompt;
use kvasir_proto::types::SequenceHash;
use router_client::route::TierBlocks;
use std::num::NonZeroU32;

/// Router replicas over the engines.
#[derive(Debug)]
pub struct Router {
    way: Way,
    replicas: Vec<Replica>,
    /// The replica that placed each request.
    owners: Vec<usize>,
    /// The next replica in turn.
    next: usize,
    engines: usize,
    index: Option<Feed>,
    block_size: NonZeroU32,
    sync_delay: Nanos,
    /// Time of the routers' next listing of workers, with their numbers of blocks; none if engines state their
    /// capacity.
    lists: Option<Nanos>,
}

/// Interval of the listings.
const LIST_INTERVAL: Nanos = 2 * SECOND;

// === impl Router ===

impl Router {
    /// Creates routers with the library's defaults, except the cost.
    ///
    /// # Errors
    /// If the index or the library rejects the engines.
    pub fn new(
        way: Way,
        options: &ClusterOptions,
        block_size: NonZeroU32,
        seed: u64,
    ) -> Result<Self> {
        let engines = options.engines;
        let replicas = (0..way.routers).map(|at| Replica::new(at, way, options, block_size, seed));
        let replicas = replicas.collect::<Result<_>>()?;
        let states = (options.engine.state_slots > 0).then(|| state_group(block_size.get()));
        let index = way
            .policy
            .needs_index()
            .then(|| Feed::new(engines, way.staleness, states))
            .transpose()?;
        Ok(Self {
            way,
            replicas,
            owners: Vec::new(),
            next: 0,
            engines,
            index,
            block_size,
            sync_delay: options.sync_delay,
            lists: (way.is_unstated || !options.states_capacity).then_some(0),
        })
    }

    /// Chooses the engines of the next request, which counts as their load immediately.
    ///
    /// # Errors
    /// If the library rejects the request.
    pub fn place(&mut self, job: &Job, engines: &[Engine<&Job>], now: Nanos) -> Result<Placement> {
        let id = self.owners.len();
        let owner = self.take_turn().context("no router is left")?;
        self.owners.push(owner);
        if self.way.policy == Policy::Oracle {
            let engine = best_of(engines, job, now);
            return Ok(Placement { engine, ..Placement::default() });
        }
        let names = job.prompt_names(self.block_size.get() as usize);
        let chain: Vec<_> = names.iter().map(|&name| SequenceHash(name)).collect();
        self.list(now);
        let counts_all_groups = self.way.policy != Policy::KvMainGroup;
        let prompt = counts_all_groups.then(|| Prompt {
            block_size: self.block_size.get(),
            tokens: u32::try_from(job.prompt_tokens).ok(),
        });
        let held = match &mut self.index {
            Some(feed) => feed.overlaps(names, prompt, now)?,
            None => vec![TierBlocks::default(); self.engines],
        };
        let input_tokens = job.prompt_tokens as u64;
        let asked = Asked { id, input_tokens, chain: &chain, held: &held, now };
        let replica = self.replicas.get_mut(owner).context("a router that is not there")?;
        replica.catch_up(now);
        let placement = replica.place(&asked)?;
        self.tell(owner, now);
        Ok(placement)
    }

    /// The first token of a request was sent.
    ///
    /// # Errors
    /// If the library rejects the request's number.
    pub fn first_token(&mut self, id: usize, now: Nanos) -> Result<()> {
        self.report(id, now, |replica| replica.first_token(id, now))
    }

    /// The prefill engine has finished a request.
    ///
    /// # Errors
    /// If the library rejects the request's number.
    pub fn prefill_done(&mut self, id: usize, now: Nanos) -> Result<()> {
        self.report(id, now, |replica| replica.prefill_done(id))
    }

    /// A request has ended.
    ///
    /// # Errors
    /// If the library rejects the request's number.
    pub fn finished(&mut self, id: usize, now: Nanos) -> Result<()> {
        self.report(id, now, |replica| replica.finished(id))
    }

    /// Passes on changes of an engine's cache.
    pub fn cache_changed(&mut self, engine: usize, at: Nanos, changes: Vec<CacheChange>) {
        if let Some(feed) = &mut self.index {
            feed.cache_changed(engine, at, changes);
        }
    }

    /// Kills the first replica. Its requests continue at the engines, without reports to the other replicas.
    pub fn kill(&mut self) {
        if let Some(replica) = self.replicas.first_mut() {
            replica.is_alive = false;
        }
    }

    /// The index; none if the policy does not query it.
    #[cfg(test)]
    pub(super) fn index(&mut self) -> Option<&mut Feed> {
        self.index.as_mut()
    }

    /// Lists the workers, if a listing is due.
    fn list(&mut self, now: Nanos) {
        if let (Some(feed), Some(next)) = (&self.index, self.lists.filter(|next| *next <= now)) {
            let blocks = feed.held_blocks();
            self.replicas.iter_mut().for_each(|replica| replica.observe(&blocks));
            self.lists = Some(now.max(next) + LIST_INTERVAL);
        }
    }

    /// The replica that places the next request: each living replica in turn.
    fn take_turn(&mut self) -> Option<usize> {
        let count = self.replicas.len();
        let mut turns = (self.next..self.next + count).map(|turn| turn % count);
        let owner = turns.find(|&at| self.replicas.get(at).is_some_and(|at| at.is_alive))?;
        self.next = owner + 1;
        Some(owner)
    }

    /// Reports a request's progress to the replica that placed it, like a gateway. A dead replica does not receive it.
    fn report(
        &mut self,
        id: usize,
        now: Nanos,
        report: impl FnOnce(&mut Replica) -> Result<()>,
    ) -> Result<()> {
        if self.way.policy == Policy::Oracle {
            return Ok(());
        }
        let owner = *self.owners.get(id).context("an unknown request")?;
        let replica = self.replicas.get_mut(owner).context("a router that is not there")?;
        if replica.is_alive {
            replica.catch_up(now);
            report(replica)?;
            self.tell(owner, now);
        }
        Ok(())
    }

    /// Sends one replica's messages to all others.
    fn tell(&mut self, from: usize, now: Nanos) {
        if self.replicas.len() < 2 {
            return;
        }
        let Some(replica) = self.replicas.get_mut(from) else { return };
        let letters = replica.flush(now, now.saturating_add(self.sync_delay));
        if letters.is_empty() {
            return;
        }
        let others = self.replicas.iter_mut().enumerate();
        for (_, other) in others.filter(|(at, other)| *at != from && other.is_alive) {
            other.deliver(&letters);
        }
    }
}

/// The engine with the shortest forecast; of equal ones, the engine with the fewest requests.
fn best_of(engines: &[Engine<&Job>], job: &Job, now: Nanos) -> usize {
    let by = |(_, engine): &(usize, &Engine<&Job>)| {
        (forecast::time_to_first_token(engine, job, now), engine.requests())
    };
    engines.iter().enumerate().min_by_key(by).map_or(0, |(number, _)| number)
}
