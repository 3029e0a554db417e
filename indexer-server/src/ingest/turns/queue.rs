//! Scheduler of requests to agents, with exponential backoff. Pure: the time is an input.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Maximum concurrent requests to one agent.
pub(super) const AGENT_TURNS_MAX: usize = 2;
/// Maximum concurrent requests that wait for the first part of an answer.
pub(super) const OPENINGS_MAX: usize = 64;
/// Maximum such requests to agents that failed to answer their last request.
pub(super) const FAILING_OPENINGS_MAX: usize = 16;
/// First backoff for an agent that does not answer. Doubles with each failure.
pub(super) const BACKOFF_MIN: Duration = Duration::from_secs(1);
/// Longest backoff.
pub(super) const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Number of agents above which idle ones are removed.
const AGENTS_REMEMBERED_MAX: usize = 4_096;

/// Id of a request, waiting or running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Ticket(u64);

/// Kind of permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Send the request, and read the first part of the answer.
    Open,
    /// Send the request, and read the complete answer.
    Read,
}

/// Whether an agent answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Health {
    /// The agent answered its last request.
    Answers,
    /// The agent has not received a request yet.
    New,
    /// The agent did not answer its last request.
    Failing,
}

/// State of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waiting,
    Opening(Health),
    Reading,
}

/// Key of an agent with waiting requests in its list: last permit, or end of backoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listing {
    Ready(Health, (u64, Ticket)),
    BackingOff(Duration),
}

#[derive(Debug)]
struct Agent {
    health: Health,
    /// Number of consecutive requests without an answer.
    failures: u32,
    retry_at: Duration,
    /// Number of the agent's last permit, counted over all agents.
    last_turn: u64,
    under_way: usize,
    waiting: VecDeque<Ticket>,
    listing: Option<Listing>,
}

impl Agent {
    const NEW: Self = Self {
        health: Health::New,
        failures: 0,
        retry_at: Duration::ZERO,
        last_turn: 0,
        under_way: 0,
        waiting: VecDeque::new(),
        listing: None,
    };

    fn is_idle(&self) -> bool {
        self.under_way == 0 && self.waiting.is_empty()
    }

    /// The list that the agent belongs to at `now`.
    fn listing_at(&self, now: Duration) -> Option<Listing> {
        let first = self.waiting.front().filter(|_| self.under_way < AGENT_TURNS_MAX)?;
        Some(if self.retry_at > now {
            Listing::BackingOff(self.retry_at)
        } else {
            Listing::Ready(self.health, (self.last_turn, *first))
        })
    }
}

/// Schedules requests to agents. Agents that answered their last request go first and share `readers_max` permits.
/// Other agents have separate permits until they begin to answer, so agents that never answer do not delay readers.
/// Among equals, the agent with the oldest last permit is next.
#[derive(Debug)]
pub(super) struct TurnQueue {
    readers_max: usize,
    agents: HashMap<Arc<str>, Agent>,
    tickets: HashMap<Ticket, (Arc<str>, Stage)>,
    /// Agents that may get a permit, by health.
    ready: [BTreeMap<(u64, Ticket), Arc<str>>; 3],
    backing_off: BTreeSet<(Duration, Arc<str>)>,
    readers: usize,
    openings: usize,
    failing_openings: usize,
    numbers: u64,
    now: Duration,
    /// Number of agents above which idle ones are removed.
    forget_at: usize,
}

impl TurnQueue {
    /// Creates a queue that grants at most `readers_max` permits at a time.
    pub(super) fn new(readers_max: usize) -> Self {
        Self {
            readers_max,
            agents: HashMap::new(),
            tickets: HashMap::new(),
            ready: Default::default(),
            backing_off: BTreeSet::new(),
            readers: 0,
            openings: 0,
            failing_openings: 0,
            numbers: 0,
            now: Duration::ZERO,
            forget_at: AGENTS_REMEMBERED_MAX,
        }
    }

    /// Queues a request.
    pub(super) fn wait(&mut self, agent: &Arc<str>) -> Ticket {
        let ticket = self.ticket(agent);
        self.agent(agent).waiting.push_back(ticket);
        self.list(agent);
        ticket
    }

