//! One router replica: the cores of `router-client` for one or two pools of engines, and messages from other replicas.

use super::feed::worker_id;
use super::options::{ClusterOptions, Placement};
use super::way::{Policy, Way};
use crate::engine::timed::{Nanos, SECOND, TransferModel};
use anyhow::{Context, Result};
use kvasir_proto::convert::WorkerProfile;
use kvasir_proto::types::{SequenceHash, WorkerKey};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use router_client::route::{
    ActiveConfig, ActiveLoads, BlockKind, Candidate, CostConfig, Decision, Fetch, FetchConfig,
    FetchPlanner, Fetcher, HeldBlocks, Holder, NewRequest, PromptBlocks, Question, RankId, Rate,
    Replication, RequestKey, RequestNotes, RouterId, SelectConfig, Selector, SyncConfig,
    SyncMessage, TierBlocks, Trust, Update,
};
use router_client::router::PoolsConfig;
use std::collections::{BTreeSet, VecDeque};
use std::num::{NonZeroU32, NonZeroU64};
use std::ops::Range;
use std::time::Duration;

/// Bytes of keys and values per token. The value is arbitrary, because times are given per token.
const TOKEN_BYTES: NonZeroU64 = NonZeroU64::new(128 << 10).expect("not 0");

/// A request with the router's data for it.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    pub(super) id: usize,
    pub(super) input_tokens: u64,
    pub(super) chain: &'a [SequenceHash],
    /// Blocks of the request at each engine, by tier.
    pub(super) held: &'a [TierBlocks],
    pub(super) now: Nanos,
}

/// A message on its way to another replica.
#[derive(Debug, Clone)]
pub(super) struct Letter {
    arrives: Nanos,
    is_for_prefill: bool,
    message: SyncMessage,
}

/// A router.
#[derive(Debug)]
pub(super) struct Replica {
    main: Pool,
    prefill: Option<Pool>,
    rng: ChaCha8Rng,
    inbox: VecDeque<Letter>,
    pub(super) is_alive: bool,
}

/// The engines of one role, with their active requests.
#[derive(Debug)]
struct Pool {
    router: RouterId,
    members: Vec<Member>,
    adapters: BTreeSet<String>,
    selector: Selector,
    active: ActiveLoads,
    sync: Option<Replication>,
    /// Transfer times between engines; none if engines do not fetch blocks.
    fetch: Option<TransferModel>,
    block_size: NonZeroU32,
}

#[derive(Debug)]
struct Member {
    engine: usize,
    key: WorkerKey,
    rank: RankId,
    profile: WorkerProfile,
    held: HeldBlocks,
}

// === impl Replica ===

impl Replica {
    /// Creates a router with the library's defaults, except the cost.
    pub(super) fn new(
        number: usize,
        way: Way,
        options: &ClusterOptions,
        block_size: NonZeroU32,
        seed: u64,
    ) -> Result<Self> {
        let mode = way.policy.mode().unwrap_or_default();
        let config = SelectConfig { mode, cost: options.cost, ..SelectConfig::default() };
        let fetch = (way.policy == Policy::KvFetch).then_some(options.transfer);
        let router = RouterId(number as u64 + 1);
        let sync = (way.routers > 1).then(SyncConfig::default);
        let is_stated = options.states_capacity && !way.is_unstated;
        let capacity = is_stated.then_some(options.engine.capacity_blocks as u64);
        let profile = WorkerProfile { total_kv_blocks: capacity, ..WorkerProfile::default() };
        let pool = |engines: Range<usize>, active: ActiveConfig| {
            let pool = Pool::new(router, engines, &profile, config, active, sync);
            pool.map(|pool| Pool { fetch, ..pool })
        };
        let split = way.prefill_engines;
        let main = pool(split..options.engines, ActiveConfig::new(block_size))?;
        let prefill = (split > 0).then(|| pool(0..split, ActiveConfig::prefill_pool(block_size)));
        Ok(Self {
            main,
            prefill: prefill.transpose()?,
            rng: ChaCha8Rng::seed_from_u64(seed.wrapping_add(number as u64)),
            inbox: VecDeque::new(),
            is_alive: true,
        })
    }

