use super::chains::Chains;
use super::config::{ACTIVE_RANKS_MAX, ActiveConfig, BlockTracking, KvReuse};
use super::key::{RequestKey, RouterId};
use super::rank::{LoadDigest, Rank, RankId, RankLoad};
use super::request::{
    ActiveRequest, NewRequest, PromptBlocks, REQUEST_BLOCKS_MAX, REQUEST_TOKENS_MAX, Request,
    place_digest,
};
use super::slab::Slab;
use kvasir_proto::types::{SequenceHash, WorkerKey};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::time::Duration;

/// Why a request is not counted. It can be served all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// The router has a request under way with this id.
    #[error("a request with this id is under way")]
    Duplicate,
    /// The rank is not known, or no longer.
    #[error("the rank is not known")]
    UnknownRank,
    /// The request has more blocks than one may have.
    #[error("the request has more than {REQUEST_BLOCKS_MAX} blocks")]
    TooManyBlocks,
    /// The request has more tokens than one may have.
    #[error("the request has more than {REQUEST_TOKENS_MAX} tokens")]
    TooManyTokens,
    /// As many requests are under way, or blocks in use, as may be.
    #[error("as much is under way as may be tracked")]
    Full,
}

/// What a message about a request changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// The load of this rank changed.
    Changed(RankId),
    /// Nothing but the lease.
    Unchanged,
    /// No such request is under way: it was freed, its lease ended, or its rank went.
    Unknown,
}

/// A request under way, in short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed<'a> {
    /// Where it is.
    pub worker: &'a WorkerKey,
    /// Tokens of its prompt that were expected in its rank's cache, in whatever tier.
    pub cached_tokens: u64,
    /// Whether its first token is out.
    pub is_prefill_completed: bool,
    /// Whether it is half of a request that has another one in another pool.
    pub is_paired: bool,
}

/// A request whose lease ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expired {
    /// The request.
    pub key: RequestKey,
    /// Where it was.
    pub rank: RankId,
}

/// How many leading blocks of a request each rank uses already.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SharedBlocks(Vec<u32>);

/// Loads of all ranks by the requests under way.
#[derive(Debug)]
pub struct ActiveLoads {
    config: ActiveConfig,
    ranks: Slab<Rank>,
    numbers: HashMap<WorkerKey, RankId>,
    generations: u64,
    requests: BTreeMap<RequestKey, Request>,
    /// When to look at the lease of a request; one entry for each.
    due: BTreeSet<(Duration, RequestKey)>,
    chains: Chains,
}

// === impl SharedBlocks ===

impl SharedBlocks {
    /// The number of a rank.
    #[must_use]
    pub fn of(&self, rank: RankId) -> u32 {
        let blocks = usize::try_from(rank.slot).ok().and_then(|slot| self.0.get(slot));
        blocks.copied().unwrap_or(0)
    }
}

// === impl ActiveLoads ===

impl ActiveLoads {
    /// Nothing is under way.
    #[must_use]
    pub fn new(config: ActiveConfig) -> Self {
        debug_assert_eq!(config.check(), Ok(()), "the process refuses what cannot be used");
        Self {
            config,
            ranks: Slab::default(),
            numbers: HashMap::new(),
            generations: 0,
            requests: BTreeMap::new(),
            due: BTreeSet::new(),
            chains: Chains::default(),
        }
    }

    /// The number of a rank, which has one from now on; none if there are [`ACTIVE_RANKS_MAX`].
    pub fn join(&mut self, worker: &WorkerKey) -> Option<RankId> {
        if let Some(rank) = self.numbers.get(worker) {
            return Some(*rank);
        }
        if self.ranks.len() >= ACTIVE_RANKS_MAX {
            return None;
        }
        let generation = self.generations;
        self.generations += 1;
        let slot = self.ranks.insert(Rank::new(worker.clone(), generation, place_digest(worker)));
        let rank = RankId { slot, generation };
        self.numbers.insert(worker.clone(), rank);
        Some(rank)
    }

    /// The number of a rank; none if it is not known.
    #[must_use]
    pub fn rank_of(&self, worker: &WorkerKey) -> Option<RankId> {
        self.numbers.get(worker).copied()
    }

    /// Forgets a rank that went, with its requests: how many there were.
    pub fn forget(&mut self, rank: RankId) -> u64 {
        let at =
            |(key, request): (&RequestKey, &Request)| (request.rank == rank).then(|| key.clone());
        let keys: Vec<_> = self.requests.iter().filter_map(at).collect();
        for key in &keys {
            self.free(key);
        }
        if self.rank(rank).is_some()
            && let Some(gone) = self.ranks.remove(rank.slot)
        {
            debug_assert!(gone.load.is_empty(), "{:?} of no request", gone.load);
            self.numbers.remove(&gone.key);
        }
        keys.len() as u64
    }

