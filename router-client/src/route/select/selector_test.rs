use super::*;
use crate::route::active::{ActiveConfig, ActiveLoads, NewRequest, PromptBlocks, RankLoad};
use crate::route::active::{RequestKey, RouterId};
use crate::route::cost::{CostConfig, DecodePrice, TierBlocks};
use crate::route::trust::Trust;
use kvasir_proto::convert::{ModelType, ModelTypes, Role, WorkerProfile};
use kvasir_proto::types::{SequenceHash, WorkerId, WorkerKey};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::Duration;

const BLOCK: NonZeroU32 = NonZeroU32::new(16).expect("not 0");
const OLD: Duration = Duration::from_secs(3_600);

/// Owns the data that a candidate borrows.
#[derive(Debug, Clone, Default)]
struct Rank {
    profile: WorkerProfile,
    adapters: BTreeSet<String>,
    load: RankLoad,
    shared_blocks: u32,
    overlap: TierBlocks,
    age: Duration,
    is_ejected: bool,
}

fn rank(blocks: u64, device: u32) -> Rank {
    let load = RankLoad { prompt_blocks: blocks, ..RankLoad::default() };
    let overlap = TierBlocks { device, ..TierBlocks::default() };
    Rank { load, overlap, age: OLD, ..Rank::default() }
}

fn worker(number: usize) -> WorkerId {
    WorkerId::new(&format!("w{number}")).expect("a name")
}

/// Keys of workers 1, 2, 3 and so on, in order.
fn keys(count: usize) -> Vec<WorkerKey> {
    let mut keys: Vec<_> =
        (1..=count).map(|number| WorkerKey { worker: worker(number), rank: 0 }).collect();
    keys.sort();
    keys
}

fn candidates<'a>(keys: &'a [WorkerKey], ranks: &'a [Rank]) -> Vec<Candidate<'a>> {
    let candidate = |(key, rank): (&'a WorkerKey, &'a Rank)| Candidate {
        key,
        profile: &rank.profile,
        adapters: &rank.adapters,
        load: rank.load,
        shared_blocks: rank.shared_blocks,
        overlap: rank.overlap,
        trust: Trust::Full,
        fetch: None,
        age: rank.age,
        is_ejected: rank.is_ejected,
    };
    keys.iter().zip(ranks).map(candidate).collect()
}

fn question(blocks: u64) -> Question<'static> {
    Question::new(blocks * 16, BLOCK)
}

fn selector(mode: Mode) -> Selector {
    Selector::new(SelectConfig { mode, ..SelectConfig::default() })
}

/// A selector with the documents' price of blocks in use.
fn documents() -> Selector {
    let cost = CostConfig { decode_price: DecodePrice::Full, ..CostConfig::default() };
    Selector::new(SelectConfig { cost, ..SelectConfig::default() })
}

/// Random function for modes that must not use it.
fn no_chance() -> u64 {
    panic!("nothing is drawn")
}

