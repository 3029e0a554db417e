use super::candidates::{Members, Plans};
use super::config::{Filter, Hints, RouterConfig, RouterWorker};
use super::error::RouteError;
use super::index::Overlaps;
use super::waiting::Waiter;
use super::workers::{Member, Workers};
use crate::prompt::HashedPrompt;
use crate::route::{
    ActiveLoads, AddError, BusyThresholds, ConfigError, Decision, ExpectedReuse, FetchConfig,
    FetchMeter, FetchPlanner, Lane, Mode, NewRequest, Outliers, Preferences, PromptBlocks,
    Question, Queue, QueueConfig, RankLoad, Rate, Replication, RequestKey, RequestNotes, RouterId,
    Selector, Sessions, SyncCounts, SyncMessage, Update,
};
use kvasir_proto::convert::WorkerProfile;
use kvasir_proto::types::{SequenceHash, WorkerId, WorkerKey};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// Counters of a router since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RouterCounts {
    /// Requests that received a worker.
    pub placed: u64,
    /// Placed requests that do not count as load because of a limit.
    pub untracked: u64,
    /// Requests that waited in the queue.
    pub queued: u64,
    /// Requests whose lease expired.
    pub expired: u64,
    /// How often a worker was ejected because of failures.
    pub ejections: u64,
    /// Decisions that were not recorded at the index because too many recordings were in flight.
    pub unrecorded: u64,
}

/// Workers, loads and queue of a router, behind one lock.
#[derive(Debug)]
pub(super) struct State {
    selector: Selector,
    active: ActiveLoads,
    workers: Workers,
    queue: Queue<Waiter>,
    outliers: Outliers,
    sessions: Option<Sessions>,
    fetch: Option<FetchConfig>,
    fetch_meter: FetchMeter,
    router: RouterId,
    /// None if the router does not sync.
    sync: Option<Replication>,
    pub(super) counts: RouterCounts,
    /// Number of request ids that this router has generated.
    requests: u64,
    /// Seed of the random numbers.
    seeds: RandomState,
    draws: u64,
}

/// The part of a request that a rank processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Prefill and decode.
    Whole,
    /// Prefill only; a rank of the main pool decodes.
    Prefill,
    /// Decode only: the prompt's tokens add no load.
    Decode,
}

/// A request that is not placed yet.
#[derive(Debug)]
pub(super) struct Pending<'a> {
    pub(super) part: Part,
    pub(super) prompt: &'a HashedPrompt,
    pub(super) question: Question<'a>,
    pub(super) hints: &'a Hints,
    /// Sequence hashes of the prompt's blocks.
    pub(super) chain: &'a [SequenceHash],
    /// Arrival time, if the request has waited before.
    pub(super) arrived: Option<Duration>,
}

// === impl State ===

impl State {
    /// Creates the state of a router without workers. Fails if a setting is out of range.
    pub(super) fn new(config: &RouterConfig) -> Result<Self, ConfigError> {
        config.check()?;
        let seeds = RandomState::new();
        let router = RouterId(seeds.hash_one("router"));
        Ok(Self {
            selector: Selector::new(config.select),
            active: ActiveLoads::new(config.active),
            workers: Workers::default(),
            queue: Queue::new(config.queue),
            outliers: Outliers::new(config.outliers),
            sessions: config.session_ttl.map(Sessions::new).transpose()?,
            fetch: config.fetch,
            fetch_meter: FetchMeter::default(),
            router,
            sync: config.sync.map(|sync| Replication::new(router, sync)),
            counts: RouterCounts::default(),
            requests: 0,
            seeds,
            draws: 0,
        })
    }

    pub(super) const fn selector(&self) -> &Selector {
        &self.selector
    }

    pub(super) const fn queue(&mut self) -> &mut Queue<Waiter> {
        &mut self.queue
    }

    /// Number of requests in the queue, and the total tokens of their prompts.
    pub(super) fn waiting(&self) -> (usize, u64) {
        (self.queue.len(), self.queue.input_tokens())
    }

    /// Changes the busy thresholds, and releases queued requests that fit now.
    pub(super) fn set_busy(
        &mut self,
        busy: BusyThresholds,
        now: Duration,
    ) -> Result<(), ConfigError> {
        self.selector.set_busy(busy)?;
        self.release_next(now);
        Ok(())
    }

    /// Replaces the workers. Drops the loads of ranks that are gone, and sessions and failures of workers that are
    /// gone.
    pub(super) fn set_workers(&mut self, workers: Vec<RouterWorker>, now: Duration) {
        let gone = self.workers.set(workers, &mut self.active, now);
        for member in gone {
            self.active.forget(member.rank);
            if !self.workers.has_worker(&member.worker.key.worker) {
                self.outliers.forget(&member.worker.key.worker);
                if let Some(sessions) = &mut self.sessions {
                    sessions.forget(&member.worker.key.worker);
                }
            }
        }
        self.release_next(now);
    }

