//! How often a selection queries the index, and that its decisions do not depend on this.

use super::index_fixture_test::FakeIndex;
use super::*;
use crate::route::{Decision, FetchConfig, QueueConfig};
use futures::poll;
use kvasir_proto::convert::Role;
use kvasir_proto::pb::{
    BlocksByTier, FindMatchesRequest, FindMatchesResponse, Tier, WorkerMatch, WorkerState,
};
use std::collections::{BTreeSet, VecDeque};

const BLOCK_SIZE: NonZeroU32 = NonZeroU32::new(16).expect("not 0");
/// A block of 1 MB takes 1 ms to fetch; 16 tokens take 16 ms to compute.
const FETCH: FetchConfig =
    FetchConfig { bytes_per_second: 1e9, prefill_tokens_per_second: 1_000.0 };
/// Tokens that must remain to compute for a prefill worker.
const LEAST_TOKENS: u64 = 64;
/// Tokens at which a rank is busy.
const BUSY: BusyThresholds = BusyThresholds {
    active_decode_blocks: None,
    active_prefill_tokens: Some(1_000),
    active_prefill_tokens_fraction: None,
};

/// A worker that can fetch and serve blocks, in a transfer domain unless its name is empty.
fn worker(id: &str, role: Role, domain: &str) -> RouterWorker {
    let key = WorkerKey { worker: WorkerId::new(id).expect("a name"), rank: 0 };
    let mut worker = RouterWorker::new(key);
    worker.profile.role = role;
    let labels = [
        ("blocks-bytes", "1000000"),
        ("blocks-fingerprint", "aa"),
        ("blocks-peer", "http://a:1"),
        ("transfer-domain", domain),
    ];
    let labels = labels.into_iter().filter(|(_, value)| !value.is_empty());
    worker.profile.labels.extend(labels.map(|(key, value)| (key.to_owned(), value.to_owned())));
    worker
}

fn pools(
    index: Index,
    fetch: Option<FetchConfig>,
    workers: impl IntoIterator<Item = RouterWorker>,
) -> Pools {
    let config = RouterConfig { fetch, ..RouterConfig::new(BLOCK_SIZE) };
    let least = PoolsConfig { remote_prefill_tokens_min: LEAST_TOKENS, ..PoolsConfig::default() };
    let pools = Pools::new(config, least, index).expect("settings");
    pools.set_workers(workers);
    pools
}

fn prompt(first: u32, blocks: u32) -> HashedPrompt {
    let tokens: Vec<u32> = (0..blocks * BLOCK_SIZE.get()).map(|at| first + at).collect();
    Prompt::new("m", BLOCK_SIZE.get(), &tokens).hashed()
}

/// Blocks of a worker in device and in host memory. Only `total` leading blocks are in either.
fn held(id: &str, request: &FindMatchesRequest, total: u32, device: u32, host: u32) -> WorkerMatch {
    let is_below = !request.tiers.is_empty();
    WorkerMatch {
        worker_id: id.to_owned(),
        matched_blocks: if is_below { host } else { total },
        blocks_by_tier: Some(BlocksByTier { device, host, disk: 0 }),
        blocks_by_best_tier: Some(match is_below {
            true => BlocksByTier { device: 0, host, disk: 0 },
            false => BlocksByTier { device, host: total - device, disk: 0 },
        }),
        state: WorkerState::Exact.into(),
        verified_age_ms: Some(0),
        connected: true,
        ..WorkerMatch::default()
    }
}

/// Worker `d` has ten blocks. Which of them are in host memory takes a second query.
#[expect(clippy::unnecessary_wraps, reason = "an index may refuse to answer")]
fn ten_blocks(request: &FindMatchesRequest) -> Option<FindMatchesResponse> {
    let matches = vec![held("d", request, 10, 8, 4)];
    Some(FindMatchesResponse { matches, ..FindMatchesResponse::default() })
}

async fn outcome(pools: &Pools, prompt: &HashedPrompt, hints: &Hints) -> PrefillOutcome {
    let placed = pools.select(prompt, hints).await.expect("workers");
    let computing = placed.prefill.as_ref().unwrap_or(&placed.decode);
    let index_use = computing.index_use();
    assert!(matches!(index_use, IndexUse::Answered { holding_ranks: 1, .. }), "{index_use:?}");
    placed.prefill_outcome
}