    /// Records the number of blocks of each engine, as listed by the index.
    pub(super) fn observe(&mut self, blocks: &[u64]) {
        let pools = [Some(&mut self.main), self.prefill.as_mut()];
        for member in pools.into_iter().flatten().flat_map(|pool| &mut pool.members) {
            member.held.observe(blocks.get(member.engine).copied().unwrap_or(0));
            member.profile.total_kv_blocks = member.held.capacity();
        }
    }

    /// Applies the messages that have arrived by now, and ends requests with expired leases.
    pub(super) fn catch_up(&mut self, now: Nanos) {
        while self.inbox.front().is_some_and(|letter| letter.arrives <= now) {
            let Some(letter) = self.inbox.pop_front() else { break };
            let pool = match letter.is_for_prefill {
                true => self.prefill.as_mut(),
                false => Some(&mut self.main),
            };
            if let Some(Pool { sync: Some(sync), active, .. }) = pool {
                sync.receive(&letter.message, active, Duration::from_nanos(letter.arrives));
            }
        }
        self.main.expire(now);
        if let Some(prefill) = &mut self.prefill {
            prefill.expire(now);
        }
    }

    /// Places a request like [`Pools`](router_client::router::Pools): with a prefill engine only if that is cheaper,
    /// and then with a decode engine by load alone.
    pub(super) fn place(&mut self, asked: &Asked<'_>) -> Result<Placement> {
        let Self { main, prefill, rng, .. } = self;
        if let Some(prefill) = prefill {
            let least = PoolsConfig::default().remote_prefill_tokens_min;
            let local = main.preview(asked, rng)?;
            if asked.input_tokens >= least && local.cost.new_prefill_tokens >= least as f64 {
                let (first, fetch) = prefill.choose(asked, None, rng)?;
                let tokens = first.cost.booked_prefill_tokens();
                let first_engine = prefill.book(asked, &first, tokens, fetch)?;
                let (decode, _) = main.choose(asked, Some(0.0), rng)?;
                let engine = main.book(asked, &decode, 0, None)?;
                let predicted_blocks = first.overlap.total() + fetched(fetch);
                let prefill = Some(first_engine);
                return Ok(Placement { engine, prefill, predicted_blocks, fetch });
            }
        }
        let (decision, fetch) = main.choose(asked, None, rng)?;
        let tokens = decision.cost.booked_prefill_tokens();
        let engine = main.book(asked, &decision, tokens, fetch)?;
        let predicted_blocks = decision.overlap.total() + fetched(fetch);
        Ok(Placement { engine, prefill: None, predicted_blocks, fetch })
    }

    /// The first token of a request was sent, so its prefill engine has finished, too.
    pub(super) fn first_token(&mut self, id: usize, now: Nanos) -> Result<()> {
        self.main.first_token(id, now)?;
        self.prefill_done(id)
    }

    /// The prefill engine has finished a request.
    pub(super) fn prefill_done(&mut self, id: usize) -> Result<()> {
        self.prefill.as_mut().map_or(Ok(()), |prefill| prefill.free(id))
    }

    /// A request has ended.
    pub(super) fn finished(&mut self, id: usize) -> Result<()> {
        self.main.free(id)
    }

    /// Messages for the other replicas.
    pub(super) fn flush(&mut self, now: Nanos, arrives: Nanos) -> Vec<Letter> {
        let mut letters = Vec::new();
        let pools = [(false, Some(&mut self.main)), (true, self.prefill.as_mut())];
        for (is_for_prefill, pool) in pools {
            let Some(Pool { sync: Some(sync), active, .. }) = pool else { continue };
            let messages = sync.flush(active, Duration::from_nanos(now)).into_iter();
            letters.extend(messages.map(|message| Letter { arrives, is_for_prefill, message }));
        }
        letters
    }

