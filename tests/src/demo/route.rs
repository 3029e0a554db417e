//! The choice of a worker for a request.
//!
//! By FindMatches: the worker with the highest score, where
//!
//! > score = tokens of the prompt it holds − [`TOKENS_PER_REQUEST`] × its requests under way.
//!
//! Overlap wins until a worker has so many more requests under way than another that waiting for
//! them costs more than computing the overlap again. Equal scores go to the worker with fewer
//! requests under way, then to the one that got fewer tokens so far.

use kvasir_proto::pb;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The weight of one request under way, in tokens that need not be computed.
pub const TOKENS_PER_REQUEST: i64 = 1_024;

/// How workers are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// By overlap and load.
    FindMatches,
    /// In turn.
    RoundRobin,
}

impl Policy {
    /// The name in the output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::FindMatches => "FindMatches",
            Self::RoundRobin => "round-robin",
        }
    }

    /// The prefix of its workers' ids.
    #[must_use]
    pub fn worker_prefix(self) -> &'static str {
        match self {
            Self::FindMatches => "kv",
            Self::RoundRobin => "rr",
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Load {
    requests: i64,
    tokens: u64,
}

/// Loads of the workers of one fleet, and the choice among them.
#[derive(Debug)]
pub struct Router {
    numbers: HashMap<String, usize>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    loads: Vec<Load>,
    turn: usize,
}

/// A request under way; dropping it removes it from its worker's load.
#[derive(Debug)]
pub struct Placed<'a> {
    router: &'a Router,
    /// Number of the worker.
    pub worker: usize,
}

// === impl Router ===

impl Router {
    /// A router over workers numbered in the order of their ids.
    pub fn new(worker_ids: impl IntoIterator<Item = String>) -> Self {
        let numbers: HashMap<_, _> = worker_ids.into_iter().zip(0..).collect();
        let loads = vec![Load::default(); numbers.len()];
        Self { numbers, state: Mutex::new(State { loads, turn: 0 }) }
    }

    /// The next worker in turn.
    pub fn place_in_turn(&self, prompt_tokens: usize) -> Placed<'_> {
        let mut state = self.lock();
        let worker = state.turn % state.loads.len();
        state.turn += 1;
        self.place(&mut state, worker, prompt_tokens)
    }

    /// The best worker by overlap and load.
    pub fn place_by_overlap(
        &self,
        matches: &[pb::WorkerMatch],
        prompt_tokens: usize,
    ) -> Placed<'_> {
        let mut state = self.lock();
        let mut matched = vec![0; state.loads.len()];
        for entry in matches {
            if let Some(&number) = self.numbers.get(&entry.worker_id) {
                matched[number] = matched[number].max(entry.matched_tokens as i64);
            }
        }
        let score = |&number: &usize| {
            let load = state.loads[number];
            let score = matched[number] - TOKENS_PER_REQUEST * load.requests;
            (score, Reverse(load.requests), Reverse(load.tokens), Reverse(number))
        };
        let best = (0..state.loads.len()).max_by_key(score).unwrap_or(0);
        self.place(&mut state, best, prompt_tokens)
    }

    fn place(&self, state: &mut State, worker: usize, prompt_tokens: usize) -> Placed<'_> {
        state.loads[worker].requests += 1;
        state.loads[worker].tokens += prompt_tokens as u64;
        Placed { router: self, worker }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Placed ===

impl Drop for Placed<'_> {
    fn drop(&mut self) {
        self.router.lock().loads[self.worker].requests -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn router() -> Router {
        Router::new(["a", "b", "c"].map(str::to_owned))
    }

    fn matches(entries: &[(&str, u64)]) -> Vec<pb::WorkerMatch> {
        let entry = |&(worker_id, matched_tokens): &(&str, u64)| pb::WorkerMatch {
            worker_id: worker_id.to_owned(),
            matched_tokens,
            ..pb::WorkerMatch::default()
        };
        entries.iter().map(entry).collect()
    }

    #[test]
    fn overlap_wins_until_the_load_outweighs_it() {
        let router = router();
        let matches = matches(&[("b", 2_048)]);
        let placed = [(); 4].map(|()| router.place_by_overlap(&matches, 3_000));
        assert_eq!(placed.each_ref().map(|placed| placed.worker), [1, 1, 0, 2]);
    }

    #[test]
    fn equal_scores_go_to_the_least_used() {
        let router = router();
        drop(router.place_by_overlap(&[], 100));
        drop(router.place_by_overlap(&[], 50));
        drop(router.place_by_overlap(&[], 10));
        assert_eq!(router.place_by_overlap(&[], 1).worker, 2);
    }

    #[test]
    fn workers_of_other_fleets_do_not_count() {
        let router = router();
        assert_eq!(router.place_by_overlap(&matches(&[("x", 9_999)]), 1).worker, 0);
    }

    #[test]
    fn turns_go_round() {
        let router = router();
        assert_eq!([(); 4].map(|()| router.place_in_turn(1).worker), [0, 1, 2, 0]);
    }
}
