//! Whose turn it is to be asked: pure, the time is an input.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

/// Answers of one agent that are waited for or read at a time.
pub(super) const AGENT_TURNS_MAX: usize = 2;
/// Agents that are waited for at a time to begin their first answer,
pub(super) const OPENINGS_MAX: usize = 64;
/// and those among them that did not answer when they were asked last.
pub(super) const FAILING_OPENINGS_MAX: usize = 16;
/// An agent that does not answer is asked again after this, doubling,
pub(super) const REST_MIN: Duration = Duration::from_secs(1);
/// up to this.
pub(super) const REST_MAX: Duration = Duration::from_secs(30);
/// Agents that are remembered while nothing is asked of them.
const AGENTS_REMEMBERED_MAX: usize = 4_096;

/// One question on its way: it waits, or it has its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Ticket(u64);

/// What a question may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Be asked. The answer may not be read beyond its first part.
    Open,
    /// Be asked and read.
    Read,
}

/// Whether an agent can be expected to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    /// It did when it was asked last.
    Answers,
    /// It was not asked yet.
    New,
    /// It did not when it was asked last.
    Failing,
}

/// Where a question stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waiting,
    Opening(Standing),
    Reading,
}

/// Where an agent with waiting questions is listed: by when it had its last turn, or by when it may have
/// the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listing {
    Ready(Standing, (u64, Ticket)),
    Resting(Duration),
}

#[derive(Debug)]
struct Agent {
    standing: Standing,
    /// Questions in a row that it did not answer.
    failures: u32,
    rests_until: Duration,
    /// Number of its last turn, among those of all agents.
    last_turn: u64,
    under_way: usize,
    waiting: VecDeque<Ticket>,
    listing: Option<Listing>,
}

impl Agent {
    const NEW: Self = Self {
        standing: Standing::New,
        failures: 0,
        rests_until: Duration::ZERO,
        last_turn: 0,
        under_way: 0,
        waiting: VecDeque::new(),
        listing: None,
    };

    fn is_idle(&self) -> bool {
        self.under_way == 0 && self.waiting.is_empty()
    }

    /// Where it is to be listed at `now`.
    fn place(&self, now: Duration) -> Option<Listing> {
        let first = self.waiting.front().filter(|_| self.under_way < AGENT_TURNS_MAX)?;
        Some(if self.rests_until > now {
            Listing::Resting(self.rests_until)
        } else {
            Listing::Ready(self.standing, (self.last_turn, *first))
        })
    }
}

/// Questions to agents, in the order in which they have their turns. Agents that answered last go first
/// and share `readings_max` turns. The others have turns of their own until they begin to answer, so
/// that agents that never do keep nobody from being read. Of equals, whoever had no turn for longest is
/// next.
#[derive(Debug)]
pub(super) struct TurnQueue {
    readings_max: usize,
    agents: HashMap<Arc<str>, Agent>,
    tickets: HashMap<Ticket, (Arc<str>, Stage)>,
    /// Agents that may have a turn, by standing.
    ready: [BTreeMap<(u64, Ticket), Arc<str>>; 3],
    resting: BTreeSet<(Duration, Arc<str>)>,
    readings: usize,
    openings: usize,
    failing_openings: usize,
    numbers: u64,
    now: Duration,
    /// Agents from which on those are forgotten of which nothing is asked.
    forget_at: usize,
}

impl TurnQueue {
    pub(super) fn new(readings_max: usize) -> Self {
        Self {
            readings_max,
            agents: HashMap::new(),
            tickets: HashMap::new(),
            ready: Default::default(),
            resting: BTreeSet::new(),
            readings: 0,
            openings: 0,
            failing_openings: 0,
            numbers: 0,
            now: Duration::ZERO,
            forget_at: AGENTS_REMEMBERED_MAX,
        }
    }

    /// A question that waits for its turn.
    pub(super) fn wait(&mut self, agent: &Arc<str>) -> Ticket {
        let ticket = self.ticket(agent);
        self.agent(agent).waiting.push_back(ticket);
        self.list(agent);
        ticket
    }

    /// A question that has its turn at once, to be asked and read; none if that keeps others waiting, or
    /// the agent does not answer.
    pub(super) fn try_read(&mut self, agent: &Arc<str>, now: Duration) -> Option<Ticket> {
        self.pass(now);
        self.forget();
        let is_free = self.readings < self.readings_max && self.answering().is_empty();
        let at = self.agent(agent);
        let may = at.standing != Standing::Failing && at.under_way < AGENT_TURNS_MAX;
        if !is_free || !may {
            return None;
        }
        let ticket = self.ticket(agent);
        self.begin(agent, ticket, Stage::Reading);
        Some(ticket)
    }

    /// The next question to have its turn.
    pub(super) fn next(&mut self, now: Duration) -> Option<(Ticket, Turn)> {
        self.pass(now);
        let (standing, stage) = self.next_stage()?;
        let (&(_, ticket), agent) = self.ready(standing).first_key_value()?;
        let agent = Arc::clone(agent);
        self.agent(&agent).waiting.retain(|waiting| *waiting != ticket);
        self.begin(&agent, ticket, stage);
        Some((ticket, if stage == Stage::Reading { Turn::Read } else { Turn::Open }))
    }