async fn count_queries(shards: usize, fetch: Option<FetchConfig>) {
    let index = FakeIndex::start(shards, ten_blocks).await;
    let below = [Tier::Host, Tier::Disk].map(i32::from).to_vec();
    let once: Vec<Vec<i32>> = match fetch {
        None => vec![Vec::new()],
        Some(_) => vec![Vec::new(), below],
    };
    let check = |what: PrefillOutcome| {
        assert_eq!(index.take_queries(), vec![once.clone(); shards], "{what:?}");
    };
    let both = |domain| [worker("p", Role::Prefill, domain), worker("d", Role::Decode, "a")];
    let hints = Hints::default();
    let long = prompt(0, 40);

    let pools = pools(index.client(), fetch, both("a"));
    assert_eq!(outcome(&pools, &long, &hints).await, PrefillOutcome::Chosen);
    check(PrefillOutcome::Chosen);
    assert_eq!(outcome(&pools, &prompt(0, 12), &hints).await, PrefillOutcome::MostlyCached);
    check(PrefillOutcome::MostlyCached);
    let excluded = hints.clone().excluding(&WorkerId::new("p").expect("a name"));
    assert_eq!(outcome(&pools, &long, &excluded).await, PrefillOutcome::NoWorker);
    check(PrefillOutcome::NoWorker);
    pools.set_workers(both("b"));
    assert_eq!(outcome(&pools, &long, &hints).await, PrefillOutcome::NoDomain);
    check(PrefillOutcome::NoDomain);
    pools.prefill().set_busy_thresholds(BUSY).expect("usable");
    let held = pools.prefill().select_hashed(&prompt(9_000, 80), &hints).await;
    let _held = held.expect("a worker");
    index.take_queries();
    assert_eq!(outcome(&pools, &long, &hints).await, PrefillOutcome::Busy);
    check(PrefillOutcome::Busy);
    pools.select_local(&long, &hints).await.map(drop).expect("a worker");
    check(PrefillOutcome::NotAsked);
}

#[tokio::test]
async fn a_disaggregated_selection_queries_the_index_once() {
    for shards in [1, 2] {
        count_queries(shards, None).await;
        count_queries(shards, Some(FETCH)).await;
    }
}

#[tokio::test]
async fn a_failing_index_is_queried_once() {
    let index = FakeIndex::start(1, |_request| None).await;
    let both = [worker("p", Role::Prefill, "a"), worker("d", Role::Decode, "b")];
    let pools = pools(index.client(), Some(FETCH), both);
    let placed = pools.select(&prompt(0, 40), &Hints::default()).await.expect("a worker");
    assert_eq!(placed.prefill_outcome, PrefillOutcome::NoDomain);
    let index_use = placed.decode.index_use();
    assert!(matches!(index_use, IndexUse::Failed { .. }), "{index_use:?}");
    assert_eq!(index.take_queries(), [[[0_i32; 0]]]);
}

/// Three workers have blocks, by the prompt's first hash.
fn some_blocks(request: &FindMatchesRequest) -> Option<FindMatchesResponse> {
    let first = *request.local_hashes.first()?;
    let blocks = u32::try_from(request.local_hashes.len()).ok()?;
    let matches = [("d", 0), ("e", 16), ("p", 32)].into_iter().map(|(id, shift)| {
        let [a, b, c, ..] = first.rotate_right(shift).to_be_bytes().map(u32::from);
        let total = a % (blocks + 1);
        held(id, request, total, b % (total + 1), c % (total + 1))
    });
    let matches = matches.filter(|at| at.matched_blocks > 0).collect();
    Some(FindMatchesResponse { matches, ..FindMatchesResponse::default() })
}

/// The decisions of a selection, and the reservations that count as load.
type Selected = (PrefillOutcome, Vec<Decision>, Vec<Reservation>);

fn selected(outcome: PrefillOutcome, reservations: Vec<Reservation>) -> Selected {
    let decisions = reservations.iter().map(|at| at.decision().clone()).collect();
    (outcome, decisions, reservations)
}