    pub(super) fn has_worker(&self, worker: &WorkerId) -> bool {
        self.workers.has_worker(worker)
    }

    pub(super) fn has_workers(&self) -> bool {
        !self.workers.members().is_empty()
    }

    pub(super) fn label(&self, worker: &WorkerKey, label: &str) -> Option<&String> {
        self.workers.member(worker)?.worker.profile.labels.get(label)
    }

    pub(super) fn loads(&self) -> Vec<(WorkerKey, RankLoad)> {
        let load = |at: &Member| (at.worker.key.clone(), self.active.load(at.rank));
        self.workers.members().iter().map(load).collect()
    }

    /// The key of a request of this router.
    pub(super) fn key(&self, id: &str) -> Result<RequestKey, ConfigError> {
        RequestKey::new(self.router, id)
    }

    pub(super) fn is_paired(&self, key: &RequestKey) -> bool {
        self.active.placed(key).is_some_and(|placed| placed.is_paired)
    }

    pub(super) fn mark_prefill_completed(&mut self, key: &RequestKey, now: Duration) -> Update {
        let update = self.active.mark_prefill_completed(key, now);
        self.changed(key, update, now);
        update
    }

    pub(super) fn report_output(&mut self, key: &RequestKey, tokens: u64, now: Duration) -> Update {
        let update = self.active.report_output(key, tokens, now);
        self.changed(key, update, now);
        update
    }

    /// Ends a request. Returns its rank, the tokens that were expected in that rank's cache, and the predicted reuse.
    /// `None` if the request is unknown.
    pub(super) fn free(
        &mut self,
        key: &RequestKey,
        has_failed: Option<bool>,
        now: Duration,
    ) -> Option<(WorkerKey, u64, Option<ExpectedReuse>)> {
        let placed = self.active.placed(key)?;
        let rank = placed.worker.clone();
        let expected = placed.cached_tokens;
        let reuse = placed.reuse.cloned();
        // A worker that produced a token counts as successful, unless a failure is reported.
        match has_failed.or(placed.is_prefill_completed.then_some(false)) {
            Some(true) => {
                let fleet = self.workers.count();
                let is_new = self.outliers.failed(&rank.worker, fleet, now);
                self.counts.ejections += u64::from(is_new);
            }
            Some(false) => self.outliers.succeeded(&rank.worker, now),
            None => {}
        }
        self.active.free(key);
        self.tell_freed(key);
        self.release_next(now);
        Some((rank, expected, reuse))
    }

    /// Ends requests whose lease has expired. Returns the number of this router's own ones.
    pub(super) fn expire(&mut self, now: Duration) -> usize {
        let expired = self.active.expire(now);
        let own = expired.iter().filter(|at| at.key.router == self.router).count();
        for at in &expired {
            self.tell_freed(&at.key);
        }
        self.counts.expired += own as u64;
        if let Some(sync) = &mut self.sync {
            sync.free_gone(&mut self.active, now);
        }
        if let Some(sessions) = &mut self.sessions {
            sessions.expire(now);
        }
        self.release_next(now);
        own
    }

    /// The messages for replicas that are due now.
    pub(super) fn flush_sync(&mut self, now: Duration) -> Vec<SyncMessage> {
        self.sync.as_mut().map_or_else(Vec::new, |sync| sync.flush(&self.active, now))
    }

    /// Applies a message from a replica.
    pub(super) fn receive_sync(&mut self, message: &SyncMessage, now: Duration) {
        if let Some(sync) = &mut self.sync {
            sync.receive(message, &mut self.active, now);
            self.release_next(now);
        }
    }

    /// Counters of replica sync, and the number of replicas; `None` if the router does not sync.
    pub(super) fn sync_counts(&self, now: Duration) -> Option<(SyncCounts, usize)> {
        self.sync.as_ref().map(|sync| (sync.counts(), sync.peers(now)))
    }

    /// Handles the result of a report, which may have changed a rank's load.
    fn changed(&mut self, key: &RequestKey, update: Update, now: Duration) {
        let Update::Changed(_) = update else { return };
        // If only output changed the load, there is nothing to send; sending again is harmless.
        if let Some(sync) = &mut self.sync {
            sync.local_prefill_completed(key);
        }
        self.release_next(now);
    }

    fn tell_freed(&mut self, key: &RequestKey) {
        if let Some(sync) = &mut self.sync {
            sync.local_freed(key);
        }
    }