    /// Queues arriving messages.
    pub(super) fn deliver(&mut self, letters: &[Letter]) {
        self.inbox.extend(letters.iter().cloned());
    }
}

fn fetched(fetch: Option<Fetch>) -> u32 {
    fetch.map_or(0, |fetch| fetch.blocks)
}

// === impl Pool ===

impl Pool {
    fn new(
        router: RouterId,
        engines: Range<usize>,
        profile: &WorkerProfile,
        config: SelectConfig,
        active: ActiveConfig,
        sync: Option<SyncConfig>,
    ) -> Result<Self> {
        let block_size = active.block_size;
        let mut active = ActiveLoads::new(active);
        let mut members = Vec::with_capacity(engines.len());
        for engine in engines {
            let key = WorkerKey { worker: worker_id(engine)?, rank: 0 };
            let rank = active.join(&key).context("too many engines")?;
            let profile = profile.clone();
            let held = HeldBlocks::default();
            members.push(Member { engine, key, rank, profile, held });
        }
        Ok(Self {
            router,
            members,
            adapters: BTreeSet::new(),
            selector: Selector::new(config),
            active,
            sync: sync.map(|config| Replication::new(router, config)),
            fetch: None,
            block_size,
        })
    }

    /// The engine that the pool would choose; does not advance the round-robin state.
    fn preview(&self, asked: &Asked<'_>, rng: &mut ChaCha8Rng) -> Result<Decision> {
        Ok(self.choose_by(&mut self.selector.clone(), asked, None, rng)?.0)
    }

    fn choose(
        &mut self,
        asked: &Asked<'_>,
        overlap_weight: Option<f64>,
        rng: &mut ChaCha8Rng,
    ) -> Result<(Decision, Option<Fetch>)> {
        let mut selector = self.selector.clone();
        let decision = self.choose_by(&mut selector, asked, overlap_weight, rng)?;
        self.selector = selector;
        Ok(decision)
    }