    /// Counts a request at its rank.
    ///
    /// # Errors
    /// If it is under way already, its rank is unknown, or it is beyond a limit. Nothing is counted then.
    pub fn add(
        &mut self,
        key: &RequestKey,
        new: NewRequest<'_>,
        now: Duration,
    ) -> Result<(), AddError> {
        self.check(key, &new)?;
        let blocks = self.tracked(new.blocks);
        let prefill_tokens = if self.config.track_prefill_tokens { new.prefill_tokens } else { 0 };
        let new = NewRequest { blocks, prefill_tokens, ..new };
        let expires = now.saturating_add(self.config.lease);
        let place = self.rank(new.rank).map_or(0, |rank| rank.place);
        let mut request = Request::new(key, &new, place, expires);
        let new_blocks = match blocks {
            PromptBlocks::Chain(chain) => {
                let inserted = self.chains.insert(new.rank.slot, chain);
                request.end = inserted.end;
                inserted.new_blocks
            }
            PromptBlocks::Unique(blocks) => {
                request.unique_blocks = u64::from(blocks);
                request.unique_blocks
            }
        };
        if let Some(rank) = self.ranks.get_mut(new.rank.slot) {
            rank.load.requests += 1;
            rank.load.prefilling_requests += 1;
            rank.load.prompt_blocks += new_blocks;
            rank.load.prefill_tokens += request.prefill_tokens;
            rank.add_digest(key.router, request.digest());
        }
        self.due.insert((request.due, key.clone()));
        self.requests.insert(key.clone(), request);
        debug_assert_eq!(self.due.len(), self.requests.len(), "one look at each lease");
        Ok(())
    }

    /// The first token of a request is out: its prefill counts no more.
    pub fn mark_prefill_completed(&mut self, key: &RequestKey, now: Duration) -> Update {
        let Some(request) = self.requests.get_mut(key) else { return Update::Unknown };
        request.expires = request.expires.max(now.saturating_add(self.config.lease));
        if request.is_prefill_completed {
            return Update::Unchanged;
        }
        let before = request.digest();
        let tokens = request.counted_prefill_tokens();
        request.is_prefill_completed = true;
        if let Some(rank) = self.ranks.get_mut(request.rank.slot) {
            take(&mut rank.load.prefill_tokens, tokens);
            take(&mut rank.load.prefilling_requests, 1);
            // Added first, so that a router's entry does not come and go.
            rank.add_digest(key.router, request.digest());
            rank.take_digest(key.router, before);
        }
        Update::Changed(request.rank)
    }

    /// A request has so many tokens of output, all together: told twice or in another order, it is the same.
    ///
    /// The first of them also completes its prefill, because document 001 takes it as the sign of that.
    pub fn report_output(&mut self, key: &RequestKey, output_tokens: u64, now: Duration) -> Update {
        let mut update = Update::Unchanged;
        if output_tokens > 0 {
            update = self.mark_prefill_completed(key, now);
        }
        let Some(request) = self.requests.get_mut(key) else { return Update::Unknown };
        request.expires = request.expires.max(now.saturating_add(self.config.lease));
        let output_tokens = output_tokens.min(REQUEST_TOKENS_MAX);
        if self.config.blocks != BlockTracking::PromptAndOutput
            || output_tokens <= request.output_tokens
        {
            return update;
        }
        request.output_tokens = output_tokens;
        let weight = request.weigh_output(self.config.block_size);
        let before = std::mem::replace(&mut request.output_milliblocks, weight);
        if let Some(rank) = self.ranks.get_mut(request.rank.slot) {
            rank.load.output_milliblocks += weight;
            take(&mut rank.load.output_milliblocks, before);
        }
        if weight == before { update } else { Update::Changed(request.rank) }
    }

    /// A request is still under way: its lease begins anew.
    pub fn renew(&mut self, key: &RequestKey, now: Duration) -> Update {
        let Some(request) = self.requests.get_mut(key) else { return Update::Unknown };
        request.expires = request.expires.max(now.saturating_add(self.config.lease));
        Update::Unchanged
    }

    /// A router is still there: the leases of all its requests begin anew. How many there are.
    pub fn renew_all(&mut self, router: RouterId, now: Duration) -> u64 {
        let expires = now.saturating_add(self.config.lease);
        let requests = self.requests.range_mut(RequestKey::first_of(router)..);
        let requests = requests.take_while(|(key, _)| key.router == router);
        let renew = |(_, at): (_, &mut Request)| at.expires = at.expires.max(expires);
        requests.map(renew).count() as u64
    }

