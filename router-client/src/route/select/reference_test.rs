//! Compares the choice with a reference that lists all eligible ranks and sorts the list.

use super::decision::Removed;
use super::*;
use crate::route::active::RankLoad;
use crate::route::cost::TierBlocks;
use crate::route::trust::Trust;
use kvasir_proto::convert::{Role, WorkerProfile};
use kvasir_proto::types::{WorkerId, WorkerKey};
use proptest::prelude::*;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::Duration;

const BLOCK: NonZeroU32 = NonZeroU32::new(16).expect("not 0");
const RANKS: usize = 24;
/// Age from which slow start has no effect.
const SETTLED: Duration = Duration::from_secs(30);

/// One rank of a fleet, with few distinct values, so that many ranks are equal.
#[derive(Debug, Clone)]
struct Rank {
    profile: WorkerProfile,
    load: RankLoad,
    shared_blocks: u32,
    overlap: TierBlocks,
    age: Duration,
    is_ejected: bool,
}

/// A request, and the ranks at its arrival.
#[derive(Debug, Clone)]
struct Round {
    fleet: BTreeMap<usize, Rank>,
    mode: Mode,
    roles: Vec<Role>,
    excluded: BTreeSet<WorkerId>,
    pin: Option<Pin>,
    busy_prefill_tokens: Option<u64>,
    draws: [u64; 2],
}

/// Candidates that report whether they are settled, like a router's.
struct Fleet<'a> {
    all: Vec<Candidate<'a>>,
    are_settled: bool,
}

impl Candidates for Fleet<'_> {
    fn count(&self) -> usize {
        self.all.len()
    }

    fn at(&self, number: usize) -> Option<Candidate<'_>> {
        self.all.at(number)
    }

    fn are_settled(&self) -> bool {
        self.are_settled
    }
}

/// An eligible rank in the reference's list.
#[derive(Debug, Clone)]
struct Listed {
    key: WorkerKey,
    score: f64,
    load: f64,
    requests: u64,
}

fn key(number: usize) -> WorkerKey {
    let worker = number / 2;
    let rank = u32::try_from(number % 2).expect("small");
    WorkerKey { worker: WorkerId::new(&format!("w{worker:02}")).expect("a name"), rank }
}

fn rank() -> impl Strategy<Value = Rank> {
    let load = (0_u64..3, 0_u64..3, 0_u64..2);
    let cached = (0_u32..2, 0_u32..2);
    let states = (prop_oneof![4 => Just(60_u64), 1 => 0_u64..60], proptest::bool::weighted(0.2));
    let role = proptest::sample::select(vec![Role::Both, Role::Decode]);
    (load, cached, states, role).prop_map(|(load, cached, (age, is_ejected), role)| Rank {
        profile: WorkerProfile { role, ..WorkerProfile::default() },
        load: RankLoad {
            prompt_blocks: load.0 * 4,
            prefill_tokens: load.1 * 64,
            requests: load.2,
            ..RankLoad::default()
        },
        shared_blocks: cached.0 * 4,
        overlap: TierBlocks { device: cached.1 * 8, ..TierBlocks::default() },
        age: Duration::from_secs(age),
        is_ejected,
    })
}

fn round() -> impl Strategy<Value = Round> {
    let fleet = proptest::collection::btree_map(0..RANKS, rank(), 0..RANKS);
    let mode = proptest::sample::select(vec![
        Mode::Kv,
        Mode::Kv,
        Mode::LeastLoaded,
        Mode::RoundRobin,
        Mode::Random,
        Mode::PowerOfTwo,
        Mode::Direct,
    ]);
    let roles = prop_oneof![2 => Just(Vec::new()), 1 => Just(vec![Role::Decode])];
    let excluded = proptest::collection::btree_set((0..RANKS).prop_map(|at| key(at).worker), 0..3);
    let pin = (0..RANKS, any::<bool>()).prop_map(|(number, is_rank)| {
        let WorkerKey { worker, rank } = key(number);
        Pin { worker, rank: is_rank.then_some(rank) }
    });
    let busy = proptest::option::weighted(0.3, 1_u64..130);
    let choice = (mode, roles, excluded, proptest::option::weighted(0.2, pin), busy);
    // In half of the fleets all ranks are settled, and half of the requests have no preferences.
    let are_calm = any::<[bool; 2]>();
    (fleet, choice, any::<[u64; 2]>(), are_calm).prop_map(|(mut fleet, choice, draws, are_calm)| {
        let (mode, mut roles, mut excluded, mut pin, mut busy_prefill_tokens) = choice;
        if are_calm[0] {
            for rank in fleet.values_mut() {
                (rank.age, rank.is_ejected) = (SETTLED, false);
            }
        }
        if are_calm[1] && mode != Mode::Direct {
            (roles, excluded) = (Vec::new(), BTreeSet::new());
            (pin, busy_prefill_tokens) = (None, None);
        }
        Round { fleet, mode, roles, excluded, pin, busy_prefill_tokens, draws }
    })
}

