//! Who gets a request: by the cores of `router-client` and the index, or by an oracle.

use super::forecast;
use super::job::Job;
use crate::engine::timed::Engine;
use crate::engine::timed::model::{EngineOptions, Nanos};
use anyhow::{Context, Result};
use kvasir_index::{Index, Limits, Query, QueryKey, Scratch, SourceId};
use kvasir_proto::convert::WorkerProfile;
use kvasir_proto::types::{
    CopyMode, KvEvent, LocalHash, SequenceHash, Tier, TierSet, WorkerId, WorkerKey,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use router_client::route::{
    ActiveConfig, ActiveLoads, Candidate, CostConfig, Mode, NewRequest, PromptBlocks, Question,
    RankId, RequestKey, RouterId, SelectConfig, Selector, TierBlocks, Trust,
};
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

/// The one router of a run.
const ROUTER: RouterId = RouterId(1);

/// Engines of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClusterOptions {
    /// How many there are.
    pub engines: usize,
    /// Each of them.
    pub engine: EngineOptions,
    /// What the cost of mode `kv` consists of.
    pub cost: CostConfig,
}

/// How a run places its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Policy {
    /// By overlap and load; the index hears of the caches so many nanoseconds late.
    Kv(Nanos),
    /// Each engine in turn.
    RoundRobin,
    /// Any.
    Random,
    /// The least loaded, by what the router knows.
    LeastLoaded,
    /// The less loaded of two that are drawn.
    PowerOfTwo,
    /// The shortest time to the first token by the engines' true caches and queues.
    Oracle,
}

/// A router over engines.
#[derive(Debug)]
pub struct Router {
    policy: Policy,
    members: Vec<Member>,
    profile: WorkerProfile,
    adapters: BTreeSet<String>,
    selector: Selector,
    active: ActiveLoads,
    index: Option<Feed>,
    rng: ChaCha8Rng,
    block_size: NonZeroU32,
}

#[derive(Debug)]
struct Member {
    key: WorkerKey,
    rank: RankId,
}

/// The index, and what it has not heard yet.
#[derive(Debug)]
pub struct Feed {
    index: Index,
    scratch: Scratch,
    delay: Nanos,
    sources: Vec<Source>,
}

#[derive(Debug)]
struct Source {
    worker: WorkerId,
    id: SourceId,
    /// Events on their way, by the time at which they happened.
    late: VecDeque<(Nanos, Vec<KvEvent>)>,
}

// === impl Policy ===

impl Policy {
    /// The mode of the router; none if it is not asked.
    fn mode(self) -> Option<Mode> {
        match self {
            Self::Kv(_) => Some(Mode::Kv),
            Self::RoundRobin => Some(Mode::RoundRobin),
            Self::Random => Some(Mode::Random),
            Self::LeastLoaded => Some(Mode::LeastLoaded),
            Self::PowerOfTwo => Some(Mode::PowerOfTwo),
            Self::Oracle => None,
        }
    }

    /// Whether it is the library's own way.
    #[must_use]
    pub fn is_kv(self) -> bool {
        matches!(self, Self::Kv(_))
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.mode()) {
            (Self::Kv(delay), _) => write!(f, "kv, {} ms late", delay / 1_000_000),
            (_, Some(mode)) => mode.fmt(f),
            (_, None) => f.write_str("oracle"),
        }
    }
}

// === impl Router ===

impl Router {
    /// A router with the library's defaults but for the cost.
    ///
    /// # Errors
    /// If the index or the library refuses the engines.
    pub fn new(
        policy: Policy,
        options: &ClusterOptions,
        block_size: NonZeroU32,
        seed: u64,
    ) -> Result<Self> {
        let engines = options.engines;
        let mut active = ActiveLoads::new(ActiveConfig::new(block_size));
        let mut members = Vec::with_capacity(engines);
        for number in 0..engines {
            let key = WorkerKey { worker: worker_id(number)?, rank: 0 };
            let rank = active.join(&key).context("too many engines")?;
            members.push(Member { key, rank });
        }
        let mode = policy.mode().unwrap_or_default();
        let index = match policy {
            Policy::Kv(delay) => Some(Feed::new(engines, delay)?),
            _ => None,
        };
        Ok(Self {
            policy,
            members,
            profile: WorkerProfile::default(),
            adapters: BTreeSet::new(),
            selector: Selector::new(SelectConfig {
                mode,
                cost: options.cost,
                ..SelectConfig::default()
            }),
            active,
            index,
            rng: ChaCha8Rng::seed_from_u64(seed),
            block_size,
        })
    }