    /// Notes how many blocks of a request its rank held when it was placed. No load depends on it, nor does a digest.
    pub fn set_overlap(&mut self, key: &RequestKey, overlap_blocks: u32) {
        if let Some(request) = self.requests.get_mut(key) {
            request.overlap_blocks = overlap_blocks;
        }
    }

    /// Notes whether a request is half of one that has another half in another pool. Replicas need not know.
    pub fn set_paired(&mut self, key: &RequestKey, is_paired: bool) {
        if let Some(request) = self.requests.get_mut(key) {
            request.is_paired = is_paired;
        }
    }

    /// A request has ended, well or badly.
    pub fn free(&mut self, key: &RequestKey) -> Update {
        let Some(request) = self.requests.remove(key) else { return Update::Unknown };
        self.due.remove(&(request.due, key.clone()));
        let freed_blocks = match request.end {
            Some(_) => self.chains.remove(request.rank.slot, request.end),
            None => request.unique_blocks,
        };
        if let Some(rank) = self.ranks.get_mut(request.rank.slot) {
            take(&mut rank.load.requests, 1);
            take(&mut rank.load.prefilling_requests, u64::from(!request.is_prefill_completed));
            take(&mut rank.load.prompt_blocks, freed_blocks);
            take(&mut rank.load.output_milliblocks, request.output_milliblocks);
            take(&mut rank.load.prefill_tokens, request.counted_prefill_tokens());
            rank.take_digest(key.router, request.digest());
            debug_assert!(rank.load.requests > 0 || rank.load.is_empty(), "{:?}", rank.load);
        }
        debug_assert_eq!(self.due.len(), self.requests.len(), "one look at each lease");
        Update::Changed(request.rank)
    }

    /// Frees the requests whose lease has ended at `now`.
    pub fn expire(&mut self, now: Duration) -> Vec<Expired> {
        let mut expired = Vec::new();
        while let Some((_, key)) = self.due.first().filter(|(due, _)| *due <= now).cloned() {
            let Some(request) = self.requests.get_mut(&key) else {
                debug_assert!(false, "what is freed is not looked at");
                self.due.pop_first();
                continue;
            };
            if request.expires > now {
                // It was heard of since: messages do not move it, which would cost each of them a search.
                self.due.pop_first();
                request.due = request.expires;
                self.due.insert((request.due, key));
                continue;
            }
            let rank = request.rank;
            self.free(&key);
            expired.push(Expired { key, rank });
        }
        expired
    }