    fn choose_by(
        &self,
        selector: &mut Selector,
        asked: &Asked<'_>,
        overlap_weight: Option<f64>,
        rng: &mut ChaCha8Rng,
    ) -> Result<(Decision, Option<Fetch>)> {
        let Self { members, adapters, active, .. } = self;
        let planner = self.fetch.filter(|_| overlap_weight.is_none());
        let planner = planner.map(|model| self.planner(model, asked, &selector.config().cost));
        let fetch = |member: &Member, own_blocks: u32| {
            let measured = active.prefill_tokens_per_second(member.rank);
            let by = Fetcher {
                worker: member.engine,
                kind: Some(self.block_kind()),
                own_blocks,
                prefill: FetchConfig::default().prefill(measured),
            };
            planner.as_ref()?.plan(&by).ok()
        };
        let shared = active.shared(asked.chain);
        let now = Duration::from_nanos(asked.now);
        let candidate = |member: &'_ Member| {
            let overlap = asked.held.get(member.engine).copied().unwrap_or_default();
            let shared_blocks = shared.of(member.rank);
            let fetch = fetch(member, overlap.expecting(shared_blocks).total());
            (active.load_at(member.rank, now), shared_blocks, overlap, fetch)
        };
        let candidates: Vec<_> = members
            .iter()
            .map(|member| {
                let (load, shared_blocks, overlap, fetch) = candidate(member);
                Candidate {
                    key: &member.key,
                    profile: &member.profile,
                    adapters,
                    load,
                    shared_blocks,
                    overlap,
                    trust: Trust::Full,
                    fetch: fetch.map(|fetch| fetch.cost()),
                    age: Duration::MAX,
                    is_ejected: false,
                }
            })
            .collect();
        let mut question = Question::new(asked.input_tokens, self.block_size);
        question.overlap_score_weight = overlap_weight;
        let mut draw = || rng.random::<u64>();
        let decision = selector.select(&question, &candidates, &mut draw)?;
        let chosen = members.get(decision.candidate);
        let fetch = chosen.and_then(|member| candidate(member).3);
        Ok((decision, fetch))
    }

    /// Creates the planner of fetches. Each engine has an agent that serves the engine's blocks: blocks in device
    /// memory are also in the agent's host memory.
    fn planner(&self, model: TransferModel, asked: &Asked<'_>, cost: &CostConfig) -> FetchPlanner {
        let per_second = TOKEN_BYTES.get() as f64 * SECOND as f64 / model.token.max(1) as f64;
        let bandwidth = Rate { per_second, is_measured: true };
        let holder = |member: &Member| {
            let TierBlocks { device, host, disk, .. } = *asked.held.get(member.engine)?;
            let blocks = TierBlocks { host: device + host, disk, ..TierBlocks::default() };
            let worker = member.engine;
            let kind = self.block_kind();
            Some(Holder { candidate: member.engine, worker, blocks, kind })
        };
        let holders = self.members.iter().filter_map(holder);
        let blocks = u32::try_from(asked.chain.len()).unwrap_or(u32::MAX);
        let turn = asked.chain.first().map_or(0, |first| first.0 as usize);
        FetchPlanner::new(blocks, self.block_size, &cost.credits, bandwidth, holders, turn)
    }

    fn block_kind(&self) -> BlockKind {
        let bytes = NonZeroU64::from(self.block_size).saturating_mul(TOKEN_BYTES);
        BlockKind { bytes, fingerprint: 0 }
    }

    /// Counts a request where it was placed. Returns the number of the engine.
    fn book(
        &mut self,
        asked: &Asked<'_>,
        decision: &Decision,
        prefill_tokens: u64,
        fetch: Option<Fetch>,
    ) -> Result<usize> {
        let chosen = self.members.get(decision.candidate);
        let Member { engine, rank, .. } = chosen.context("an engine that is not there")?;
        let request = NewRequest {
            rank: *rank,
            blocks: PromptBlocks::Chain(asked.chain),
            input_tokens: asked.input_tokens,
            prefill_tokens,
            expected_output_tokens: None,
        };
        let key = self.key(asked.id)?;
        let overlap_blocks = decision.overlap.total();
        let has_fetch = fetch.is_some();
        let notes = RequestNotes { overlap_blocks, has_fetch, ..RequestNotes::default() };
        self.active.add_noted(&key, request, notes, Duration::from_nanos(asked.now))?;
        if let Some(sync) = &mut self.sync {
            sync.local_added(&key);
        }
        Ok(*engine)
    }

    fn first_token(&mut self, id: usize, now: Nanos) -> Result<()> {
        let key = self.key(id)?;
        let update = self.active.mark_prefill_completed(&key, Duration::from_nanos(now));
        if let (Update::Changed(_), Some(sync)) = (update, &mut self.sync) {
            sync.local_prefill_completed(&key);
        }
        Ok(())
    }

    fn free(&mut self, id: usize) -> Result<()> {
        let key = self.key(id)?;
        if let (Update::Changed(_), Some(sync)) = (self.active.free(&key), &mut self.sync) {
            sync.local_freed(&key);
        }
        Ok(())
    }

    fn expire(&mut self, now: Nanos) {
        for expired in self.active.expire(Duration::from_nanos(now)) {
            if let Some(sync) = &mut self.sync {
                sync.local_freed(&expired.key);
            }
        }
        if let Some(sync) = &mut self.sync {
            sync.free_gone(&mut self.active, Duration::from_nanos(now));
        }
    }

    fn key(&self, id: usize) -> Result<RequestKey> {
        Ok(RequestKey::new(self.router, &id.to_string())?)
    }
}
