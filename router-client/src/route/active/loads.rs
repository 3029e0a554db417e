use super::chains::Chains;
use super::config::{ACTIVE_RANKS_MAX, ActiveConfig, BlockTracking, KvReuse};
use super::key::{RequestKey, RouterId};
use super::outcome::{AddError, Expired, Placed, SharedBlocks, Update};
use super::rank::{BLOCK_MILLIBLOCKS, LoadDigest, Rank, RankId, RankLoad, RankLoads};
use super::request::{
    ActiveRequest, NewRequest, PromptBlocks, REQUEST_BLOCKS_MAX, REQUEST_TOKENS_MAX, Request,
    RequestNotes, place_digest,
};
use super::requests::Requests;
use super::slab::Slab;
use kvasir_proto::types::{SequenceHash, WorkerKey};
use std::collections::HashMap;
use std::time::Duration;

/// Loads of all ranks from active requests.
#[derive(Debug)]
pub struct ActiveLoads {
    config: ActiveConfig,
    ranks: Slab<Rank>,
    loads: RankLoads,
    numbers: HashMap<WorkerKey, RankId>,
    generations: u64,
    requests: Requests,
    chains: Chains,
}

// === impl ActiveLoads ===

impl ActiveLoads {
    /// An empty table: no ranks, no requests.
    #[must_use]
    pub fn new(config: ActiveConfig) -> Self {
        debug_assert_eq!(config.check(), Ok(()), "the process refuses what cannot be used");
        Self {
            config,
            ranks: Slab::default(),
            loads: RankLoads::default(),
            numbers: HashMap::new(),
            generations: 0,
            requests: Requests::default(),
            chains: Chains::default(),
        }
    }

