use super::*;
use crate::route::{Pin, QueueConfig, RankLoad, Removed, SelectError};
use kvasir_proto::convert::Role;
use kvasir_proto::types::{WorkerId, WorkerKey};
use std::num::NonZeroU32;

const BLOCK_SIZE: NonZeroU32 = NonZeroU32::new(16).expect("not 0");

/// A worker with a role, and a transfer domain unless it is empty.
fn worker(id: &str, role: Role, domain: &str) -> RouterWorker {
    let key = WorkerKey { worker: WorkerId::new(id).expect("a name"), rank: 0 };
    let mut worker = RouterWorker::new(key);
    worker.profile.role = role;
    if !domain.is_empty() {
        worker.profile.labels.insert("transfer-domain".to_owned(), domain.to_owned());
    }
    worker
}

fn pools(least: u64, workers: impl IntoIterator<Item = RouterWorker>) -> Pools {
    let config = PoolsConfig { remote_prefill_tokens_min: least, ..PoolsConfig::default() };
    let pools = Pools::new(RouterConfig::new(BLOCK_SIZE), config, Index::None).expect("settings");
    pools.set_workers(workers);
    pools
}

fn prompt(blocks: u64) -> HashedPrompt {
    HashedPrompt {
        model: "m".to_owned(),
        tenant: String::new(),
        block_size: BLOCK_SIZE.get(),
        input_tokens: blocks * 16,
        local_hashes: (0..blocks).collect(),
        next_tokens: Vec::new(),
        minimum_overlap_blocks: 1,
        top_k: 0,
        shared: false,
    }
}

fn load(router: &Router, id: &str) -> RankLoad {
    let loads = router.loads().into_iter();
    let mut loads = loads.filter(|(key, _)| key.worker.as_str() == id);
    loads.next().expect("a worker").1
}

fn names(placement: &Placement) -> (Option<&str>, &str, PrefillOutcome) {
    let prefill = placement.prefill.as_ref().map(|at| at.worker().worker.as_str());
    (prefill, placement.decode.worker().worker.as_str(), placement.prefill_outcome)
}

#[tokio::test]
async fn a_prompt_is_computed_by_one_worker_and_continued_by_another() {
    let pools = pools(64, [worker("p", Role::Prefill, ""), worker("d", Role::Decode, "")]);
    let mut placed = pools.select(&prompt(8), &Hints::default()).await.expect("workers");
    assert_eq!(names(&placed), (Some("p"), "d", PrefillOutcome::Chosen));
    let prefill = load(pools.prefill(), "p");
    assert_eq!((prefill.prefill_tokens, prefill.prompt_blocks), (128, 0), "no blocks are tracked");
    let decode = load(pools.main(), "d");
    assert_eq!((decode.prefill_tokens, decode.prompt_blocks), (0, 8), "it computes no prompt");
    placed.first_token();
    assert!(load(pools.prefill(), "p").is_empty(), "the prompt is computed");
    assert_eq!(load(pools.main(), "d").requests, 1);
    drop(placed);
    assert!(load(pools.main(), "d").is_empty());
    let mut placed = pools.select(&prompt(8), &Hints::default()).await.expect("workers");
    placed.output_tokens(0);
    assert_eq!(load(pools.prefill(), "p").requests, 1, "nothing is out yet");
    placed.output_tokens(1);
    assert!(load(pools.prefill(), "p").is_empty() && load(pools.main(), "d").requests == 1);
}

#[tokio::test]
async fn prefill_goes_on_and_off_with_its_workers() {
    let pools = pools(64, [worker("d", Role::Decode, "")]);
    let placed = pools.select(&prompt(8), &Hints::default()).await.expect("a worker");
    assert_eq!(names(&placed), (None, "d", PrefillOutcome::NoWorker));
    assert_eq!(load(pools.main(), "d").prefill_tokens, 128, "it computes the prompt itself");
    drop(placed);
    let both = [worker("d", Role::Decode, ""), worker("p", Role::Prefill, "")];
    pools.set_workers(both);
    let placed = pools.select(&prompt(8), &Hints::default()).await.expect("workers");
    assert_eq!(names(&placed), (Some("p"), "d", PrefillOutcome::Chosen));
    let short = pools.select(&prompt(3), &Hints::default()).await.expect("a worker");
    assert_eq!(names(&short), (None, "d", PrefillOutcome::MostlyCached));
    pools.set_workers([worker("d", Role::Decode, "")]);
    let placed = pools.select(&prompt(8), &Hints::default()).await.expect("a worker");
    assert_eq!(names(&placed), (None, "d", PrefillOutcome::NoWorker));
}