impl Rank {
    fn candidate<'a>(&'a self, key: &'a WorkerKey) -> Candidate<'a> {
        static ADAPTERS: BTreeSet<String> = BTreeSet::new();
        Candidate {
            key,
            profile: &self.profile,
            adapters: &ADAPTERS,
            load: self.load,
            shared_blocks: self.shared_blocks,
            overlap: self.overlap,
            trust: Trust::Full,
            fetch: None,
            age: self.age,
            is_ejected: self.is_ejected,
        }
    }
}

impl Round {
    fn constraints(&self) -> Constraints<'_> {
        Constraints {
            pin: self.pin.as_ref(),
            excluded: Some(&self.excluded).filter(|excluded| !excluded.is_empty()),
            roles: &self.roles,
            ..Constraints::default()
        }
    }

    fn busy(&self) -> BusyThresholds {
        let active_prefill_tokens = self.busy_prefill_tokens;
        BusyThresholds { active_prefill_tokens, ..BusyThresholds::default() }
    }

    /// Why a rank is removed.
    fn verdict(&self, key: &WorkerKey, rank: &Rank, ejects: bool) -> Option<Removed> {
        if self.mode == Mode::Direct {
            let is_named = self.pin.as_ref().is_some_and(|pin| pin.is(key));
            return (!is_named).then_some(Removed::NotPinned);
        }
        let ejected = (rank.is_ejected && ejects).then_some(Removed::Ejected);
        let unmet = self.constraints().unmet(key, &rank.profile);
        unmet.or(ejected).or_else(|| self.busy().exceeded(&rank.load, &rank.profile))
    }

    /// Eligible ranks ordered by key, and the number of removed ranks by reason.
    fn list(&self, scores: &BTreeMap<WorkerKey, f64>) -> (Vec<Listed>, BTreeMap<Removed, usize>) {
        let mut list = Vec::new();
        let mut removed = BTreeMap::new();
        for ejects in [true, false] {
            (list, removed) = (Vec::new(), BTreeMap::new());
            for (number, rank) in &self.fleet {
                let key = key(*number);
                if let Some(what) = self.verdict(&key, rank, ejects) {
                    *removed.entry(what).or_insert(0) += 1;
                    continue;
                }
                let load = rank.load.prompt_blocks as f64 + rank.load.prefill_tokens as f64 / 16.0;
                let score = scores[&key];
                let requests = rank.load.requests;
                list.push(Listed { key, score, load, requests });
            }
            let is_anybody_left = !list.is_empty() || removed.keys().any(|what| what.is_busy());
            if is_anybody_left || !removed.contains_key(&Removed::Ejected) {
                break;
            }
        }
        (list, removed)
    }

    /// The rank that must be chosen, and why.
    fn expected(&self, list: &[Listed], last: Option<&WorkerKey>) -> Option<(WorkerKey, Reason)> {
        let draw = |at: usize, below: usize| {
            usize::try_from((u128::from(self.draws[at]) * below as u128) >> 64).expect("small")
        };
        let (key, reason) = match self.mode {
            Mode::Kv | Mode::LeastLoaded => best(list, last)?,
            Mode::Direct => (best(list, last)?.0, Reason::Direct),
            Mode::RoundRobin => (in_turn(list, last)?.key.clone(), Reason::Turn),
            Mode::Random => (list.get(draw(0, list.len()))?.key.clone(), Reason::Random),
            Mode::PowerOfTwo if list.len() < 2 => best(list, last)?,
            Mode::PowerOfTwo => {
                let mut two = list.to_vec();
                let first = two.remove(draw(0, list.len()));
                let mut two = vec![first, two.swap_remove(draw(1, list.len() - 1))];
                two.sort_by(|a, b| a.key.cmp(&b.key));
                (best(&two, last)?.0, Reason::LessLoadedOfTwo)
            }
        };
        Some((key, reason))
    }
}