    /// Releases the first queued request whose ranks have room. The next one follows when this one is placed or
    /// cancelled.
    pub(super) fn release_next(&mut self, now: Duration) {
        if self.queue.is_empty() {
            return;
        }
        let Self { queue, workers, active, selector, outliers, .. } = self;
        let config = *queue.config();
        let has_room = |waiter: &Waiter| {
            !have_enough(config, (workers, active, selector, outliers), &waiter.filter, now)
        };
        while let Some(released) = queue.next(now, has_room) {
            if released.item.release.send(released.waited).is_ok() {
                return;
            }
        }
    }

    /// Returns whether a request must wait: another request waits for the same ranks, or all eligible ranks are over
    /// the threshold. False if the threshold is off, and for a named rank.
    pub(super) fn must_wait(&self, pending: &Pending<'_>, now: Duration) -> bool {
        let filter = &pending.hints.filter;
        let config = self.queue.config();
        let mode = pending.question.mode.unwrap_or(self.selector.config().mode);
        // A request with a named rank gets it immediately, busy or not.
        if config.threshold.is_none() || mode == Mode::Direct {
            return false;
        }
        // A new request does not overtake those waiting for the same ranks.
        let is_new = pending.arrived.is_none() && !self.queue.is_empty();
        if is_new && !self.queue.is_clear(self.lane(filter)) {
            return true;
        }
        let Self { workers, active, selector, outliers, .. } = self;
        have_enough(*config, (workers, active, selector, outliers), filter, now)
    }

    /// Returns the lane of requests that may go to the same ranks. If two sets of ranks share a lane by hash collision,
    /// they only delay each other.
    pub(super) fn lane(&self, filter: &Filter) -> Lane {
        let constraints = filter.constraints();
        if constraints.is_none() {
            return Lane::default();
        }
        let mut hasher = DefaultHasher::new();
        let mut is_all = true;
        for (number, member) in self.workers.members().iter().enumerate() {
            let worker = &member.worker;
            if constraints.unmet(&worker.key, &worker.profile).is_none() {
                number.hash(&mut hasher);
            } else {
                is_all = false;
            }
        }
        if is_all { Lane::default() } else { Lane::filtered(hasher.finish()) }
    }

    /// Chooses a worker and counts the request as its load. Fails if the request id is in use. Beyond a limit of
    /// tracked requests, the request is served without being counted.
    pub(super) fn place(
        &mut self,
        pending: &Pending<'_>,
        overlaps: &Overlaps,
        now: Duration,
    ) -> Result<(RequestKey, Decision), RouteError> {
        let Pending { question, hints, chain, part, .. } = pending;
        let (mut key, is_own) = match &hints.request_id {
            Some(id) => (self.key(id)?, false),
            None => (self.new_key()?, true),
        };
        if !is_own && self.active.contains(&key) {
            return Err(RouteError::DuplicateId);
        }
        let decision = self.choose(pending, overlaps, true, now)?;
        self.counts.placed += 1;
        if let (Some(sessions), Some(session)) = (&mut self.sessions, &hints.session) {
            sessions.served(session, &decision.worker, now)?;
        }
        if let Some(member) = self.workers.members().get(decision.candidate) {
            let request = NewRequest {
                rank: member.rank,
                blocks: PromptBlocks::Chain(chain),
                input_tokens: question.input_tokens,
                prefill_tokens: match part {
                    Part::Decode => 0,
                    Part::Whole | Part::Prefill => decision.cost.booked_prefill_tokens(),
                },
                expected_output_tokens: hints.expected_output_tokens,
            };
            let fetched = decision.fetch.as_ref().map_or(0, |plan| plan.blocks);
            // Requests in flight at the rank store and evict blocks meanwhile.
            let is_alone = self.active.load(member.rank).requests == 0;
            let is_predictable = is_alone && *part == Part::Whole && fetched == 0;
            let predicted = overlaps.expected_reuse(pending.prompt, &decision.worker);
            let notes = RequestNotes {
                overlap_blocks: decision.overlap.total().saturating_add(fetched),
                is_paired: *part == Part::Prefill,
                has_fetch: fetched > 0,
                reuse: predicted.filter(|_| is_predictable).map(Box::new),
            };
            let mut added = self.active.add_noted(&key, request, notes.clone(), now);
            while is_own && added == Err(AddError::Duplicate) {
                // A client used an id that the router would have generated.
                key = self.new_key()?;
                added = self.active.add_noted(&key, request, notes.clone(), now);
            }
            // A request beyond a limit is still served, but does not count as load.
            match (added, &mut self.sync) {
                (Ok(()), Some(sync)) => sync.local_added(&key),
                (Ok(()), None) => {}
                (Err(error), _) => {
                    self.counts.untracked += 1;
                    tracing::debug!(%error, worker = %decision.worker, "a request does not count as load");
                }
            }
        }
        Ok((key, decision))
    }

    /// Generates an id that is unique among this router, its earlier processes and its replicas. Reports that reach the
    /// wrong router change nothing.
    pub(super) fn new_id(&mut self) -> String {
        self.requests += 1;
        format!("{:016x}-{}", self.router.0, self.requests)
    }