#[tokio::test]
async fn a_prompt_that_is_mostly_cached_is_computed_where_it_is_generated() {
    let pools = pools(64, [worker("p", Role::Prefill, ""), worker("d", Role::Decode, "")]);
    // The first request's blocks are in use there, so fewer tokens remain than the minimum.
    let _first = pools.select_local(&prompt(16), &Hints::default()).await.expect("a worker");
    let again = pools.select(&prompt(19), &Hints::default()).await.expect("a worker");
    assert_eq!(names(&again), (None, "d", PrefillOutcome::MostlyCached));
    drop(again);
    let longer = pools.select(&prompt(20), &Hints::default()).await.expect("workers");
    assert_eq!(names(&longer), (Some("p"), "d", PrefillOutcome::Chosen));
}

#[tokio::test]
async fn both_workers_are_in_one_transfer_domain() {
    let workers = [
        worker("p", Role::Prefill, "b"),
        worker("d-a", Role::Decode, "a"),
        worker("d-b", Role::Decode, "b"),
        worker("d-none", Role::Decode, ""),
    ];
    let pools = pools(0, workers);
    let mut held = Vec::new();
    for _ in 0..6 {
        let placed = pools.select(&prompt(8), &Hints::default()).await.expect("workers");
        assert_eq!(names(&placed), (Some("p"), "d-b", PrefillOutcome::Chosen));
        held.push(placed);
    }
    drop(held);
    pools.set_workers([worker("p", Role::Prefill, "c"), worker("d-a", Role::Decode, "a")]);
    let placed = pools.select(&prompt(8), &Hints::default()).await.expect("a worker");
    assert_eq!(names(&placed), (None, "d-a", PrefillOutcome::NoDomain));
    assert!(load(pools.prefill(), "p").is_empty(), "nothing is left of the first choice");
}

#[tokio::test]
async fn a_failed_prefill_is_done_without() {
    let workers = ["p", "q"].map(|id| worker(id, Role::Prefill, ""));
    let pools = pools(0, workers.into_iter().chain([worker("d", Role::Decode, "")]));
    // Five failures in a row of each worker.
    for _ in 0..10 {
        let mut placed = pools.select(&prompt(8), &Hints::default()).await.expect("workers");
        placed.prefill_failed();
        assert!(pools.prefill().loads().iter().all(|(_, load)| load.is_empty()), "its load ends");
        drop(placed);
        let local = pools.select_local(&prompt(8), &Hints::default()).await.expect("a worker");
        assert_eq!(load(pools.main(), "d").prefill_tokens, 128);
        drop(local);
    }
    assert_eq!(pools.prefill().counts().ejections, 1, "it failed too often");
}

#[tokio::test]
async fn a_busy_prefill_pool_is_done_without() {
    let pools = pools(0, [worker("p", Role::Prefill, ""), worker("d", Role::Decode, "")]);
    let busy = BusyThresholds { active_prefill_tokens: Some(100), ..BusyThresholds::default() };
    pools.prefill().set_busy_thresholds(busy).expect("usable");
    let first = pools.select(&prompt(8), &Hints::default()).await.expect("workers");
    let second = pools.select(&prompt(8), &Hints::default()).await.expect("a worker");
    assert_eq!(names(&second), (None, "d", PrefillOutcome::Busy));
    drop(first);
    let third = pools.select(&prompt(8), &Hints::default()).await.expect("workers");
    assert_eq!(third.prefill_outcome, PrefillOutcome::Chosen);
    pools.main().set_busy_thresholds(busy).expect("usable");
    let excluded = Hints::default().excluding(&WorkerId::new("d").expect("a name"));
    let error = pools.select(&prompt(8), &excluded).await.expect_err("no decode worker");
    let RouteError::Select(SelectError::NoneAllowed { removed, .. }) = error else {
        panic!("{error}")
    };
    assert_eq!(removed.get(&Removed::Excluded), Some(&1));
}

