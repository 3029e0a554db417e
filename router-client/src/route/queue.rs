//! Router queue: a request waits while every rank that it may use has enough to compute (`--router-queue-threshold` of
//! document 004). Waiting is not rejection: the rank is chosen when the request leaves the queue, by the loads at that
//! time.
//!
//! Requests that may go to the same ranks wait in one *lane*, ordered by the policy. A blocked lane does not block
//! others: a request pinned to a busy worker does not delay requests for an idle one.

use super::active::RankLoad;
use super::error::{ConfigError, check};
use kvasir_proto::convert::WorkerProfile;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Default maximum of queued requests.
pub const QUEUE_ENTRIES_MAX: usize = 4_096;
/// Maximum latency sensitivity: a request can move ahead by at most an hour.
pub const LATENCY_SENSITIVITY_SECS_MAX: f64 = 3_600.0;

/// Order of the queue (`--router-queue-policy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum QueuePolicy {
    /// Highest `priority_jump − arrival` first, both in seconds: no request waits longer than necessary.
    #[default]
    Fcfs,
    /// Highest `(1 + priority_jump) / isl_tokens` first: shortest mean time to first token. A long prompt may wait
    /// until no shorter one arrives.
    ///
    /// Dynamo now divides by the uncached tokens; this is document 004's formula.
    Wspt,
}

/// When requests wait, and in which order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueueConfig {
    /// Queue threshold, above 0, as a multiple of the tokens that a rank computes in one step. A rank with more pending
    /// tokens has enough to compute. `None`: requests never wait.
    pub threshold: Option<f64>,
    /// Order of the queue.
    pub policy: QueuePolicy,
    /// Maximum queued requests, at least 1.
    pub entries_max: usize,
}

/// A set of ranks, identified by a number that the caller assigns. Requests with equal sets share a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lane(pub u64);

/// Number of lanes for requests with filters. A release examines every lane, so callers must not determine their
/// number.
const FILTERED_LANES: u64 = 63;

impl Lane {
    /// The lane of requests with a filter, by a hash of the allowed ranks. The default lane is for requests without a
    /// filter.
    #[must_use]
    pub const fn filtered(hash: u64) -> Self {
        Self(1 + hash % FILTERED_LANES)
    }
}

/// Id of a queued request. Later requests have larger tickets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// Properties that determine a request's place in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Wait {
    /// Lane of the request.
    pub lane: Lane,
    /// Tokens of the prompt.
    pub input_tokens: u64,
    /// How many seconds earlier the request counts as arrived (`latency_sensitivity` of document 004, `priority_jump`
    /// in its formulas). 0 to [`LATENCY_SENSITIVITY_SECS_MAX`]. Values out of range are clamped; NaN counts as 0.
    pub latency_sensitivity_secs: f64,
    /// When the request times out.
    pub deadline: Option<Duration>,
}

/// A request that leaves the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Released<T> {
    /// Ticket of the request.
    pub ticket: Ticket,
    /// The caller's item.
    pub item: T,
    /// Time that the request waited.
    pub waited: Duration,
}

/// The queue is full; returns the caller's item.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the queue is full")]
pub struct QueueFull<T>(pub T);

/// Position in a lane: the greatest leaves first.
#[derive(Debug, Clone, Copy)]
struct Place {
    priority: f64,
    ticket: Ticket,
}

#[derive(Debug)]
struct Entry<T> {
    item: T,
    lane: Lane,
    place: Place,
    arrived: Duration,
    deadline: Option<Duration>,
    input_tokens: u64,
}

/// The queued requests, by lane.
#[derive(Debug)]
pub struct Queue<T> {
    config: QueueConfig,
    entries: BTreeMap<Ticket, Entry<T>>,
    /// Lanes with at least one request.
    lanes: BTreeMap<Lane, BTreeSet<Place>>,
    deadlines: BTreeSet<(Duration, Ticket)>,
    tickets: u64,
    input_tokens: u64,
}

