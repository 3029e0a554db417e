use super::RouteError;
use super::config::{Hints, RouterConfig, RouterWorker};
use super::index::{Index, Overlaps};
use crate::route::{
    ActiveLoads, BusyThresholds, Candidate, ConfigError, Decision, NewRequest, PromptBlocks,
    Question, RankId, RankLoad, RequestKey, RouterId, Selector,
};
use kvasir_proto::types::{SequenceHash, WorkerKey};
use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::num::NonZeroU32;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// What clones of a router share.
#[derive(Debug)]
pub(super) struct Shared {
    index: Index,
    block_size: NonZeroU32,
    origin: Instant,
    state: Mutex<State>,
}

/// Workers and loads.
#[derive(Debug)]
pub(super) struct State {
    selector: Selector,
    active: ActiveLoads,
    workers: BTreeMap<WorkerKey, Member>,
    router: RouterId,
    /// Requests so far: their numbers are their ids.
    requests: u64,
    /// Seed of the random numbers.
    seeds: RandomState,
    draws: u64,
}

/// A rank that can be chosen.
#[derive(Debug)]
struct Member {
    worker: RouterWorker,
    rank: RankId,
    /// When its worker joined; none for those that were there when the router began.
    joined: Option<Duration>,
}

impl Shared {
    pub(super) fn new(config: RouterConfig, index: Index) -> Self {
        let seeds = RandomState::new();
        let state = State {
            selector: Selector::new(config.select),
            active: ActiveLoads::new(config.active),
            workers: BTreeMap::new(),
            router: RouterId(seeds.hash_one("router")),
            requests: 0,
            seeds,
            draws: 0,
        };
        let (block_size, origin) = (config.active.block_size, Instant::now());
        Self { index, block_size, origin, state: Mutex::new(state) }
    }

    pub(super) const fn index(&self) -> &Index {
        &self.index
    }

    pub(super) const fn block_size(&self) -> NonZeroU32 {
        self.block_size
    }

    /// Time since the router began.
    pub(super) fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Chooses a rank and counts the request there, in one step: the next request sees it.
    pub(super) fn place(
        &self,
        question: &Question<'_>,
        chain: &[SequenceHash],
        overlaps: &Overlaps,
        hints: &Hints<'_>,
    ) -> Result<(RequestKey, Decision), RouteError> {
        let now = self.now();
        self.state().place(question, chain, overlaps, (hints.expected_output_tokens, now))
    }
}

impl State {
    pub(super) const fn selector(&self) -> &Selector {
        &self.selector
    }

    pub(super) fn set_busy(&mut self, busy: BusyThresholds) -> Result<(), ConfigError> {
        self.selector.set_busy(busy)
    }

    pub(super) const fn active(&mut self) -> &mut ActiveLoads {
        &mut self.active
    }

    pub(super) fn set_workers(&mut self, workers: Vec<RouterWorker>, now: Duration) {
        let is_first = self.workers.is_empty();
        let mut before = std::mem::take(&mut self.workers);
        for worker in workers {
            if self.workers.contains_key(&worker.key) {
                continue;
            }
            // Beyond the limit on ranks nobody is chosen.
            let Some(rank) = self.active.join(&worker.key) else { continue };
            let joined = match before.remove(&worker.key) {
                Some(member) => member.joined,
                None => Some(now).filter(|_| !is_first),
            };
            self.workers.insert(worker.key.clone(), Member { worker, rank, joined });
        }
        for gone in before.into_values() {
            self.active.forget(gone.rank);
        }
    }

    pub(super) fn loads(&self) -> Vec<(WorkerKey, RankLoad)> {
        let load =
            |(key, member): (&WorkerKey, &Member)| (key.clone(), self.active.load(member.rank));
        self.workers.iter().map(load).collect()
    }

    fn place(
        &mut self,
        question: &Question<'_>,
        chain: &[SequenceHash],
        overlaps: &Overlaps,
        (expected_output_tokens, now): (Option<u64>, Duration),
    ) -> Result<(RequestKey, Decision), RouteError> {
        let shared = self.active.shared(chain);
        let members: Vec<&Member> = self.workers.values().collect();
        let candidates: Vec<_> = members
            .iter()
            .map(|member| Candidate {
                key: &member.worker.key,
                profile: &member.worker.profile,
                adapters: &member.worker.adapters,
                load: self.active.load(member.rank),
                shared_blocks: shared.of(member.rank),
                overlap: overlaps.of(&member.worker.key),
                age: member.joined.map_or(Duration::MAX, |at| now.saturating_sub(at)),
                is_ejected: false,
            })
            .collect();
        let (seeds, draws) = (&self.seeds, &mut self.draws);
        let mut draw = || {
            *draws = draws.wrapping_add(1);
            seeds.hash_one(*draws)
        };
        let decision = self.selector.select(question, &candidates, &mut draw)?;
        self.requests += 1;
        let key = RequestKey::new(self.router, &self.requests.to_string())?;
        if let Some(member) = members.get(decision.candidate) {
            let request = NewRequest {
                rank: member.rank,
                blocks: PromptBlocks::Chain(chain),
                input_tokens: question.input_tokens,
                prefill_tokens: decision.cost.booked_prefill_tokens(),
                expected_output_tokens,
            };
            // A request that is beyond a limit is served all the same: it only does not count.
            if let Err(error) = self.active.add(&key, request, now) {
                tracing::debug!(%error, worker = %decision.worker, "a request does not count as load");
            }
        }
        Ok((key, decision))
    }
}