/// The first rank after the last chosen one, or the first of all.
fn in_turn<'a>(
    list: impl IntoIterator<Item = &'a Listed>,
    last: Option<&WorkerKey>,
) -> Option<&'a Listed> {
    let list: Vec<_> = list.into_iter().collect();
    let behind = list.iter().find(|at| last.is_none_or(|last| at.key > *last));
    behind.or(list.first()).copied()
}

fn best(list: &[Listed], last: Option<&WorkerKey>) -> Option<(WorkerKey, Reason)> {
    let by_load = |a: &Listed, b: &Listed| {
        a.load.total_cmp(&b.load).then_with(|| a.requests.cmp(&b.requests))
    };
    let mut sorted: Vec<_> = list.iter().collect();
    sorted.sort_by(|a, b| a.score.total_cmp(&b.score).then_with(|| by_load(a, b)));
    let best = *sorted.first()?;
    let is_low = |at: &&&Listed| at.score.total_cmp(&best.score) == Ordering::Equal;
    let low: Vec<_> = sorted.iter().filter(is_low).copied().collect();
    let mut idle: Vec<_> = low.iter().filter(|at| by_load(at, best).is_eq()).copied().collect();
    idle.sort_by(|a, b| a.key.cmp(&b.key));
    let reason = match (list.len(), low.len(), idle.len()) {
        (1, ..) => Reason::OnlyOne,
        (_, 1, _) => Reason::LowestScore,
        (_, _, 1) => Reason::LeastLoadedOfEqual,
        _ => Reason::TurnOfEqual,
    };
    Some((in_turn(idle, last)?.key.clone(), reason))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// One selector over a changing fleet: each choice, reason and count equals the reference.
    #[test]
    fn each_choice_is_that_of_a_sorted_list(rounds in proptest::collection::vec(round(), 1..8)) {
        let mut selector = Selector::new(SelectConfig::default());
        let mut last = None;
        for round in &rounds {
            selector.set_busy(round.busy()).expect("usable");
            let keys: Vec<_> = round.fleet.keys().map(|number| key(*number)).collect();
            let ranks = keys.iter().zip(round.fleet.values());
            let all: Vec<_> = ranks.map(|(key, rank)| rank.candidate(key)).collect();
            let are_settled = all.iter().all(|at| at.age >= SETTLED && !at.is_ejected);
            let candidates = Fleet { all, are_settled };
            let question = Question {
                mode: Some(round.mode),
                constraints: round.constraints(),
                ..Question::new(20 * 16, BLOCK)
            };
            // Explaining must not advance the round-robin position, so a copy is asked.
            let explained = Question { explain: true, ..question };
            let explanations = match selector.clone().select(&explained, &candidates, &mut || 0) {
                Ok(decision) => decision.explanations,
                Err(SelectError::NoneAllowed { explanations, .. }
                    | SelectError::AllBusy { explanations, .. }) => explanations,
                Err(_) => Vec::new(),
            };
            let scores = explanations.into_iter().map(|at| (at.worker, at.score)).collect();
            let mut draws = round.draws.into_iter();
            let mut draw = || draws.next().expect("two draws suffice");
            let chosen = selector.select(&question, &candidates, &mut draw);
            let is_direct = round.mode == Mode::Direct;
            if candidates.count() == 0 || is_direct && round.pin.is_none() {
                prop_assert!(chosen.is_err());
                continue;
            }
            if is_direct && !keys.iter().any(|key| round.pin.as_ref().is_some_and(|pin| pin.is(key))) {
                prop_assert_eq!(chosen, Err(SelectError::UnknownTarget));
                continue;
            }
            let (list, removed) = round.list(&scores);
            match (chosen, round.expected(&list, last.as_ref())) {
                (Ok(chosen), Some(expected)) => {
                    prop_assert_eq!((chosen.worker.clone(), chosen.reason), expected);
                    prop_assert_eq!(chosen.score.to_bits(), scores[&chosen.worker].to_bits());
                    prop_assert_eq!((chosen.eligible, chosen.removed), (list.len(), removed));
                    prop_assert_eq!(&keys[chosen.candidate], &chosen.worker);
                    last = Some(chosen.worker);
                }
                (Err(SelectError::NoneAllowed { removed: counted, .. }
                    | SelectError::AllBusy { removed: counted, .. }), None) => {
                    prop_assert_eq!(counted, removed);
                }
                (chosen, expected) => panic!("{chosen:?} where {expected:?} was expected"),
            }
        }
    }
}