// === impl QueuePolicy ===

impl QueuePolicy {
    fn priority(self, wait: &Wait, arrived: Duration) -> f64 {
        let jump = wait.latency_sensitivity_secs;
        let jump = if jump.is_nan() { 0.0 } else { jump.clamp(0.0, LATENCY_SENSITIVITY_SECS_MAX) };
        match self {
            Self::Fcfs => jump - arrived.as_secs_f64(),
            Self::Wspt => (1.0 + jump) / wait.input_tokens.max(1) as f64,
        }
    }
}

impl fmt::Display for QueuePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fcfs => "fcfs",
            Self::Wspt => "wspt",
        })
    }
}

impl FromStr for QueuePolicy {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let found = [Self::Fcfs, Self::Wspt].into_iter().find(|at| at.to_string() == text);
        check(found.is_some(), "queue policy", "must be one of fcfs, wspt")?;
        Ok(found.unwrap_or_default())
    }
}

// === impl QueueConfig ===

impl Default for QueueConfig {
    fn default() -> Self {
        // Document 004. Dynamo 1.6 has no threshold by default.
        let threshold = Some(2.0);
        Self { threshold, policy: QueuePolicy::default(), entries_max: QUEUE_ENTRIES_MAX }
    }
}

impl QueueConfig {
    /// Checks all settings.
    ///
    /// # Errors
    /// If the threshold is not finite or not above 0, or `entries_max` is 0.
    pub fn check(&self) -> Result<(), ConfigError> {
        let is_good = self.threshold.is_none_or(|at| at.is_finite() && at > 0.0);
        check(is_good, "queue threshold", "must be more than 0")?;
        check(self.entries_max > 0, "queue entries", "must be at least 1")
    }

    /// Whether a rank has enough to compute. False if it does not report its capacity (upstream assumes ten million
    /// tokens).
    #[must_use]
    pub fn is_above(&self, load: &RankLoad, profile: &WorkerProfile) -> bool {
        let capacity = self.threshold.zip(profile.max_num_batched_tokens);
        capacity.is_some_and(|(at, tokens)| load.prefill_tokens as f64 > at * tokens as f64)
    }

    /// Returns whether a request must wait: all eligible ranks have enough to compute. False if the threshold is off,
    /// or no rank is eligible, because waiting would not help.
    pub fn must_wait<'a>(
        &self,
        eligible: impl IntoIterator<Item = (RankLoad, &'a WorkerProfile)>,
    ) -> bool {
        let mut eligible = eligible.into_iter().peekable();
        self.threshold.is_some()
            && eligible.peek().is_some()
            && eligible.all(|(load, profile)| self.is_above(&load, profile))
    }
}

// === impl Place ===

impl Ord for Place {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_priority = self.priority.total_cmp(&other.priority);
        by_priority.then_with(|| other.ticket.cmp(&self.ticket))
    }
}

impl PartialOrd for Place {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Place {}

// === impl Queue ===

impl<T> Queue<T> {
    /// An empty queue.
    #[must_use]
    pub fn new(config: QueueConfig) -> Self {
        debug_assert_eq!(config.check(), Ok(()), "the process refuses what cannot be used");
        Self {
            config,
            entries: BTreeMap::new(),
            lanes: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            tickets: 0,
            input_tokens: 0,
        }
    }

    /// Current settings.
    #[must_use]
    pub fn config(&self) -> &QueueConfig {
        &self.config
    }

    /// Whether a lane is empty, so that a request may bypass the queue without overtaking another.
    #[must_use]
    pub fn is_clear(&self, lane: Lane) -> bool {
        !self.lanes.contains_key(&lane)
    }