    /// Creates a request with an immediate permit for reading. Returns `None` if other requests wait for a permit, all
    /// permits are taken, or the agent fails.
    pub(super) fn try_read(&mut self, agent: &Arc<str>, now: Duration) -> Option<Ticket> {
        self.advance_time(now);
        self.remove_idle();
        let is_free = self.readers < self.readers_max && self.answering().is_empty();
        let at = self.agent(agent);
        let may = at.health != Health::Failing && at.under_way < AGENT_TURNS_MAX;
        if !is_free || !may {
            return None;
        }
        let ticket = self.ticket(agent);
        self.acquire_stage(agent, ticket, Stage::Reading);
        Some(ticket)
    }

    /// Grants a permit to the next waiting request. Returns `None` if all permits are taken or every agent has to wait.
    pub(super) fn next(&mut self, now: Duration) -> Option<(Ticket, Turn)> {
        self.advance_time(now);
        let (health, stage) = self.next_stage()?;
        let (&(_, ticket), agent) = self.ready(health).first_key_value()?;
        let agent = Arc::clone(agent);
        let first = self.agent(&agent).waiting.pop_front();
        debug_assert_eq!(first, Some(ticket), "an agent is listed by its first waiting request");
        self.acquire_stage(&agent, ticket, stage);
        Some((ticket, if stage == Stage::Reading { Turn::Read } else { Turn::Open }))
    }

    /// Returns the kind of permit to assign next: readers first, then agents without history, then failing agents.
    /// Returns `None` if all permits are taken or every agent has to wait.
    fn next_stage(&self) -> Option<(Health, Stage)> {
        let is_ready = |health| !self.ready(health).is_empty();
        if self.readers < self.readers_max && is_ready(Health::Answers) {
            return Some((Health::Answers, Stage::Reading));
        }
        // An answer that begins now would only wait for a permit to read.
        if self.openings >= OPENINGS_MAX || self.answering().len() >= self.readers_max {
            return None;
        }
        if is_ready(Health::New) {
            return Some((Health::New, Stage::Opening(Health::New)));
        }
        let may_fail = self.failing_openings < FAILING_OPENINGS_MAX && is_ready(Health::Failing);
        may_fail.then_some((Health::Failing, Stage::Opening(Health::Failing)))
    }

    /// Records that the agent has begun to answer. Returns whether the answer may be read. Otherwise the request waits
    /// for another permit, before all other requests to the agent.
    pub(super) fn answered(&mut self, ticket: Ticket) -> bool {
        let Some((agent, stage)) = self.tickets.get(&ticket).cloned() else { return false };
        let at = self.agent(&agent);
        (at.health, at.failures, at.retry_at) = (Health::Answers, 0, Duration::ZERO);
        if let Stage::Opening(_) = stage {
            self.release_stage(&agent, stage);
            if self.readers < self.readers_max && self.answering().is_empty() {
                self.acquire_stage(&agent, ticket, Stage::Reading);
                return true;
            }
            self.agent(&agent).waiting.push_front(ticket);
            self.tickets.insert(ticket, (Arc::clone(&agent), Stage::Waiting));
        }
        self.list(&agent);
        stage == Stage::Reading
    }

    /// Removes a request that ended or was dropped, and frees its permit. Delays the agent's next request if this one
    /// `failed`.
    pub(super) fn end_request(&mut self, ticket: Ticket, failed: bool, now: Duration) {
        self.advance_time(now);
        let Some((agent, stage)) = self.tickets.remove(&ticket) else { return };
        self.release_stage(&agent, stage);
        let at = self.agent(&agent);
        at.waiting.retain(|waiting| *waiting != ticket);
        if failed {
            let backoff = BACKOFF_MIN.saturating_mul(1 << at.failures.min(16)).min(BACKOFF_MAX);
            at.failures = at.failures.saturating_add(1);
            (at.health, at.retry_at) = (Health::Failing, now + backoff);
        }
        self.list(&agent);
        self.remove_idle();
    }

    /// Clears the failures of an agent that has proven reachable.
    pub(super) fn mark_reachable(&mut self, agent: &Arc<str>) {
        let Some(at) = self.agents.get_mut(agent) else { return };
        if at.health == Health::Failing {
            (at.health, at.failures, at.retry_at) = (Health::New, 0, Duration::ZERO);
            self.list(agent);
        }
    }