    /// When [`ActiveLoads::expire`] has something to do, at the earliest; none while nothing is under way.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Duration> {
        self.due.first().map(|(due, _)| *due)
    }

    /// The load of a rank; nothing if the rank is not known.
    #[must_use]
    pub fn load(&self, rank: RankId) -> RankLoad {
        self.rank(rank).map(|rank| rank.load).unwrap_or_default()
    }

    /// How many leading blocks of a request each rank uses already. None, where blocks are not tracked or not shared.
    #[must_use]
    pub fn shared(&self, chain: &[SequenceHash]) -> SharedBlocks {
        if self.chains.blocks() == 0 {
            return SharedBlocks::default();
        }
        let mut shared = vec![0; self.ranks.numbers()];
        self.chains.count_shared(chain, &mut shared);
        SharedBlocks(shared)
    }

    /// Digest of a rank's requests, those of all routers.
    #[must_use]
    pub fn digest(&self, rank: RankId) -> LoadDigest {
        let digests = self.rank(rank).map(|rank| rank.digests.values()).into_iter().flatten();
        digests.fold(LoadDigest::default(), |all, digest| all.with(*digest))
    }

    /// Digest of a rank's requests that one router placed: what that router can be asked about.
    #[must_use]
    pub fn digest_of(&self, rank: RankId, router: RouterId) -> LoadDigest {
        let digests = self.rank(rank).map(|rank| &rank.digests);
        digests.and_then(|digests| digests.get(&router)).copied().unwrap_or_default()
    }

    /// Digest of all requests that one router placed. It tells at which ranks they are, too.
    #[must_use]
    pub fn digest_of_router(&self, router: RouterId) -> LoadDigest {
        let digests = self.ranks.iter().filter_map(|(_, rank)| rank.digests.get(&router));
        digests.fold(LoadDigest::default(), |all, digest| all.with(*digest))
    }

    /// Digest of a request under way.
    #[must_use]
    pub fn digest_of_request(&self, key: &RequestKey) -> Option<u64> {
        self.requests.get(key).map(Request::digest)
    }

    /// Digests of a router's requests whose ids come after `id`, which may be empty, by id.
    pub fn digests_after<'a>(
        &'a self,
        router: RouterId,
        id: &str,
    ) -> impl Iterator<Item = (&'a RequestKey, u64)> + use<'a> {
        let after = Bound::Excluded(RequestKey::before(router, id));
        let requests = self.requests.range((after, Bound::Unbounded));
        let requests = requests.take_while(move |(key, _)| key.router == router);
        requests.map(|(key, request)| (key, request.digest()))
    }

    /// A router's requests at a rank, by id: what to tell a replica whose digest differs.
    pub fn requests_of(
        &self,
        rank: RankId,
        router: RouterId,
    ) -> impl Iterator<Item = ActiveRequest> {
        let requests = self.requests.range(RequestKey::first_of(router)..);
        let requests = requests.take_while(move |(key, _)| key.router == router);
        requests.filter(move |(_, at)| at.rank == rank).filter_map(|(key, at)| self.view(key, at))
    }

    /// A request under way.
    #[must_use]
    pub fn request(&self, key: &RequestKey) -> Option<ActiveRequest> {
        self.view(key, self.requests.get(key)?)
    }

    /// A request under way, without its blocks.
    #[must_use]
    pub fn placed(&self, key: &RequestKey) -> Option<Placed<'_>> {
        let request = self.requests.get(key)?;
        let block_size = u64::from(self.config.block_size.get());
        Some(Placed {
            worker: &self.rank(request.rank)?.key,
            cached_tokens: u64::from(request.overlap_blocks) * block_size,
            is_prefill_completed: request.is_prefill_completed,
            is_paired: request.is_paired,
        })
    }

    /// Requests under way.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether nothing is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The ranks, with their loads.
    pub fn ranks(&self) -> impl Iterator<Item = (RankId, &WorkerKey, RankLoad)> {
        self.ranks.iter().map(|(slot, rank)| {
            (RankId { slot, generation: rank.generation }, &rank.key, rank.load)
        })
    }

    fn rank(&self, rank: RankId) -> Option<&Rank> {
        self.ranks.get(rank.slot).filter(|at| at.generation == rank.generation)
    }

    fn check(&self, key: &RequestKey, new: &NewRequest<'_>) -> Result<(), AddError> {
        let blocks = usize::try_from(new.blocks.count()).unwrap_or(usize::MAX);
        if self.rank(new.rank).is_none() {
            return Err(AddError::UnknownRank);
        }
        if blocks > REQUEST_BLOCKS_MAX {
            return Err(AddError::TooManyBlocks);
        }
        if new.input_tokens.max(new.prefill_tokens) > REQUEST_TOKENS_MAX {
            return Err(AddError::TooManyTokens);
        }
        if self.requests.contains_key(key) {
            return Err(AddError::Duplicate);
        }
        // As if none of its blocks were in use, which saves a walk.
        if self.requests.len() >= self.config.requests_max
            || self.chains.blocks() + blocks > self.config.blocks_max
        {
            return Err(AddError::Full);
        }
        Ok(())
    }

    /// The blocks of a request as they are tracked here.
    fn tracked<'a>(&self, blocks: PromptBlocks<'a>) -> PromptBlocks<'a> {
        match (self.config.blocks, self.config.reuse) {
            (BlockTracking::Off, _) => PromptBlocks::Unique(0),
            (_, KvReuse::Unique) => PromptBlocks::Unique(blocks.count()),
            (_, KvReuse::Assumed) => blocks,
        }
    }

    fn view(&self, key: &RequestKey, request: &Request) -> Option<ActiveRequest> {
        Some(ActiveRequest {
            key: key.clone(),
            worker: self.rank(request.rank)?.key.clone(),
            hashes: self.chains.chain(request.end),
            blocks: request.blocks,
            input_tokens: request.input_tokens,
            prefill_tokens: request.prefill_tokens,
            is_prefill_completed: request.is_prefill_completed,
            expected_output_tokens: request.expected_output_tokens,
            overlap_blocks: request.overlap_blocks,
        })
    }

    /// Checks the rules that the comments state.
    #[cfg(test)]
    pub(in crate::route) fn validate(&self) {
        self.chains.validate();
        assert_eq!(self.numbers.len(), self.ranks.len());
        let requests: u64 = self.ranks().map(|(_, _, load)| load.requests).sum();
        assert_eq!(requests, self.requests.len() as u64);
        let due = self.requests.iter().map(|(key, request)| {
            assert!(request.due <= request.expires, "a lease is looked at before it ends");
            (request.due, key.clone())
        });
        assert_eq!(self.due, due.collect());
    }
}

/// Takes away what was counted before.
fn take(count: &mut u64, what: u64) {
    debug_assert!(*count >= what, "{what} of {count}");
    *count = count.saturating_sub(what);
}