    /// Adds a request to the queue.
    ///
    /// # Errors
    /// If the queue is full.
    pub fn push(&mut self, wait: Wait, item: T, now: Duration) -> Result<Ticket, QueueFull<T>> {
        if self.entries.len() >= self.config.entries_max {
            return Err(QueueFull(item));
        }
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        let place = Place { priority: self.config.policy.priority(&wait, now), ticket };
        debug_assert!(!place.priority.is_nan(), "{wait:?} at {now:?}");
        let Wait { lane, input_tokens, deadline, .. } = wait;
        self.lanes.entry(lane).or_default().insert(place);
        self.deadlines.extend(deadline.map(|deadline| (deadline, ticket)));
        self.input_tokens = self.input_tokens.saturating_add(input_tokens);
        let entry = Entry { item, lane, place, arrived: now, deadline, input_tokens };
        self.entries.insert(ticket, entry);
        Ok(ticket)
    }

    /// Releases the first request, over all lanes, whose ranks have room. Returns `None` if all must wait. Calls
    /// `has_room` at most once per lane.
    pub fn next(
        &mut self,
        now: Duration,
        mut has_room: impl FnMut(&T) -> bool,
    ) -> Option<Released<T>> {
        let mut heads: Vec<Place> =
            self.lanes.values().filter_map(|lane| lane.last()).copied().collect();
        heads.sort_unstable_by(|a, b| b.cmp(a));
        debug_assert_eq!(heads.len(), self.lanes.len(), "no lane is empty");
        let mut heads = heads.into_iter().map(|place| place.ticket);
        let ticket = heads.find(|at| self.entries.get(at).is_some_and(|at| has_room(&at.item)))?;
        self.release(ticket, now)
    }

    /// Removes a cancelled request; `None` if it has left already.
    pub fn cancel(&mut self, ticket: Ticket, now: Duration) -> Option<Released<T>> {
        self.release(ticket, now)
    }

    /// Removes the requests that timed out by `now`, earliest deadline first.
    pub fn expire(&mut self, now: Duration) -> Vec<Released<T>> {
        let mut expired = Vec::new();
        while let Some((_, ticket)) = self.deadlines.first().filter(|(at, _)| *at <= now).copied() {
            let Some(released) = self.release(ticket, now) else {
                debug_assert!(false, "who left has no deadline");
                self.deadlines.pop_first();
                continue;
            };
            expired.push(released);
        }
        expired
    }

    /// Earliest deadline of the queued requests.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Number of requests ahead in the lane; `None` if the request is not queued.
    #[must_use]
    pub fn position(&self, ticket: Ticket) -> Option<usize> {
        let entry = self.entries.get(&ticket)?;
        let lane = self.lanes.get(&entry.lane)?;
        Some(lane.iter().rev().take_while(|place| **place != entry.place).count())
    }

    /// How long a request has waited; `None` if it is not queued.
    #[must_use]
    pub fn waiting_time(&self, ticket: Ticket, now: Duration) -> Option<Duration> {
        self.entries.get(&ticket).map(|entry| now.saturating_sub(entry.arrived))
    }

    /// Number of queued requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the queue is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Total prompt tokens of the queued requests.
    #[must_use]
    pub fn input_tokens(&self) -> u64 {
        self.input_tokens
    }

    /// Removes a request from the queue, and returns it with its waiting time. Returns `None` if the ticket is unknown.
    fn release(&mut self, ticket: Ticket, now: Duration) -> Option<Released<T>> {
        let Entry { item, lane, place, arrived, deadline, input_tokens } =
            self.entries.remove(&ticket)?;
        if let Some(places) = self.lanes.get_mut(&lane) {
            let was_there = places.remove(&place);
            debug_assert!(was_there, "each has a place in its lane");
            if places.is_empty() {
                self.lanes.remove(&lane);
            }
        }
        if let Some(deadline) = deadline {
            self.deadlines.remove(&(deadline, ticket));
        }
        self.input_tokens = self.input_tokens.saturating_sub(input_tokens);
        debug_assert!(!self.entries.is_empty() || self.lanes.is_empty(), "nobody has no place");
        Some(Released { ticket, item, waited: now.saturating_sub(arrived) })
    }
}
