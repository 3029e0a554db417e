use super::super::config::{Hints, RouterConfig, RouterWorker};
use super::super::index::{Held, IndexUse, Overlaps};
use super::super::state::{Part, Pending, State};
use crate::prompt::Prompt;
use crate::route::{
    Decision, FetchConfig, Mode, NoFetch, OutlierConfig, Pin, Question, TierBlocks, Trust,
};
use kvasir_proto::types::{WorkerId, WorkerKey};
use proptest::prelude::*;
use std::num::NonZeroU32;
use std::time::Duration;

const BLOCK: NonZeroU32 = NonZeroU32::new(16).expect("not 0");
/// A block of 1 MB takes 1 ms to fetch; 16 tokens take 16 ms to compute.
const FETCH: FetchConfig =
    FetchConfig { bytes_per_second: 1e9, prefill_tokens_per_second: 1_000.0 };
const NOW: Duration = Duration::from_secs(9);

fn key(name: &str) -> WorkerKey {
    WorkerKey { worker: WorkerId::new(name).expect("a name"), rank: 0 }
}

fn worker(name: &str, labels: &[(&str, &str)]) -> RouterWorker {
    let mut worker = RouterWorker::new(key(name));
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    worker.profile.labels = labels.collect();
    worker
}

/// Workers `a` and `e` serve equal blocks, `d` blocks of another size and `f` of other heads. `g` does not report its
/// heads, `b` only fetches, and `c` has no agent.
fn state(fetch: Option<FetchConfig>) -> State {
    let outliers = OutlierConfig { failures: 1, ..OutlierConfig::default() };
    let config = RouterConfig { fetch, outliers, ..RouterConfig::new(BLOCK) };
    let mut state = State::new(&config).expect("settings");
    let bytes = ("blocks-bytes", "1000000");
    let heads = ("blocks-fingerprint", "00000000000000aa");
    let workers = vec![
        worker("a", &[bytes, heads, ("blocks-peer", "http://a:1")]),
        worker("b", &[bytes, heads]),
        worker("c", &[]),
        worker("d", &[("blocks-bytes", "9"), heads, ("blocks-peer", "http://d:1")]),
        worker("e", &[bytes, heads, ("blocks-peer", "http://e:1")]),
        worker("f", &[bytes, ("blocks-fingerprint", "bb"), ("blocks-peer", "http://f:1")]),
        worker("g", &[bytes, ("blocks-peer", "http://g:1")]),
    ];
    state.set_workers(workers, Duration::ZERO);
    state
}

/// Blocks of these workers in host memory, and additional ones in device memory.
fn overlaps(held: &[(&str, u32, u32)]) -> Overlaps {
    let by_rank = held.iter().map(|(name, host, device)| {
        let blocks = TierBlocks { device: *device, host: *host, ..TierBlocks::default() };
        (key(name), Held { blocks, trust: Trust::Full, reusable_tokens: None })
    });
    let below_device = held
        .iter()
        .filter(|(_, host, _)| *host > 0)
        .map(|(name, host, _)| (key(name), TierBlocks { host: *host, ..TierBlocks::default() }));
    Overlaps {
        by_rank: by_rank.collect(),
        below_device: Some(below_device.collect()),
        is_complete: true,
        index_use: IndexUse::Answered {
            elapsed: Duration::ZERO,
            missing_shards: Vec::new(),
            holding_ranks: held.len(),
            distrusted_ranks: 0,
        },
    }
}

/// The decision for a prompt with this number of blocks.
fn choose(state: &mut State, blocks: u32, overlaps: &Overlaps, hints: &Hints) -> Decision {
    let tokens: Vec<u32> = (0..blocks * BLOCK.get()).collect();
    let prompt = Prompt::new("m", BLOCK.get(), &tokens).hashed();
    let chain = prompt.sequence_hashes();
    let mut question = Question::new(tokens.len() as u64, BLOCK);
    question.constraints = hints.filter.constraints();
    question.mode = hints.mode;
    let part = Part::Whole;
    let arrived = None;
    let prompt = &prompt;
    let pending = Pending { part, prompt, question, hints, chain: &chain, arrived };
    state.place(&pending, overlaps, NOW).expect("a worker").1
}

fn pinned(name: &str) -> Hints {
    let mut hints = Hints::default();
    hints.filter.pin = Some(Pin { worker: key(name).worker, rank: None });
    hints
}

#[test]
fn the_decision_names_peers_blocks_and_times() {
    let held = overlaps(&[("a", 12, 0), ("b", 0, 2)]);
    let decision = choose(&mut state(Some(FETCH)), 14, &held, &pinned("b"));
    let plan = decision.fetch.expect("a plan");
    assert_eq!((plan.first_block, plan.blocks, plan.recompute_blocks), (2, 10, 2));
    let [peer] = plan.peers.as_slice() else { panic!("{plan:?}") };
    assert_eq!((&peer.worker, peer.address.as_str(), peer.blocks), (&key("a"), "http://a:1", 10));
    assert_eq!(
        (plan.expected, plan.compute),
        (Duration::from_millis(12), Duration::from_millis(160))
    );
    // Two blocks are the worker's own; ten are credited as host memory; two remain to compute.
    assert!((decision.cost.new_prefill_tokens - 72.0).abs() < 1e-9, "{:?}", decision.cost);
    assert!((decision.cost.fetch_tokens - 12.0).abs() < 1e-9, "{:?}", decision.cost);
}