    fn new_key(&mut self) -> Result<RequestKey, ConfigError> {
        let id = self.new_id();
        self.key(&id)
    }

    /// Whether this router has an active request with this id.
    pub(super) fn has_request(&self, id: &str) -> bool {
        self.key(id).is_ok_and(|key| self.active.contains(&key))
    }

    /// Chooses a rank without adding load. The round-robin position advances only if `takes_turn`.
    pub(super) fn choose(
        &mut self,
        pending: &Pending<'_>,
        overlaps: &Overlaps,
        takes_turn: bool,
        now: Duration,
    ) -> Result<Decision, RouteError> {
        let Pending { question, hints, chain, .. } = pending;
        let bandwidth = self.fetch_bandwidth(now);
        let Self { workers, active, outliers, sessions, seeds, draws, selector, fetch, .. } = self;
        let window = selector.config().slow_start.window;
        let outliers = Some(&*outliers).filter(|at| at.has_ejected(now));
        let shared = active.shared(chain);
        let held = workers.holders(&overlaps.by_rank);
        let known = overlaps.below_device.as_deref();
        let plans = fetch.zip(bandwidth).zip(known).map(|((config, bandwidth), known)| {
            let credits = &selector.config().cost.credits;
            let is_ejected = |key: &_| outliers.is_some_and(|at| at.is_ejected(key, now));
            let holders = workers.serving(known, is_ejected);
            // By the last block, so that requests with a common system prompt use different sources.
            let turn = chain.last().and_then(|last| usize::try_from(last.0).ok()).unwrap_or(0);
            let (blocks, block_size) = (question.blocks, question.block_size);
            let planner = FetchPlanner::new(blocks, block_size, credits, bandwidth, holders, turn);
            Plans { planner, config }
        });
        let has_plans = plans.as_ref().is_some_and(|plans| !plans.planner.is_empty());
        let candidates = Members {
            members: workers.members(),
            ranks: workers.ranks(),
            are_settled: !has_plans && outliers.is_none() && workers.are_settled(window, now),
            held,
            shared,
            active,
            outliers,
            plans,
            now,
        };
        let session = hints.session.as_deref();
        let session = session.zip(sessions.as_ref()).and_then(|(id, at)| at.rank_of(id, now));
        let preferences = Preferences { session, ..question.preferences };
        let question = Question { preferences, ..*question };
        let mut draw = || {
            *draws = draws.wrapping_add(1);
            seeds.hash_one(*draws)
        };
        let mut decision = if takes_turn {
            selector.select(&question, &candidates, &mut draw)?
        } else {
            selector.clone().select(&question, &candidates, &mut draw)?
        };
        decision.fetch = candidates.plan(decision.candidate);
        Ok(decision)
    }

    /// Records a fetch from other agents for the bandwidth estimate.
    pub(super) fn report_fetch(&mut self, bytes: u64, took: Duration, now: Duration) {
        self.fetch_meter.measure(bytes, took, now);
    }

    /// The bandwidth that plans assume; `None` if the router plans no fetches.
    pub(super) fn fetch_bandwidth(&self, now: Duration) -> Option<Rate> {
        self.fetch.map(|config| config.bandwidth(&self.fetch_meter, now))
    }
}

/// The state that determines which ranks are eligible.
type Parts<'a> = (&'a Workers, &'a ActiveLoads, &'a Selector, &'a Outliers);

/// Whether all ranks that a request may go to are over the queue threshold. Ejected ranks count only if there are no
/// others, because they are chosen only then.
fn have_enough(config: QueueConfig, parts: Parts<'_>, filter: &Filter, now: Duration) -> bool {
    let mut healthy = eligible(parts, filter, Some(now)).peekable();
    if healthy.peek().is_some() {
        config.must_wait(healthy)
    } else {
        config.must_wait(eligible(parts, filter, None))
    }
}

/// Returns the ranks that a request may go to now, with their loads. If `now` is `None`, ejected ranks are included.
fn eligible<'a>(
    (workers, active, selector, outliers): Parts<'a>,
    filter: &'a Filter,
    now: Option<Duration>,
) -> impl Iterator<Item = (RankLoad, &'a WorkerProfile)> {
    let constraints = filter.constraints();
    let busy = &selector.config().busy;
    let ejected_at = now.filter(|now| outliers.has_ejected(*now));
    workers.members().iter().filter_map(move |member| {
        let worker = &member.worker;
        let load = active.load(member.rank);
        let is_eligible = constraints.unmet(&worker.key, &worker.profile).is_none()
            && busy.exceeded(&load, &worker.profile).is_none()
            && !ejected_at.is_some_and(|now| outliers.is_ejected(&worker.key.worker, now));
        is_eligible.then_some((load, &worker.profile))
    })
}