/// [`Pools::select`] with one query of the index for each decision.
async fn select_by_own_queries(pools: &Pools, prompt: &HashedPrompt, hints: &Hints) -> Selected {
    let main = pools.main();
    let prefill = pools.prefill();
    let local = async |outcome| {
        let decode = main.select_hashed(prompt, hints).await.expect("a worker");
        selected(outcome, vec![decode])
    };
    let preview = main.explain(prompt, hints).await.expect("a worker").decision;
    if preview.cost.new_prefill_tokens < LEAST_TOKENS as f64 {
        return local(PrefillOutcome::MostlyCached).await;
    }
    let chain = prompt.sequence_hashes();
    let request_id = Some(main.new_request_id());
    let wanted = Hints {
        request_id: request_id.clone(),
        queue_timeout: Some(Duration::ZERO),
        ..hints.clone()
    };
    let pending = prefill.pending(prompt, &chain, &wanted, Part::Prefill).expect("usable");
    let Ok(first) = prefill.select_pending(pending, None).await else {
        return local(PrefillOutcome::Busy).await;
    };
    let domain = prefill.label(first.worker(), "transfer-domain").expect("a domain");
    let mut wanted = Hints { overlap_score_weight: Some(0.0), ..wanted };
    wanted.filter.labels.push(("transfer-domain".to_owned(), domain));
    let pending = main.pending(prompt, &chain, &wanted, Part::Decode).expect("usable");
    match main.select_pending(pending, None).await {
        Ok(decode) => selected(PrefillOutcome::Chosen, vec![decode, first]),
        Err(_error) => {
            drop(first);
            local(PrefillOutcome::NoDomain).await
        }
    }
}

#[tokio::test]
async fn one_query_leads_to_the_decisions_of_many() {
    let index = FakeIndex::start(1, some_blocks).await;
    let workers = || {
        let prefill = [("p", "a"), ("q", "b")];
        let prefill = prefill.map(|(id, domain)| worker(id, Role::Prefill, domain));
        prefill.into_iter().chain(["d", "e"].map(|id| worker(id, Role::Decode, "a")))
    };
    let busy = BusyThresholds { active_prefill_tokens: Some(100), ..BUSY };
    for fetch in [None, Some(FETCH)] {
        let [one, many] = [(); 2].map(|()| pools(index.client(), fetch, workers()));
        for pools in [&one, &many] {
            pools.prefill().set_busy_thresholds(busy).expect("usable");
        }
        let all = Hints { explain: true, ..Hints::default() };
        let only_p = all.clone().excluding(&WorkerId::new("q").expect("a name"));
        let mut open = VecDeque::new();
        let mut outcomes = BTreeSet::new();
        for number in 0..100 {
            let prompt = prompt(number % 40 * 10_000, 8 + number % 30);
            let hints = if number % 3 == 0 { &only_p } else { &all };
            let by_one = one.select(&prompt, hints).await.expect("workers");
            let Placement { decode, prefill, prefill_outcome } = by_one;
            let by_one = selected(prefill_outcome, [decode].into_iter().chain(prefill).collect());
            let by_many = select_by_own_queries(&many, &prompt, hints).await;
            assert_eq!((by_one.0, &by_one.1), (by_many.0, &by_many.1), "{number}");
            outcomes.insert(format!("{:?}", by_one.0));
            open.push_back((by_one, by_many));
            if open.len() > 6 {
                open.pop_front();
            }
        }
        let expected = ["Busy", "Chosen", "MostlyCached", "NoDomain"].map(str::to_owned);
        assert_eq!(outcomes, BTreeSet::from(expected));
    }
}

#[tokio::test]
async fn a_request_that_waits_queries_the_index_after_the_wait() {
    let index = FakeIndex::start(1, ten_blocks).await;
    let queue = QueueConfig { threshold: Some(1.0), ..QueueConfig::default() };
    let mut only = worker("d", Role::Both, "a");
    only.profile.max_num_batched_tokens = Some(32);
    let builder = Router::builder(BLOCK_SIZE).index(index.client()).queue(queue);
    let router = builder.workers([only]).build().expect("settings");
    let hints = Hints::default();
    let prompts = [prompt(0, 40), prompt(10_000, 40)];
    let first = router.select_hashed(&prompts[0], &hints).await.expect("a worker");
    assert_eq!(index.take_queries(), [[[0_i32; 0]]]);
    let mut second = Box::pin(router.select_hashed(&prompts[1], &hints));
    assert!(poll!(&mut second).is_pending());
    assert_eq!(router.waiting().0, 1, "it waits before it queries the index");
    assert_eq!(index.take_queries(), [[[0_i32; 0]; 0]]);
    drop(first);
    let second = second.await.expect("a worker");
    assert!(matches!(second.index_use(), IndexUse::Answered { .. }));
    assert_eq!(index.take_queries(), [[[0_i32; 0]]]);
}