    // === the lists ===

    fn ticket(&mut self, agent: &Arc<str>) -> Ticket {
        self.numbers += 1;
        let ticket = Ticket(self.numbers);
        self.tickets.insert(ticket, (Arc::clone(agent), Stage::Waiting));
        ticket
    }

    fn agent(&mut self, agent: &Arc<str>) -> &mut Agent {
        self.agents.entry(Arc::clone(agent)).or_insert(Agent::NEW)
    }

    #[expect(clippy::indexing_slicing, reason = "there are as many as values of `Health`")]
    const fn ready(&self, health: Health) -> &BTreeMap<(u64, Ticket), Arc<str>> {
        &self.ready[health as usize]
    }

    /// Agents that wait for a permit to read.
    const fn answering(&self) -> &BTreeMap<(u64, Ticket), Arc<str>> {
        self.ready(Health::Answers)
    }

    /// Advances the time: agents whose backoff has ended become ready.
    fn advance_time(&mut self, now: Duration) {
        self.now = self.now.max(now);
        while let Some((until, agent)) = self.backing_off.first().cloned()
            && until <= self.now
        {
            self.list(&agent);
        }
    }

    /// Counts a request that begins or changes its stage. Does nothing for a waiting request.
    fn acquire_stage(&mut self, agent: &Arc<str>, ticket: Ticket, stage: Stage) {
        match stage {
            Stage::Reading => self.readers += 1,
            Stage::Opening(health) => {
                self.openings += 1;
                self.failing_openings += usize::from(health == Health::Failing);
            }
            Stage::Waiting => return,
        }
        self.tickets.insert(ticket, (Arc::clone(agent), stage));
        self.numbers += 1;
        let number = self.numbers;
        debug_assert!(self.readers <= self.readers_max, "no more readers than may read");
        debug_assert!(self.openings <= OPENINGS_MAX, "no more openings than may open");
        debug_assert!(self.failing_openings <= self.openings.min(FAILING_OPENINGS_MAX));
        let at = self.agent(agent);
        at.under_way += 1;
        at.last_turn = number;
        debug_assert!(at.under_way <= AGENT_TURNS_MAX, "one agent has few turns");
        self.list(agent);
    }

    /// Releases the counts that [`TurnQueue::acquire_stage`] has taken. Does nothing for a waiting request.
    fn release_stage(&mut self, agent: &Arc<str>, stage: Stage) {
        match stage {
            Stage::Reading => self.readers -= 1,
            Stage::Opening(health) => {
                self.openings -= 1;
                self.failing_openings -= usize::from(health == Health::Failing);
            }
            Stage::Waiting => return,
        }
        let at = self.agent(agent);
        debug_assert!(at.under_way > 0, "only a turn that began ends");
        at.under_way -= 1;
    }

    /// Moves a changed agent to the list of its state: ready by health, backing off, or none.
    #[expect(clippy::indexing_slicing, reason = "there are as many as values of `Health`")]
    fn list(&mut self, agent: &Arc<str>) {
        let now = self.now;
        let at = self.agent(agent);
        let place = at.listing_at(now);
        let before = std::mem::replace(&mut at.listing, place);
        match before {
            Some(Listing::Ready(health, key)) => drop(self.ready[health as usize].remove(&key)),
            Some(Listing::BackingOff(until)) => {
                self.backing_off.remove(&(until, Arc::clone(agent)));
            }
            None => {}
        }
        match place {
            Some(Listing::Ready(health, key)) => {
                self.ready[health as usize].insert(key, Arc::clone(agent));
            }
            Some(Listing::BackingOff(until)) => {
                self.backing_off.insert((until, Arc::clone(agent)));
            }
            None => {}
        }
    }

    /// Removes idle agents once there are more than `forget_at` agents.
    fn remove_idle(&mut self) {
        if self.agents.len() > self.forget_at {
            self.agents.retain(|_, agent| {
                debug_assert!(
                    !agent.is_idle() || agent.listing.is_none(),
                    "idle agents are in no list"
                );
                !agent.is_idle()
            });
            self.forget_at = AGENTS_REMEMBERED_MAX.max(self.agents.len() * 2);
        }
    }
}

#[cfg(test)]
#[path = "queue_test.rs"]
mod tests;