#[tokio::test]
async fn reports_of_a_detached_request_reach_both_pools() {
    let pools = pools(0, [worker("p", Role::Prefill, ""), worker("d", Role::Decode, "")]);
    let placed = pools.select(&prompt(8), &Hints::default()).await.expect("workers");
    let Detached { request_id, decode, prefill, .. } = placed.detach();
    assert!(prefill.is_some() && decode.decision.worker.worker.as_str() == "d");
    assert!(pools.main().has_request(&request_id) && pools.prefill().has_request(&request_id));
    assert_ne!(pools.mark_prefill_completed(&request_id), Ok(Update::Unknown));
    assert!(!pools.prefill().has_request(&request_id) && pools.has_request(&request_id));
    assert_ne!(pools.report_output(&request_id, 3), Ok(Update::Unknown));
    let ended = Ended::default();
    assert!(pools.free(&request_id, ended, None).expect("an id").is_some());
    assert_eq!(pools.free(&request_id, ended, None), Ok(None), "it has ended");
    let twice = Hints { request_id: Some("id".to_owned()), ..Hints::default() };
    let placed = pools.select(&prompt(8), &twice).await.expect("workers");
    let error = pools.select(&prompt(8), &twice).await.expect_err("refused");
    assert_eq!(error, RouteError::DuplicateId);
    assert_eq!(load(pools.prefill(), "p").requests, 1, "the first one stays");
    drop(placed);
    assert!(load(pools.prefill(), "p").is_empty());
}

/// A domain with busy workers must not fail requests that other workers can serve.
#[tokio::test]
async fn a_busy_transfer_domain_is_done_without() {
    let workers = [
        worker("p", Role::Prefill, "a"),
        worker("d-a", Role::Decode, "a"),
        worker("d-b", Role::Decode, "b"),
    ];
    let pools = pools(0, workers);
    let busy = BusyThresholds { active_prefill_tokens: Some(100), ..BusyThresholds::default() };
    pools.main().set_busy_thresholds(busy).expect("usable");
    let pin = |id: &str| {
        let worker = WorkerId::new(id).expect("a name");
        let filter = Filter { pin: Some(Pin { worker, rank: None }), ..Filter::default() };
        Hints { filter, ..Hints::default() }
    };
    let _held = pools.select_local(&prompt(8), &pin("d-a")).await.expect("a worker");
    let placed = pools.select(&prompt(8), &Hints::default()).await.expect("a worker");
    assert_eq!(names(&placed), (None, "d-b", PrefillOutcome::NoDomain));
    assert!(load(pools.prefill(), "p").is_empty());
}

/// The removal of the other worker is not a failure of the prefill worker, and a keep-alive does not end its work.
#[tokio::test]
async fn the_two_workers_answer_for_themselves() {
    let prefill = ["p", "q"].map(|id| worker(id, Role::Prefill, ""));
    let decode = ["d", "e"].map(|id| worker(id, Role::Decode, ""));
    let pools = pools(0, prefill.clone().into_iter().chain(decode));
    let failed = Ended { has_failed: Some(true), cached_tokens: None };
    let mut ids = Vec::new();
    for _ in 0..12 {
        let placed = pools.select(&prompt(8), &Hints::default()).await.expect("workers");
        ids.push(placed.detach().request_id);
    }
    assert_ne!(pools.report_output(&ids[0], 0), Ok(Update::Unknown));
    assert!(pools.prefill().has_request(&ids[0]), "nothing is out yet");
    pools.set_workers(prefill.clone());
    // A report of the first token reaches the prefill worker, although the other worker is gone.
    let first = ids.pop().expect("an id");
    assert!(pools.mark_prefill_completed(&first).is_ok() && !pools.has_request(&first));
    for id in &ids {
        assert!(!pools.main().has_request(id), "its worker is gone");
        assert!(pools.free(id, failed, None).expect("an id").is_some());
        assert!(!pools.prefill().has_request(id));
    }
    assert_eq!(pools.prefill().counts().ejections, 0, "none of them failed");
    // A request only in the prefill pool has no other worker that could have failed.
    for _ in 0..10 {
        let alone = pools.prefill().select_hashed(&prompt(8), &Hints::default()).await;
        let (id, _) = alone.expect("a worker").detach();
        pools.free(&id, failed, None).expect("an id");
    }
    assert_eq!(pools.prefill().counts().ejections, 1);
}

#[tokio::test]
async fn a_request_does_not_wait_for_a_prefill_worker() {
    let config = RouterConfig {
        queue: QueueConfig { threshold: Some(1.0), ..QueueConfig::default() },
        ..RouterConfig::new(BLOCK_SIZE)
    };
    let least = PoolsConfig { remote_prefill_tokens_min: 0, ..PoolsConfig::default() };
    let pools = Pools::new(config, least, Index::None).expect("settings");
    let mut full = worker("p", Role::Prefill, "");
    full.profile.max_num_batched_tokens = Some(64);
    pools.set_workers([full, worker("d", Role::Decode, "")]);
    let _first = pools.select(&prompt(8), &Hints::default()).await.expect("workers");
    let second = pools.select(&prompt(8), &Hints::default()).await.expect("a worker");
    assert_eq!(names(&second), (None, "d", PrefillOutcome::Busy));
}