/// SplitMix64.
fn chance(mut seed: u64) -> impl FnMut() -> u64 {
    move || {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// Number of the worker chosen for a question, and the reason.
fn choose(selector: &mut Selector, question: &Question<'_>, ranks: &[Rank]) -> (usize, Reason) {
    let keys = keys(ranks.len());
    let chosen = selector.select(question, &candidates(&keys, ranks), &mut no_chance);
    let chosen = chosen.expect("a decision");
    assert_eq!(chosen.worker, keys[chosen.candidate]);
    (chosen.candidate + 1, chosen.reason)
}

fn refused(selector: &mut Selector, question: &Question<'_>, ranks: &[Rank]) -> SelectError {
    let keys = keys(ranks.len());
    let refused = selector.select(question, &candidates(&keys, ranks), &mut no_chance);
    refused.expect_err("refused")
}

/// The example of documents 001 and 004. Its decode blocks are given; here they come from active requests.
#[test]
fn the_documents_example_chooses_worker_2() {
    let ranks = [(10, 2), (5, 5), (9, 8)].map(|(active, cached)| rank(active, cached));
    let asked = Question { blocks: 0, explain: true, ..question(10) };
    let keys = keys(3);
    let all = candidates(&keys, &ranks);
    let chosen = documents().select(&asked, &all, &mut no_chance).expect("a decision");
    assert_eq!((chosen.candidate, chosen.reason), (1, Reason::LowestScore));
    let terms = |at: &Explanation| [at.cost.prefill_blocks, at.cost.decode_blocks, at.score];
    let terms: Vec<_> = chosen.explanations.iter().map(terms).collect();
    assert_eq!(terms, [[8.0, 10.0, 18.0], [5.0, 5.0, 10.0], [2.0, 9.0, 11.0]]);
}

#[test]
fn the_lowest_cost_wins_by_the_requests_own_weight() {
    let ranks = [rank(0, 0), rank(30, 20)];
    let mut selector = documents();
    assert_eq!(choose(&mut selector, &question(20), &ranks), (1, Reason::LowestScore));
    let reuse = Question { overlap_score_weight: Some(3.0), ..question(20) };
    assert_eq!(choose(&mut selector, &reuse, &ranks), (2, Reason::LowestScore));
    let load = Question { overlap_score_weight: Some(0.0), ..question(20) };
    assert!(selector.needs_overlap(&reuse) && !selector.needs_overlap(&load));
    assert!(!selector.needs_overlap(&Question { mode: Some(Mode::Random), ..question(20) }));
}

#[test]
fn equal_scores_go_to_the_least_loaded_and_then_in_turn() {
    let mut selector = documents();
    let equal = [rank(7, 3), rank(4, 0), rank(9, 5)];
    assert_eq!(choose(&mut selector, &question(10), &equal), (2, Reason::LeastLoadedOfEqual));
    let same = [rank(0, 0), rank(9, 0), rank(0, 0), rank(0, 0)];
    let turns: Vec<_> = (0..4).map(|_| choose(&mut selector, &question(10), &same)).collect();
    assert_eq!(turns.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [3, 4, 1, 3]);
    assert!(turns.iter().all(|(_, reason)| *reason == Reason::TurnOfEqual));
    assert_eq!(choose(&mut selector, &question(10), &same[..1]), (1, Reason::OnlyOne));
}

#[test]
fn turns_go_round_whoever_comes_or_goes() {
    let mut selector = selector(Mode::RoundRobin);
    let ranks = vec![rank(0, 0); 4];
    let turns = [4, 4, 2, 4, 4].map(|count| choose(&mut selector, &question(1), &ranks[..count]).0);
    assert_eq!(turns, [1, 2, 1, 2, 3]);
}

#[test]
fn direct_takes_whom_the_request_names() {
    let mut selector = selector(Mode::Direct);
    let busy = BusyThresholds { active_prefill_tokens: Some(1), ..BusyThresholds::default() };
    selector.set_busy(busy).expect("usable");
    let mut ranks = vec![rank(0, 0); 3];
    ranks[1].load.prefill_tokens = 99;
    ranks[1].is_ejected = true;
    assert_eq!(refused(&mut selector, &question(1), &ranks), SelectError::NoTarget);
    let named = |number, rank| Pin { worker: worker(number), rank };
    for (pin, expected) in
        [(named(2, None), Some(2)), (named(2, Some(1)), None), (named(9, None), None)]
    {
        let constraints = Constraints { pin: Some(&pin), ..Constraints::default() };
        let question = Question { constraints, ..question(1) };
        match expected {
            Some(at) => {
                assert_eq!(choose(&mut selector, &question, &ranks), (at, Reason::Direct));
                let keys = keys(ranks.len());
                let all = candidates(&keys, &ranks);
                let chosen = selector.select(&question, &all, &mut no_chance).expect("a decision");
                assert!(chosen.is_ejection_ignored, "it failed of late");
            }
            None => {
                let error = refused(&mut selector, &question, &ranks);
                assert_eq!(error, SelectError::UnknownTarget);
            }
        }
    }
}

#[test]
fn constraints_remove_and_name_themselves() {
    let mut ranks = vec![rank(0, 0); 7];
    ranks[3].profile.role = Role::Prefill;
    ranks[6].profile.model_types = [ModelType::Completions].into_iter().collect();
    for at in [0, 1, 2, 3, 5] {
        ranks[at].profile.labels.insert("zone".to_owned(), "a".to_owned());
    }
    let allowed: BTreeSet<_> = (2..=7).map(worker).collect();
    let excluded = BTreeSet::from([worker(3)]);
    let roles = [Role::Unspecified, Role::Both];
    let labels = [("zone".to_owned(), "a".to_owned())];
    let constraints = Constraints {
        pin: None,
        allowed: Some(&allowed),
        excluded: Some(&excluded),
        roles: &roles,
        labels: &labels,
        model_type: Some(ModelType::Chat),
    };
    ranks[5].is_ejected = true;
    let asked = Question { constraints, explain: true, ..question(1) };
    let keys = keys(7);
    let mut selector = selector(Mode::Kv);
    let chosen = selector.select(&asked, &candidates(&keys, &ranks), &mut no_chance);
    let chosen = chosen.expect("a decision");
    let removed: Vec<_> = chosen.explanations.iter().map(|at| at.removed).collect();
    let expected = [
        Some(Removed::NotAllowed),
        None,
        Some(Removed::Excluded),
        Some(Removed::Role),
        Some(Removed::Label),
        Some(Removed::Ejected),
        Some(Removed::ModelType),
    ];
    assert_eq!(removed, expected);
    assert_eq!((chosen.candidate, chosen.eligible, chosen.reason), (1, 1, Reason::OnlyOne));
    assert!(chosen.removed.values().all(|count| *count == 1) && chosen.removed.len() == 6);
    let pin = Pin { worker: worker(1), rank: Some(0) };
    let both = Constraints { pin: Some(&pin), ..constraints };
    let asked = Question { constraints: both, ..question(1) };
    let error = refused(&mut selector, &asked, &ranks);
    let expected = "no worker is allowed to have the request (6 not pinned, 1 not allowed)";
    assert_eq!(error.to_string(), expected);
    assert_eq!(refused(&mut selector, &question(1), &[]), SelectError::NoWorkers);
}

#[test]
fn who_failed_is_left_alone_unless_nobody_else_is_left() {
    let mut ranks = vec![rank(50, 0), rank(0, 0), rank(0, 0)];
    (ranks[1].is_ejected, ranks[2].is_ejected) = (true, true);
    let mut selector = selector(Mode::Kv);
    assert_eq!(choose(&mut selector, &question(1), &ranks), (1, Reason::OnlyOne));
    let excluded = BTreeSet::from([worker(1)]);
    let constraints = Constraints { excluded: Some(&excluded), ..Constraints::default() };
    let asked = Question { constraints, ..question(1) };
    let keys = keys(3);
    let chosen = selector.select(&asked, &candidates(&keys, &ranks), &mut no_chance);
    let chosen = chosen.expect("a decision");
    assert!(chosen.is_ejection_ignored && chosen.candidate == 1);
    // A busy worker will have room again, so it counts as a remaining worker.
    let busy = BusyThresholds { active_decode_blocks: Some(0.4), ..BusyThresholds::default() };
    selector.set_busy(busy).expect("usable");
    ranks[0].profile.total_kv_blocks = Some(100);
    let error = refused(&mut selector, &question(1), &ranks);
    assert!(matches!(error, SelectError::AllBusy { .. }), "{error}");
}

#[test]
fn busy_ranks_are_refused() {
    let mut ranks = vec![rank(51, 0), rank(0, 0), rank(0, 0), rank(1_000, 0)];
    ranks[0].profile.total_kv_blocks = Some(100);
    ranks[1].load.prefill_tokens = 1_001;
    ranks[2].load.prefill_tokens = 201;
    ranks[2].profile.max_num_batched_tokens = Some(100);
    let busy = BusyThresholds {
        active_decode_blocks: Some(0.5),
        active_prefill_tokens: Some(1_000),
        active_prefill_tokens_fraction: Some(2.0),
    };
    let mut selector = Selector::new(SelectConfig { busy, ..SelectConfig::default() });
    assert_eq!(choose(&mut selector, &question(1), &ranks).0, 4, "it states no capacity");
    let SelectError::AllBusy { removed, .. } = refused(&mut selector, &question(1), &ranks[..3])
    else {
        panic!("all are busy")
    };
    let kinds =
        [Removed::DecodeBlocksBusy, Removed::PrefillTokensBusy, Removed::PrefillFractionBusy];
    assert_eq!(removed, BTreeMap::from(kinds.map(|kind| (kind, 1))));
    assert!(kinds.iter().all(|kind| kind.is_busy()));
    // Each threshold is at its last value that is not exceeded.
    ranks[0].load.prompt_blocks = 50;
    ranks[1].load.prefill_tokens = 1_000;
    ranks[2].load.prefill_tokens = 200;
    let keys = keys(3);
    let all = candidates(&keys, &ranks[..3]);
    let chosen = selector.select(&question(1), &all, &mut no_chance).expect("a decision");
    assert_eq!(chosen.eligible, 3);
    for bad in [
        BusyThresholds { active_decode_blocks: Some(0.0), ..busy },
        BusyThresholds { active_prefill_tokens: Some(0), ..busy },
        BusyThresholds { active_prefill_tokens_fraction: Some(f64::NAN), ..busy },
    ] {
        assert!(selector.set_busy(bad).is_err(), "{bad:?}");
    }
    assert_eq!(selector.config().busy, busy);
}

#[test]
fn what_is_preferred_wins_until_the_load_outweighs_it() {
    let mut selector = documents();
    let keys = keys(2);
    let labels = [PreferredLabel { key: "zone".into(), value: "a".into(), weight: 1.0 }];
    let wishes = [
        Preferences { session: Some(&keys[1]), ..Preferences::default() },
        Preferences { adapter: Some("lora"), ..Preferences::default() },
        Preferences { labels: &labels, ..Preferences::default() },
    ];
    for preferences in wishes {
        for (blocks, expected) in [(0, 2), (40, 2), (90, 1)] {
            let mut ranks = [rank(0, 0), rank(blocks, 0)];
            ranks[1].adapters.insert("lora".to_owned());
            ranks[1].profile.labels.insert("zone".to_owned(), "a".to_owned());
            let question = Question { preferences, ..question(20) };
            assert_eq!(choose(&mut selector, &question, &ranks).0, expected, "{blocks}");
        }
    }
    let avoided = [PreferredLabel { weight: -1.0, ..labels[0].clone() }];
    let mut ranks = [rank(0, 0), rank(0, 0)];
    ranks[1].profile.labels.insert("zone".to_owned(), "a".to_owned());
    let preferences = Preferences { labels: &avoided, ..Preferences::default() };
    let question = Question { preferences, ..question(20) };
    assert_eq!(choose(&mut selector, &question, &ranks), (1, Reason::LowestScore));
}

#[test]
fn who_has_just_joined_is_spared() {
    for mode in [Mode::Kv, Mode::LeastLoaded] {
        let mut selector = selector(mode);
        let chosen = [0, 5, 15, 25, 30].map(|secs| {
            let young = Rank { age: Duration::from_secs(secs), ..rank(0, 0) };
            choose(&mut selector, &question(10), &[rank(20, 0), young]).0
        });
        assert_eq!(chosen.first(), Some(&1), "{mode}");
        assert_eq!(chosen.last(), Some(&2), "{mode}");
        assert!(chosen.is_sorted(), "{mode}: {chosen:?}");
        let all = vec![Rank { age: Duration::ZERO, ..rank(0, 0) }; 2];
        assert_eq!(choose(&mut selector, &question(10), &all).1, Reason::TurnOfEqual);
    }
    assert!(SlowStart { share_min: 0.0, ..SlowStart::default() }.check().is_err());
}

#[test]
fn the_least_loaded_is_chosen_by_blocks_prefill_and_requests() {
    let mut selector = selector(Mode::LeastLoaded);
    let mut ranks = vec![rank(9, 0), rank(0, 0), rank(0, 99)];
    ranks[1].load.prefill_tokens = 160;
    assert_eq!(choose(&mut selector, &question(10), &ranks).0, 3);
    ranks[2].load.prompt_blocks = 30;
    assert_eq!(choose(&mut selector, &question(10), &ranks).0, 1);
    let mut idle = vec![rank(0, 0), rank(0, 0)];
    idle[0].load.requests = 2;
    let chosen = choose(&mut selector, &question(10), &idle);
    assert_eq!(chosen, (2, Reason::LeastLoadedOfEqual), "where blocks are not tracked");
}

/// How often each worker is chosen.
fn shares(config: SelectConfig, ranks: &[Rank], rounds: usize) -> Vec<usize> {
    let keys = keys(ranks.len());
    let mut draw = chance(7);
    let mut selector = Selector::new(config);
    let mut counts = vec![0; ranks.len()];
    for _ in 0..rounds {
        let all = candidates(&keys, ranks);
        let chosen = selector.select(&question(10), &all, &mut draw).expect("a decision");
        counts[chosen.candidate] += 1;
    }
    counts
}

#[test]
fn temperature_samples_by_softmax_over_normalised_costs() {
    // Costs 20, 30 and 40 are normalized to 0, 1/2 and 1.
    let ranks = [rank(0, 0), rank(10, 0), rank(20, 0)];
    let config = SelectConfig { temperature: 0.5, ..*documents().config() };
    let counts = shares(config, &ranks, 100_000);
    let weights = [0.0, -1.0, -2.0].map(f64::exp);
    for (count, weight) in counts.iter().zip(weights) {
        let expected = weight / weights.iter().sum::<f64>();
        let share = *count as f64 / 100_000.0;
        assert!((share - expected).abs() < 0.01, "{share} instead of {expected}");
    }
    let cold = SelectConfig { temperature: 1e-9, ..config };
    assert_eq!(shares(cold, &ranks, 100), [100, 0, 0]);
    let equal = shares(config, &[rank(0, 0), rank(0, 0)], 10_000);
    assert!(equal.iter().all(|count| (4_800..5_200).contains(count)), "{equal:?}");
    let own = Question { temperature: Some(0.0), ..question(10) };
    assert_eq!(choose(&mut Selector::new(config), &own, &ranks).0, 1, "the request's own");
    for temperature in [-1.0, f64::NAN] {
        assert!(SelectConfig { temperature, ..config }.check().is_err());
        assert!(Question { temperature: Some(temperature), ..question(1) }.check().is_err());
    }
}

#[test]
fn random_and_power_of_two_draw() {
    let ranks = [rank(0, 0), rank(10, 0), rank(20, 0), rank(30, 0)];
    let of = |mode| shares(SelectConfig { mode, ..SelectConfig::default() }, &ranks, 12_000);
    let random = of(Mode::Random);
    assert!(random.iter().all(|count| (2_800..3_200).contains(count)), "{random:?}");
    // Of the 6 pairs of different ranks, each rank is the better one in 3, 2, 1 and 0 pairs.
    let two = of(Mode::PowerOfTwo);
    for (count, expected) in two.iter().zip([6_000, 4_000, 2_000, 0]) {
        assert!(count.abs_diff(expected) < 250, "{two:?}");
    }
    let config = SelectConfig { mode: Mode::PowerOfTwo, ..SelectConfig::default() };
    assert_eq!(shares(config, &ranks[..1], 3), [3]);
}

/// A burst of requests with one new prefix, before the index reports it, goes to a few ranks: neither to one nor to
/// all.
#[test]
fn a_burst_with_one_new_prefix_does_not_herd() {
    const RANKS: usize = 16;
    let keys = keys(RANKS);
    let mut loads = ActiveLoads::new(ActiveConfig::new(BLOCK));
    let numbers: Vec<_> = keys.iter().map(|key| loads.join(key).expect("room")).collect();
    let mut selector = selector(Mode::Kv);
    let mut used = BTreeMap::new();
    for request in 0..60_u64 {
        let own = (0..4).map(|at| 1_000 + request * 4 + at);
        let chain: Vec<_> = (0..64).chain(own).map(SequenceHash).collect();
        let shared = loads.shared(&chain);
        let ranks: Vec<_> = numbers
            .iter()
            .map(|number| Rank {
                load: loads.load(*number),
                shared_blocks: shared.of(*number),
                ..rank(0, 0)
            })
            .collect();
        let question = Question::new(chain.len() as u64 * 16, BLOCK);
        let all = candidates(&keys, &ranks);
        let chosen = selector.select(&question, &all, &mut no_chance).expect("a decision");
        *used.entry(chosen.candidate).or_insert(0) += 1;
        let new = NewRequest {
            rank: numbers[chosen.candidate],
            blocks: PromptBlocks::Chain(&chain),
            input_tokens: question.input_tokens,
            prefill_tokens: chosen.cost.booked_prefill_tokens(),
            expected_output_tokens: None,
        };
        let key = RequestKey::new(RouterId(1), &request.to_string()).expect("an id");
        loads.add(&key, new, Duration::ZERO).expect("added");
    }
    assert!((2..=8).contains(&used.len()), "{used:?}");
    assert!(used.values().all(|requests| *requests <= 30), "{used:?}");
}

/// With the documents' price, worker 2 of their example wins, whatever the capacities. By room, the worker with the
/// most cached blocks wins, unless no room is left.
#[test]
fn blocks_in_use_count_little_while_there_is_room() {
    let asked = Question { blocks: 0, ..question(10) };
    let chosen = [None, Some(1_000), Some(5)].map(|capacity| {
        let mut ranks = [rank(10, 2), rank(5, 5), rank(9, 8)];
        ranks.iter_mut().for_each(|rank| rank.profile.total_kv_blocks = capacity);
        [documents(), selector(Mode::Kv)].map(|mut at| choose(&mut at, &asked, &ranks).0)
    });
    assert_eq!(chosen, [[2, 3], [2, 3], [2, 2]]);
}

fn any_rank() -> impl Strategy<Value = Rank> {
    let load = (0_u64..50, 0_u64..4_000, 0_u64..5);
    let overlap = (0_u32..20, 0_u32..20, 0_u32..20);
    let states = (proptest::option::of(50_u64..80), 0_u64..60, any::<bool>(), 0_usize..4);
    (load, overlap, states).prop_map(|(load, overlap, (capacity, age, is_ejected, role))| Rank {
        profile: WorkerProfile {
            role: [Role::Unspecified, Role::Prefill, Role::Decode, Role::Both][role],
            total_kv_blocks: capacity,
            max_num_batched_tokens: capacity,
            labels: BTreeMap::new(),
            model_types: ModelTypes::default(),
            image_tokens: None,
        },
        load: RankLoad {
            requests: load.2,
            prompt_blocks: load.0,
            prefill_tokens: load.1,
            ..RankLoad::default()
        },
        overlap: TierBlocks { device: overlap.0, host: overlap.1, disk: overlap.2, pool: 0 },
        age: Duration::from_secs(age),
        is_ejected,
        ..Rank::default()
    })
}

proptest! {
    /// A chosen rank has passed every filter, and in mode kv no eligible rank has a lower score.
    #[test]
    fn who_is_chosen_is_eligible(
        ranks in proptest::collection::vec(any_rank(), 0..12),
        mode in proptest::sample::select(vec![
            Mode::Kv, Mode::RoundRobin, Mode::Random, Mode::PowerOfTwo, Mode::LeastLoaded,
        ]),
        temperature in prop_oneof![Just(0.0), 0.001_f64..10.0],
        excluded in proptest::collection::btree_set(0_usize..12, 0..12),
        roles in proptest::sample::subsequence(vec![Role::Prefill, Role::Decode, Role::Both], 0..3),
        threshold in proptest::option::of(0.1_f64..1.0),
        seed: u64,
    ) {
        let busy = BusyThresholds {
            active_decode_blocks: threshold,
            active_prefill_tokens_fraction: threshold.map(|at| at * 60.0),
            ..BusyThresholds::default()
        };
        let config = SelectConfig { mode, temperature, busy, ..SelectConfig::default() };
        let excluded = excluded.into_iter().map(worker).collect();
        let constraints =
            Constraints { excluded: Some(&excluded), roles: &roles, ..Constraints::default() };
        let question = Question { constraints, explain: true, ..question(20) };
        let keys = keys(ranks.len());
        let all = candidates(&keys, &ranks);
        let mut selector = Selector::new(config);
        let mut draw = chance(seed);
        let explanations = match selector.select(&question, &all, &mut draw) {
            Ok(chosen) => {
                let explained = &chosen.explanations[chosen.candidate];
                prop_assert_eq!((&explained.worker, explained.removed), (&chosen.worker, None));
                prop_assert_eq!(explained.cost, chosen.cost);
                let left = chosen.explanations.iter().filter(|at| at.removed.is_none());
                prop_assert_eq!(left.clone().count(), chosen.eligible);
                let lowest = left.map(|at| at.score).fold(f64::INFINITY, f64::min);
                if mode == Mode::LeastLoaded || mode == Mode::Kv && temperature == 0.0 {
                    prop_assert!(chosen.score <= lowest);
                }
                chosen.explanations
            }
            Err(SelectError::NoneAllowed { removed, explanations }) => {
                prop_assert!(!removed.keys().any(|what| what.is_busy()));
                explanations
            }
            Err(SelectError::AllBusy { removed, explanations }) => {
                prop_assert!(removed.keys().any(|what| what.is_busy()));
                explanations
            }
            Err(SelectError::NoWorkers) => {
                prop_assert!(ranks.is_empty());
                Vec::new()
            }
            Err(error) => panic!("{error}"),
        };
        prop_assert_eq!(explanations.len(), ranks.len());
        for (at, rank) in explanations.iter().zip(&ranks) {
            prop_assert!(!excluded.contains(&at.worker.worker) || at.removed == Some(Removed::Excluded));
            let is_allowed = roles.is_empty() || roles.contains(&rank.profile.role);
            prop_assert!(is_allowed || at.removed.is_some());
            prop_assert!(at.score.is_finite() && at.score >= 0.0 && at.slow_start >= 1.0);
        }
    }
}