    /// Adds a rank, unless it is known, and returns its number. Returns `None` if there are [`ACTIVE_RANKS_MAX`] other
    /// ranks.
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
        self.loads.join(rank);
        self.numbers.insert(worker.clone(), rank);
        Some(rank)
    }

    /// The number of a rank; `None` for an unknown rank.
    #[must_use]
    pub fn rank_of(&self, worker: &WorkerKey) -> Option<RankId> {
        self.numbers.get(worker).copied()
    }

    /// Removes a rank with its requests. Returns the number of removed requests: 0 if the rank is unknown.
    pub fn forget(&mut self, rank: RankId) -> u64 {
        if self.rank(rank).is_none() {
            return 0;
        }
        let mut freed = 0;
        while let Some(key) = self.requests.last_of(rank.slot).cloned() {
            self.free(&key);
            freed += 1;
        }
        debug_assert!(self.load(rank).is_empty(), "{:?} of no request", self.load(rank));
        if let Some(gone) = self.ranks.remove(rank.slot) {
            self.loads.free_rank(rank);
            self.numbers.remove(&gone.key);
        }
        if self.ranks.len() == 0 {
            // Slot numbers start from 0 again.
            self.loads = RankLoads::default();
        }
        freed
    }

    /// Adds a request's load to its rank.
    ///
    /// # Errors
    /// If the request is already active, its rank is unknown, or a limit is exceeded. Then nothing is counted.
    pub fn add(
        &mut self,
        key: &RequestKey,
        new: NewRequest<'_>,
        now: Duration,
    ) -> Result<(), AddError> {
        self.add_noted(key, new, RequestNotes::default(), now)
    }

    /// Adds a request, as [`ActiveLoads::add`], with notes about it.
    ///
    /// # Errors
    /// As for [`ActiveLoads::add`].
    pub fn add_noted(
        &mut self,
        key: &RequestKey,
        new: NewRequest<'_>,
        notes: RequestNotes,
        now: Duration,
    ) -> Result<(), AddError> {
        let place = self.rank(new.rank).ok_or(AddError::UnknownRank)?.place;
        let has_room = self.check(&new)?;
        let blocks = self.tracked(new.blocks);
        let given_tokens =
            new.prefill_tokens.saturating_add(u64::from(self.config.block_size.get()));
        let prefill_tokens = if self.config.track_prefill_tokens { new.prefill_tokens } else { 0 };
        let new = NewRequest { blocks, prefill_tokens, ..new };
        let expires = now.saturating_add(self.config.lease);
        let vacancy = self.requests.vacancy(key.clone()).ok_or(AddError::Duplicate)?;
        if !has_room {
            return Err(AddError::Full);
        }
        let mut request = Request::new(key, &new, place, expires);
        request.notes = notes;
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
        if self.config.blocks != BlockTracking::Off {
            request.context_tokens = request.input_tokens;
        }
        // A request without tokens to compute also counts as given work.
        self.loads.add_tokens(new.rank, given_tokens);
        if let Some(load) = self.loads.get_mut(new.rank) {
            load.requests += 1;
            load.prefilling_requests += 1;
            load.prompt_blocks += new_blocks;
            load.prefill_tokens += request.prefill_tokens;
            load.context_tokens += request.context_tokens;
        }
        if let Some(rank) = self.ranks.get_mut(new.rank.slot) {
            rank.add_digest(key.router, request.digest());
            // A request without tokens to compute does not show the pace.
            if request.prefill_tokens > 0 {
                request.prefill_number = Some(rank.prefills.add(request.prefill_tokens, now));
                self.loads.set_pace(new.rank, rank.prefills.pace());
            }
        }
        vacancy.fill(request);
        Ok(())
    }

    /// Records the first token of a request, which ends its prefill load. Renews the request's lease. `Unchanged` if the
    /// first token was recorded before.
    pub fn mark_prefill_completed(&mut self, key: &RequestKey, now: Duration) -> Update {
        let Some(request) = self.requests.get_mut(key) else { return Update::Unknown };
        request.expires = request.expires.max(now.saturating_add(self.config.lease));
        if request.is_prefill_completed {
            return Update::Unchanged;
        }
        let before = request.digest();
        let tokens = request.counted_prefill_tokens();
        request.is_prefill_completed = true;
        if let Some(load) = self.loads.get_mut(request.rank) {
            subtract(&mut load.prefill_tokens, tokens);
            subtract(&mut load.prefilling_requests, 1);
        }
        if let Some(rank) = self.ranks.get_mut(request.rank.slot) {
            // Added first, so that the router's entry is not removed and recreated.
            rank.add_digest(key.router, request.digest());
            rank.take_digest(key.router, before);
            if let Some(number) = request.prefill_number.take() {
                // A fetch delays the first token, which then does not show the pace.
                rank.prefills.complete(number, now, !request.notes.has_fetch);
                self.loads.set_pace(request.rank, rank.prefills.pace());
            }
        }
        Update::Changed(request.rank)
    }

    /// Reports the total number of output tokens of a request. Idempotent, and independent of the order of reports.
    ///
    /// The first output token also completes the prefill, because document 001 uses it as that signal.
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
        if let Some(load) = self.loads.get_mut(request.rank) {
            load.output_milliblocks += weight;
            subtract(&mut load.output_milliblocks, before);
        }
        if weight == before { update } else { Update::Changed(request.rank) }
    }

    /// Renews the lease of a request.
    pub fn renew(&mut self, key: &RequestKey, now: Duration) -> Update {
        let Some(request) = self.requests.get_mut(key) else { return Update::Unknown };
        request.expires = request.expires.max(now.saturating_add(self.config.lease));
        Update::Unchanged
    }

    /// Renews the leases of all requests of a router that is alive. Returns their number.
    pub fn renew_all(&mut self, router: RouterId, now: Duration) -> u64 {
        let expires = now.saturating_add(self.config.lease);
        self.requests.renew(router, expires)
    }

    /// Ends a request, successful or not. Returns `Unknown` if it is not active.
    pub fn free(&mut self, key: &RequestKey) -> Update {
        let Some(request) = self.requests.remove(key) else { return Update::Unknown };
        // Blocks that another request also uses stay counted.
        let freed_blocks = match request.end {
            Some(_) => self.chains.remove(request.rank.slot, request.end),
            None => request.unique_blocks,
        };
        if let Some(load) = self.loads.get_mut(request.rank) {
            subtract(&mut load.requests, 1);
            subtract(&mut load.prefilling_requests, u64::from(!request.is_prefill_completed));
            subtract(&mut load.prompt_blocks, freed_blocks);
            subtract(&mut load.output_milliblocks, request.output_milliblocks);
            subtract(&mut load.prefill_tokens, request.counted_prefill_tokens());
            subtract(&mut load.context_tokens, request.context_tokens);
            debug_assert!(load.requests > 0 || load.is_empty(), "{load:?}");
        }
        if let Some(rank) = self.ranks.get_mut(request.rank.slot) {
            rank.take_digest(key.router, request.digest());
            if let Some(number) = request.prefill_number {
                rank.prefills.cancel(number);
                self.loads.set_pace(request.rank, rank.prefills.pace());
            }
        }
        Update::Changed(request.rank)
    }

    /// Frees the requests whose lease has expired at `now`.
    pub fn expire(&mut self, now: Duration) -> Vec<Expired> {
        let mut expired = Vec::new();
        while let Some(key) = self.requests.expired(now) {
            let Update::Changed(rank) = self.free(&key) else { break };
            expired.push(Expired { key, rank });
        }
        expired
    }

    /// Earliest time at which [`ActiveLoads::expire`] has work; `None` without active requests.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Duration> {
        self.requests.next_due()
    }

    /// The load of a rank; empty for an unknown rank.
    #[must_use]
    #[inline]
    pub fn load(&self, rank: RankId) -> RankLoad {
        self.loads.get(rank)
    }

    /// The load of a rank for a decision at `now`: like [`ActiveLoads::load`], with an estimate of
    /// [`RankLoad::computed_tokens`] from the pace of the rank's first tokens so far, and with
    /// [`RankLoad::given_tokens`]. The estimate never exceeds the tokens of the oldest prompt.
    #[must_use]
    #[inline]
    pub fn load_at(&self, rank: RankId, now: Duration) -> RankLoad {
        self.loads.get_at(rank, now)
    }

    /// Records the number of blocks in use that a rank's engine reports (`None`: no report). Blocks not used by known
    /// requests become [`RankLoad::foreign_blocks`]. Ignored if blocks are not tracked, because then foreign blocks
    /// cannot be identified.
    pub fn report_blocks(&mut self, rank: RankId, blocks: Option<u64>) {
        let blocks = blocks.filter(|_| self.config.blocks != BlockTracking::Off);
        if let Some(load) = self.loads.get_mut(rank) {
            let own = load.prompt_blocks + load.output_milliblocks.div_ceil(BLOCK_MILLIBLOCKS);
            load.foreign_blocks = blocks.unwrap_or(0).saturating_sub(own);
        }
    }

    /// Tokens that a rank computes per second, measured at its first tokens; `None` before the first one.
    #[must_use]
    pub fn prefill_tokens_per_second(&self, rank: RankId) -> Option<f64> {
        self.rank(rank)?.prefills.tokens_per_second()
    }

    /// Leading blocks of a request that each rank uses already. 0 if blocks are not tracked or not shared.
    #[must_use]
    pub fn shared(&self, chain: &[SequenceHash]) -> SharedBlocks {
        if !self.chains.begins(chain) {
            return SharedBlocks::default();
        }
        let mut shared = vec![0; self.ranks.numbers()];
        self.chains.count_shared(chain, &mut shared);
        SharedBlocks(shared)
    }

    /// Digest of a rank's requests from all routers.
    #[must_use]
    pub fn digest(&self, rank: RankId) -> LoadDigest {
        let digests = self.rank(rank).map(|rank| rank.digests.values()).into_iter().flatten();
        digests.fold(LoadDigest::default(), |all, digest| all.with(*digest))
    }

    /// Digest of a rank's requests from one router, which can be compared with that router's own digest.
    #[must_use]
    pub fn digest_of(&self, rank: RankId, router: RouterId) -> LoadDigest {
        let digests = self.rank(rank).map(|rank| &rank.digests);
        digests.and_then(|digests| digests.get(&router)).copied().unwrap_or_default()
    }

    /// Digest of all requests of one router. It includes the ranks of the requests.
    #[must_use]
    pub fn digest_of_router(&self, router: RouterId) -> LoadDigest {
        let digests = self.ranks.iter().filter_map(|(_, rank)| rank.digests.get(&router));
        digests.fold(LoadDigest::default(), |all, digest| all.with(*digest))
    }

    /// Digest of an active request.
    #[must_use]
    pub fn digest_of_request(&self, key: &RequestKey) -> Option<u64> {
        self.requests.get(key).map(Request::digest)
    }

    /// Digests of a router's requests with ids after `id` (which may be empty), by id.
    pub fn digests_after<'a>(
        &'a self,
        router: RouterId,
        id: &str,
    ) -> impl Iterator<Item = (&'a RequestKey, u64)> + use<'a> {
        self.requests.after(router, id).map(|(key, request)| (key, request.digest()))
    }

    /// Returns a router's requests at a rank, by id: the data to send to a replica whose digest differs.
    pub fn requests_of(
        &self,
        rank: RankId,
        router: RouterId,
    ) -> impl Iterator<Item = ActiveRequest> {
        let slot = self.rank(rank).map(|_known| rank.slot);
        let here = slot.into_iter().flat_map(|slot| self.requests.of_rank(slot));
        let mut here: Vec<_> = here.filter(|(key, _)| key.router == router).collect();
        here.sort_unstable_by_key(|(key, _)| *key);
        here.into_iter().filter_map(|(key, request)| self.view(key, request))
    }

    /// An active request with its blocks.
    #[must_use]
    pub fn request(&self, key: &RequestKey) -> Option<ActiveRequest> {
        self.view(key, self.requests.get(key)?)
    }

    /// Whether a request is active.
    #[must_use]
    pub fn contains(&self, key: &RequestKey) -> bool {
        self.requests.contains(key)
    }

    /// Returns an active request without its blocks, or `None` if it is unknown.
    #[must_use]
    pub fn placed(&self, key: &RequestKey) -> Option<Placed<'_>> {
        let request = self.requests.get(key)?;
        let block_size = u64::from(self.config.block_size.get());
        Some(Placed {
            worker: &self.rank(request.rank)?.key,
            cached_tokens: u64::from(request.notes.overlap_blocks) * block_size,
            is_prefill_completed: request.is_prefill_completed,
            is_paired: request.notes.is_paired,
            reuse: request.notes.reuse.as_deref(),
        })
    }

    /// Number of active requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there are no active requests.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.len() == 0
    }

    /// The ranks, with their loads.
    pub fn ranks(&self) -> impl Iterator<Item = (RankId, &WorkerKey, RankLoad)> {
        self.ranks.iter().map(|(slot, rank)| {
            let number = RankId { slot, generation: rank.generation };
            (number, &rank.key, self.loads.get(number))
        })
    }

    fn rank(&self, rank: RankId) -> Option<&Rank> {
        self.ranks.get(rank.slot).filter(|at| at.generation == rank.generation)
    }

    /// Checks the limits of one request. Returns false if the table has no room for it.
    fn check(&self, new: &NewRequest<'_>) -> Result<bool, AddError> {
        let blocks = usize::try_from(new.blocks.count()).unwrap_or(usize::MAX);
        if blocks > REQUEST_BLOCKS_MAX {
            return Err(AddError::TooManyBlocks);
        }
        if new.input_tokens.max(new.prefill_tokens) > REQUEST_TOKENS_MAX {
            return Err(AddError::TooManyTokens);
        }
        // Assumes that no block of the request is in use yet, which saves a lookup.
        Ok(self.requests.len() < self.config.requests_max
            && self.chains.blocks() + blocks <= self.config.blocks_max)
    }

    /// The request's blocks in the form in which they are tracked.
    fn tracked<'a>(&self, blocks: PromptBlocks<'a>) -> PromptBlocks<'a> {
        match (self.config.blocks, self.config.reuse) {
            (BlockTracking::Off, _) => PromptBlocks::Unique(0),
            (_, KvReuse::Unique) => PromptBlocks::Unique(blocks.count()),
            (_, KvReuse::Assumed) => blocks,
        }
    }

    /// Returns an active request in the form that is sent to other routers, or `None` if its rank has left.
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
            overlap_blocks: request.notes.overlap_blocks,
        })
    }

    /// Checks the documented invariants.
    #[cfg(test)]
    pub(in crate::route) fn validate(&self) {
        self.chains.validate();
        assert_eq!(self.numbers.len(), self.ranks.len());
        let requests: u64 = self.ranks().map(|(_, _, load)| load.requests).sum();
        assert_eq!(requests, self.requests.len() as u64);
        self.requests.validate();
        for (number, key, load) in self.ranks() {
            let here = self.requests.of_rank(number.slot);
            let here: Vec<_> = here.map(|(_, request)| request.rank).collect();
            assert_eq!(here.len() as u64, load.requests, "{key}");
            assert!(here.iter().all(|rank| *rank == number), "{key}");
        }
    }
}

/// Subtracts an earlier count.
fn subtract(count: &mut u64, what: u64) {
    debug_assert!(*count >= what, "{what} of {count}");
    *count = count.saturating_sub(what);
}