    fn next_stage(&self) -> Option<(Standing, Stage)> {
        let is_ready = |standing| !self.ready(standing).is_empty();
        if self.readings < self.readings_max && is_ready(Standing::Answers) {
            return Some((Standing::Answers, Stage::Reading));
        }
        // Whoever begins to answer now would only wait to be read.
        if self.openings >= OPENINGS_MAX || self.answering().len() >= self.readings_max {
            return None;
        }
        if is_ready(Standing::New) {
            return Some((Standing::New, Stage::Opening(Standing::New)));
        }
        let may_fail = self.failing_openings < FAILING_OPENINGS_MAX && is_ready(Standing::Failing);
        may_fail.then_some((Standing::Failing, Stage::Opening(Standing::Failing)))
    }

    /// The agent has begun to answer. Whether the answer may be read on; if not, the question waits for
    /// another turn, before all others to the agent.
    pub(super) fn answered(&mut self, ticket: Ticket) -> bool {
        let Some((agent, stage)) = self.tickets.get(&ticket).cloned() else { return false };
        let at = self.agent(&agent);
        (at.standing, at.failures, at.rests_until) = (Standing::Answers, 0, Duration::ZERO);
        if let Stage::Opening(_) = stage {
            self.leave(&agent, stage);
            if self.readings < self.readings_max && self.answering().is_empty() {
                self.begin(&agent, ticket, Stage::Reading);
                return true;
            }
            self.agent(&agent).waiting.push_front(ticket);
            self.tickets.insert(ticket, (Arc::clone(&agent), Stage::Waiting));
        }
        self.list(&agent);
        stage == Stage::Reading
    }

    /// A question is over, or given up. The agent rests if it `failed` to answer.
    pub(super) fn end(&mut self, ticket: Ticket, failed: bool, now: Duration) {
        self.pass(now);
        let Some((agent, stage)) = self.tickets.remove(&ticket) else { return };
        self.leave(&agent, stage);
        let at = self.agent(&agent);
        at.waiting.retain(|waiting| *waiting != ticket);
        if failed {
            let rest = REST_MIN.saturating_mul(1 << at.failures.min(16)).min(REST_MAX);
            at.failures = at.failures.saturating_add(1);
            (at.standing, at.rests_until) = (Standing::Failing, now + rest);
        }
        self.list(&agent);
        self.forget();
    }

    /// The agent was heard: it is asked as if for the first time.
    pub(super) fn heard(&mut self, agent: &Arc<str>) {
        let Some(at) = self.agents.get_mut(agent) else { return };
        if at.standing == Standing::Failing {
            (at.standing, at.failures, at.rests_until) = (Standing::New, 0, Duration::ZERO);
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

    #[expect(clippy::indexing_slicing, reason = "there are as many as standings")]
    const fn ready(&self, standing: Standing) -> &BTreeMap<(u64, Ticket), Arc<str>> {
        &self.ready[standing as usize]
    }

    /// Agents that wait to be read.
    const fn answering(&self) -> &BTreeMap<(u64, Ticket), Arc<str>> {
        self.ready(Standing::Answers)
    }

    /// Takes note of the time: who has rested is ready.
    fn pass(&mut self, now: Duration) {
        self.now = self.now.max(now);
        while let Some((until, agent)) = self.resting.first().cloned()
            && until <= self.now
        {
            self.list(&agent);
        }
    }

    fn begin(&mut self, agent: &Arc<str>, ticket: Ticket, stage: Stage) {
        match stage {
            Stage::Reading => self.readings += 1,
            Stage::Opening(standing) => {
                self.openings += 1;
                self.failing_openings += usize::from(standing == Standing::Failing);
            }
            Stage::Waiting => return,
        }
        self.tickets.insert(ticket, (Arc::clone(agent), stage));
        self.numbers += 1;
        let number = self.numbers;
        let at = self.agent(agent);
        at.under_way += 1;
        at.last_turn = number;
        self.list(agent);
    }

    /// Gives back what [`TurnQueue::begin`] took.
    fn leave(&mut self, agent: &Arc<str>, stage: Stage) {
        match stage {
            Stage::Reading => self.readings -= 1,
            Stage::Opening(standing) => {
                self.openings -= 1;
                self.failing_openings -= usize::from(standing == Standing::Failing);
            }
            Stage::Waiting => return,
        }
        self.agent(agent).under_way -= 1;
    }

    /// Lists an agent anew after it has changed.
    #[expect(clippy::indexing_slicing, reason = "there are as many as standings")]
    fn list(&mut self, agent: &Arc<str>) {
        let now = self.now;
        let at = self.agent(agent);
        let place = at.place(now);
        let before = std::mem::replace(&mut at.listing, place);
        match before {
            Some(Listing::Ready(standing, key)) => drop(self.ready[standing as usize].remove(&key)),
            Some(Listing::Resting(until)) => {
                self.resting.remove(&(until, Arc::clone(agent)));
            }
            None => {}
        }
        match place {
            Some(Listing::Ready(standing, key)) => {
                self.ready[standing as usize].insert(key, Arc::clone(agent));
            }
            Some(Listing::Resting(until)) => {
                self.resting.insert((until, Arc::clone(agent)));
            }
            None => {}
        }
    }

    /// Forgets agents of which nothing is asked, if there are many.
    fn forget(&mut self) {
        if self.agents.len() > self.forget_at {
            self.agents.retain(|_, agent| !agent.is_idle());
            self.forget_at = AGENTS_REMEMBERED_MAX.max(self.agents.len() * 2);
        }
    }
}

#[cfg(test)]
#[path = "queue_test.rs"]
mod tests;