    /// The number of the engine that gets a request; it counts as load there at once.
    ///
    /// # Errors
    /// If the library refuses the request.
    pub fn place(
        &mut self,
        id: usize,
        job: &Job,
        engines: &[Engine<&Job>],
        now: Nanos,
    ) -> Result<usize> {
        if self.policy == Policy::Oracle {
            return Ok(best_of(engines, job, now));
        }
        let names = job.prompt_names(self.block_size.get() as usize);
        let chain: Vec<_> = names.iter().map(|&name| SequenceHash(name)).collect();
        let held = match &mut self.index {
            Some(feed) => feed.overlaps(names, now)?,
            None => vec![0; self.members.len()],
        };
        let Self { members, profile, adapters, active, selector, rng, .. } = self;
        let shared = active.shared(&chain);
        let candidates: Vec<_> = members
            .iter()
            .zip(held)
            .map(|(member, device)| Candidate {
                key: &member.key,
                profile,
                adapters,
                load: active.load(member.rank),
                shared_blocks: shared.of(member.rank),
                overlap: TierBlocks { device, ..TierBlocks::default() },
                trust: Trust::Full,
                age: Duration::MAX,
                is_ejected: false,
            })
            .collect();
        let input_tokens = job.prompt_tokens as u64;
        let question = Question::new(input_tokens, self.block_size);
        let mut draw = || rng.random::<u64>();
        let decision = selector.select(&question, &candidates, &mut draw)?;
        let chosen = members.get(decision.candidate).context("an engine that is not there")?;
        let request = NewRequest {
            rank: chosen.rank,
            blocks: PromptBlocks::Chain(&chain),
            input_tokens,
            prefill_tokens: decision.cost.booked_prefill_tokens(),
            expected_output_tokens: None,
        };
        active.add(&request_key(id)?, request, Duration::from_nanos(now))?;
        Ok(decision.candidate)
    }

    /// The first token of a request is out.
    ///
    /// # Errors
    /// If the library refuses the request's number.
    pub fn first_token(&mut self, id: usize, now: Nanos) -> Result<()> {
        self.active.mark_prefill_completed(&request_key(id)?, Duration::from_nanos(now));
        Ok(())
    }

    /// A request has ended.
    ///
    /// # Errors
    /// If the library refuses the request's number.
    pub fn finished(&mut self, id: usize) -> Result<()> {
        self.active.free(&request_key(id)?);
        Ok(())
    }

    /// The cache of an engine changed.
    pub fn cache_changed(&mut self, engine: usize, at: Nanos, events: Vec<KvEvent>) {
        let sources = self.index.as_mut().map(|feed| &mut feed.sources);
        if let Some(source) = sources.and_then(|sources| sources.get_mut(engine)) {
            source.late.push_back((at, events));
        }
    }

    /// The index; none if the policy does not ask it.
    #[cfg(test)]
    pub(super) fn index(&mut self) -> Option<&mut Feed> {
        self.index.as_mut()
    }
}

// === impl Feed ===

impl Feed {
    fn new(engines: usize, delay: Nanos) -> Result<Self> {
        let mut index = Index::new(Limits::default());
        let mut sources = Vec::with_capacity(engines);
        for number in 0..engines {
            let worker = worker_id(number)?;
            let id = index.add_source(&worker, "events", 0, CopyMode::Counted)?;
            sources.push(Source { worker, id, late: VecDeque::new() });
        }
        Ok(Self { index, scratch: Scratch::default(), delay, sources })
    }

    /// Leading blocks that each engine holds, as far as the index has heard.
    pub(super) fn overlaps(&mut self, names: &[u64], now: Nanos) -> Result<Vec<u32>> {
        let Self { index, scratch, delay, sources } = self;
        for source in &mut *sources {
            let heard = source.late.partition_point(|(at, _)| at + *delay <= now);
            for event in source.late.drain(..heard).flat_map(|(_, events)| events) {
                index.apply(source.id, 0, &event)?;
            }
        }
        let locals: Vec<_> = names.iter().map(|&name| LocalHash(name)).collect();
        let key = QueryKey::Locals(&locals);
        index.find(Query { key, tiers: TierSet::ALL, workers: None, minimum_overlap: 1 }, scratch);
        let mut held = vec![0; sources.len()];
        for found in scratch.matches() {
            let holder = index.holder(found.holder).context("a holder that is not there")?;
            let engine = sources.iter().position(|source| source.worker == *holder.worker());
            if let Some(blocks) = engine.and_then(|engine| held.get_mut(engine)) {
                *blocks = found.by_best_tier.get(Tier::Device.index()).copied().unwrap_or(0);
            }
        }
        Ok(held)
    }
}

/// The engine with the shortest forecast; of equal ones the one with the fewest requests.
fn best_of(engines: &[Engine<&Job>], job: &Job, now: Nanos) -> usize {
    let by = |(_, engine): &(usize, &Engine<&Job>)| {
        (forecast::time_to_first_token(engine, job, now), engine.requests())
    };
    engines.iter().enumerate().min_by_key(by).map_or(0, |(number, _)| number)
}

/// Ids in the order of engines.
fn worker_id(number: usize) -> Result<WorkerId> {
    Ok(WorkerId::new(&format!("engine-{number:04}"))?)
}

fn request_key(id: usize) -> Result<RequestKey> {
    Ok(RequestKey::new(ROUTER, &id.to_string())?)
}