/// The prompts share their first blocks, such as a common system prompt.
#[test]
fn prompts_that_begin_alike_are_fetched_from_all_that_hold_as_much() {
    let held = overlaps(&[("a", 12, 0), ("e", 12, 0)]);
    let first = |blocks| {
        let plan = choose(&mut state(Some(FETCH)), blocks, &held, &pinned("b")).fetch;
        plan.expect("a plan").peers.first().map(|peer| peer.worker.clone())
    };
    let firsts: Vec<_> = (12..44).filter_map(first).collect();
    let of = |name| firsts.iter().filter(|at| **at == key(name)).count();
    assert!(of("a") >= 8 && of("e") >= 8, "{firsts:?}");
}

#[test]
fn without_agent_holder_or_answer_there_is_a_reason() {
    let held = overlaps(&[("a", 12, 0), ("d", 14, 0)]);
    let reason = |name: &str, held: &Overlaps| {
        choose(&mut state(Some(FETCH)), 14, held, &pinned(name)).fetch.expect_err("no plan")
    };
    assert_eq!(reason("c", &held), NoFetch::NoAgent);
    assert_eq!(reason("a", &held), NoFetch::NoHolder, "neither itself nor blocks of other bytes");
    assert_eq!(reason("b", &overlaps(&[("b", 0, 14)])), NoFetch::Complete);
    assert_eq!(reason("b", &Overlaps::not_needed()), NoFetch::NotAsked);
    let half_answered = Overlaps { below_device: None, ..overlaps(&[("a", 12, 0)]) };
    assert_eq!(reason("b", &half_answered), NoFetch::NotAsked);
    // An ejected worker is not used as a peer.
    let mut state = state(Some(FETCH));
    let first =
        choose(&mut state, 1, &held, &Hints { request_id: Some("r".into()), ..pinned("a") });
    assert_eq!(first.worker, key("a"));
    let id = state.key("r").expect("an id");
    state.free(&id, Some(true), NOW).expect("it was there");
    let decision = choose(&mut state, 14, &held, &pinned("b"));
    assert_eq!(decision.fetch, Err(NoFetch::NoHolder));
}

/// A busy worker keeps its prefix; an idle worker fetches it, which is cheaper than computing it.
#[test]
fn a_worker_that_can_fetch_gets_what_it_would_not_get() {
    let held = overlaps(&[("a", 0, 100)]);
    let held_below = Overlaps { by_rank: held.by_rank, ..overlaps(&[("a", 100, 0)]) };
    let chosen = |fetch| {
        let mut state = state(fetch);
        let busy = choose(&mut state, 60, &overlaps(&[]), &pinned("a"));
        assert_eq!(busy.worker, key("a"));
        choose(&mut state, 110, &held_below, &Hints::default()).worker
    };
    assert_eq!(chosen(None), key("a"), "110 blocks elsewhere cost more than 60 that wait");
    assert_eq!(chosen(Some(FETCH)), key("b"));
}

#[test]
fn a_reported_fetch_changes_the_bandwidth() {
    let mut state = state(Some(FETCH));
    let held = overlaps(&[("a", 12, 0)]);
    state.report_fetch(1_000_000, Duration::from_millis(500), NOW);
    let decision = choose(&mut state, 14, &held, &pinned("b"));
    assert_eq!(decision.fetch, Err(NoFetch::NotFaster), "half a second for each block");
    let bandwidth = state.fetch_bandwidth(NOW).expect("plans are on");
    assert!(bandwidth.is_measured && (bandwidth.per_second - 2e6).abs() < 1e-6, "{bandwidth:?}");
}

proptest! {
    /// With any modes and overlaps, decisions without plans equal decisions whose plans find no peer.
    #[test]
    fn plans_that_find_nobody_change_no_decision(
        requests in prop::collection::vec((1_u32..40, 0_u32..40, 0_u32..40, 0_usize..3), 1..30),
    ) {
        let mut off = state(None);
        let mut on = state(Some(FETCH));
        for (blocks, a, c, mode) in requests {
            let mut held = overlaps(&[("a", 0, a.min(blocks)), ("c", 0, c.min(blocks))]);
            // The router does plan, but the only holder has blocks of another size.
            let of_holder = |name| vec![(key(name), TierBlocks { host: blocks, ..TierBlocks::default() })];
            held.below_device = Some(of_holder("d"));
            let mode = [Mode::Kv, Mode::LeastLoaded, Mode::RoundRobin][mode];
            let hints = Hints { mode: Some(mode), explain: true, ..Hints::default() };
            let with = choose(&mut on, blocks, &held, &hints);
            prop_assert!(with.fetch.is_err());
            held.below_device = Some(of_holder("a"));
            let without = choose(&mut off, blocks, &held, &hints);
            prop_assert_eq!(&without.fetch, &Err(NoFetch::NotAsked));
            prop_assert_eq!(Decision { fetch: Err(NoFetch::NotAsked), ..with }, without);
        }
    }
}
