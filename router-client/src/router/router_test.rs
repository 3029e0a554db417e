use super::*;
use crate::client::IndexerClient;
use crate::config::ClientConfig;
use crate::route::{Mode, QueueConfig, Reason, SelectError};
use futures::poll;
use kvasir_proto::types::WorkerId;
use std::num::NonZeroU32;
use std::time::Duration;
use tokio::time::advance;

const BLOCK_SIZE: u32 = 16;

fn worker(id: &str) -> RouterWorker {
    RouterWorker::new(WorkerKey { worker: WorkerId::new(id).expect("an id"), rank: 0 })
}

fn router(mode: Mode, index: Index) -> Router {
    let mut config = RouterConfig::new(NonZeroU32::new(BLOCK_SIZE).expect("not 0"));
    config.select.mode = mode;
    let router = Router::new(config, index).expect("settings that can be used");
    router.set_workers(["a", "b", "c"].map(worker));
    router
}

fn tokens(first: u32, blocks: u32) -> Vec<u32> {
    (first..first + blocks * BLOCK_SIZE).collect()
}

async fn select(router: &Router, tokens: &[u32]) -> Reservation {
    let prompt = Prompt::new("m", BLOCK_SIZE, tokens);
    router.select(&prompt, &Hints::default()).await.expect("a worker")
}

fn requests(router: &Router) -> Vec<u64> {
    router.loads().iter().map(|(_, load)| load.requests).collect()
}

#[tokio::test]
async fn a_dropped_reservation_frees_its_worker() {
    let router = router(Mode::RoundRobin, Index::None);
    let reservations = [
        select(&router, &tokens(0, 2)).await,
        select(&router, &tokens(0, 2)).await,
        select(&router, &tokens(0, 2)).await,
        select(&router, &tokens(0, 2)).await,
    ];
    let ids = reservations.each_ref().map(|at| at.worker().worker.as_str());
    assert_eq!(ids, ["a", "b", "c", "a"]);
    assert_eq!(requests(&router), [2, 1, 1]);
    drop(reservations);
    assert!(router.loads().iter().all(|(_, load)| load.is_empty()), "{:?}", router.loads());
}

#[tokio::test]
async fn a_burst_with_one_new_prefix_lands_neither_on_one_worker_nor_on_all() {
    let router = router(Mode::Kv, Index::None);
    let prompt = |number: u32| [tokens(0, 60), tokens(10_000 * number, 10)].concat();
    let mut reservations = Vec::new();
    for number in 1..=6 {
        reservations.push(select(&router, &prompt(number)).await);
    }
    // Each has 10 blocks of its own: a sixth one at the first worker would cost more than computing the prefix again.
    assert_eq!(requests(&router), [5, 1, 0]);
    let credited = reservations.iter().map(|at| at.decision().cost.credited_blocks);
    assert_eq!(
        credited.map(|blocks| blocks.to_string()).collect::<Vec<_>>(),
        ["0", "60", "60", "60", "60", "0"]
    );
    reservations[0].first_token();
    let prefilling = router.loads().iter().map(|(_, load)| load.prefill_tokens).collect::<Vec<_>>();
    assert_eq!(prefilling, [640, 1_120, 0]);
}

#[tokio::test]
async fn without_an_answer_of_the_index_load_decides_and_the_reservation_says_so() {
    let config = ClientConfig { deadline: Duration::from_millis(50), ..ClientConfig::default() };
    let client = IndexerClient::connect("127.0.0.1:1", config).expect("an address");
    let router = router(Mode::Kv, Index::One(client));
    let reservation = select(&router, &tokens(0, 4)).await;
    assert!(
        matches!(reservation.index_use(), IndexUse::Failed { .. }),
        "{:?}",
        reservation.index_use()
    );
    let other = select(&router, &tokens(1_000, 4)).await;
    assert_ne!(reservation.worker(), other.worker());
}

#[tokio::test]
async fn workers_that_go_are_forgotten_and_those_that_stay_keep_their_load() {
    let router = router(Mode::RoundRobin, Index::None);
    let [a, b] = [select(&router, &tokens(0, 2)).await, select(&router, &tokens(0, 2)).await];
    router.set_workers(["b", "d"].map(worker));
    assert_eq!(requests(&router), [1, 0]);
    // The worker is gone: freeing the request changes nothing.
    drop(a);
    assert_eq!(requests(&router), [1, 0]);
    drop(b);
    assert_eq!(requests(&router), [0, 0]);
    router.set_workers([]);
    let prompt = tokens(0, 2);
    let none = router.select(&Prompt::new("m", BLOCK_SIZE, &prompt), &Hints::default()).await;
    assert_eq!(none.expect_err("nobody"), RouteError::Select(SelectError::NoWorkers));
}

#[tokio::test(start_paused = true)]
async fn a_reservation_counts_until_it_is_dropped_however_long_that_is() {
    let router = router(Mode::LeastLoaded, Index::None);
    let silent = select(&router, &tokens(0, 2)).await;
    advance(Duration::from_secs(3_600)).await;
    let next = select(&router, &tokens(900, 2)).await;
    assert_ne!(silent.worker(), next.worker());
    assert_eq!(requests(&router), [1, 1, 0]);
    drop((silent, next));
    assert_eq!(requests(&router), [0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_rank_that_is_listed_again_or_twice_has_not_just_joined() {
    let router = router(Mode::LeastLoaded, Index::None);
    advance(Duration::from_secs(3_600)).await;
    router.set_workers(["a", "a", "b", "c"].map(worker));
    let prompt = tokens(0, 2);
    let hints = Hints { explain: true, ..Hints::default() };
    let chosen = router.select(&Prompt::new("m", BLOCK_SIZE, &prompt), &hints).await;
    let chosen = chosen.expect("a worker");
    let factors = chosen.decision().explanations.iter().map(|at| at.slow_start.to_string());
    assert_eq!(factors.collect::<Vec<_>>(), ["1", "1", "1"]);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_joins_later_is_spared_until_its_window_ends() {
    let router = router(Mode::Kv, Index::None);
    let tokens = tokens(0, 2);
    let prompt = Prompt::new("m", BLOCK_SIZE, &tokens).hashed();
    let factors = async || {
        let choice = router.explain(&prompt, &Hints::default()).await.expect("a worker");
        let factors = choice.decision.explanations.iter().map(|at| at.slow_start.to_string());
        factors.collect::<Vec<_>>()
    };
    assert_eq!(factors().await, ["1", "1", "1"]);
    advance(Duration::from_secs(3_600)).await;
    router.set_workers(["a", "b", "c", "d"].map(worker));
    assert_eq!(factors().await, ["1", "1", "1", "10"]);
    advance(Duration::from_secs(15)).await;
    assert_eq!(factors().await, ["1", "1", "1", "2"]);
    advance(Duration::from_secs(15)).await;
    assert_eq!(factors().await, ["1", "1", "1", "1"]);
}

#[tokio::test]
async fn an_id_that_a_client_took_before_the_router_made_it_up_stays_the_clients() {
    let router = router(Mode::Kv, Index::None);
    let first = select(&router, &tokens(0, 2)).await;
    let (router_id, _) = first.request_id().rsplit_once('-').expect("its number");
    let next = format!("{router_id}-2");
    let tokens = tokens(900, 2);
    let prompt = Prompt::new("m", BLOCK_SIZE, &tokens);
    let hints = Hints { request_id: Some(next.clone()), ..Hints::default() };
    let taken = router.select(&prompt, &hints).await.expect("a worker");
    let made = select(&router, &tokens).await;
    assert_ne!(made.request_id(), next);
    drop(made);
    assert!(router.has_request(&next) && requests(&router).iter().sum::<u64>() == 2);
    drop((first, taken));
}

#[tokio::test]
async fn a_prompt_with_other_blocks_is_refused() {
    let router = router(Mode::Kv, Index::None);
    let prompt = tokens(0, 2);
    let other = Prompt::new("m", 2 * BLOCK_SIZE, &prompt);
    let error = router.select(&other, &Hints::default()).await.expect_err("refused");
    assert_eq!(error.to_string(), "block size of the prompt must be the router's");
}

#[tokio::test]
async fn thresholds_may_change_while_requests_are_under_way() {
    let router = router(Mode::Kv, Index::None);
    let busy = BusyThresholds { active_prefill_tokens: Some(1), ..BusyThresholds::default() };
    router.set_busy_thresholds(busy).expect("a threshold");
    let prompts = [tokens(0, 2), tokens(100, 2), tokens(200, 2), tokens(300, 2)];
    let mut held = Vec::new();
    for prompt in &prompts[..3] {
        held.push(select(&router, prompt).await);
    }
    let fourth = Prompt::new("m", BLOCK_SIZE, &prompts[3]);
    let error = router.select(&fourth, &Hints::default()).await.expect_err("all are busy");
    assert!(error.to_string().starts_with("all workers are busy"), "{error}");
    held[0].first_token();
    let freed = router.select(&fourth, &Hints::default()).await.expect("one is not");
    assert_eq!(freed.worker(), held[0].worker());
}

#[tokio::test]
async fn what_a_request_sets_itself_counts() {
    let router = router(Mode::RoundRobin, Index::None);
    let prompt = tokens(0, 2);
    let prompt = Prompt::new("m", BLOCK_SIZE, &prompt);
    let bad = Hints { temperature: Some(-1.0), ..Hints::default() };
    let error = router.select(&prompt, &bad).await.expect_err("refused");
    assert_eq!(error.to_string(), "temperature must be at least 0");
    let ids = ["a", "b"].map(|id| WorkerId::new(id).expect("an id"));
    let hints = Hints { explain: true, ..Hints::default() };
    let hints = ids.iter().fold(hints, |hints, id| hints.excluding(id));
    let reservation = router.select(&prompt, &hints).await.expect("a worker");
    assert_eq!(reservation.worker().worker.as_str(), "c");
    assert_eq!(reservation.decision().explanations.len(), 3);
    assert_eq!(reservation.decision().reason, Reason::Turn);
}

/// A router with a queue whose ranks compute 32 tokens a step.
fn queueing(workers: &[&str]) -> Router {
    let queue = QueueConfig { threshold: Some(1.0), entries_max: 3, ..QueueConfig::default() };
    let workers = workers.iter().map(|id| {
        let mut worker = worker(id);
        worker.profile.max_num_batched_tokens = Some(32);
        worker
    });
    let builder = Router::builder(NonZeroU32::new(BLOCK_SIZE).expect("not 0"));
    builder.queue(queue).workers(workers).build().expect("settings that can be used")
}

fn hashed(first: u32, blocks: u32) -> HashedPrompt {
    Prompt::new("m", BLOCK_SIZE, &tokens(first, blocks)).hashed()
}

#[tokio::test]
async fn requests_wait_while_all_ranks_have_enough_and_leave_one_by_one() {
    let router = queueing(&["a", "b"]);
    let hints = Hints::default();
    let first = router.select_hashed(&hashed(0, 3), &hints).await.expect("a worker");
    let second = router.select_hashed(&hashed(100, 3), &hints).await.expect("a worker");
    assert_ne!(first.worker(), second.worker());
    // Both have 48 tokens to compute now.
    let third = hashed(200, 3);
    let fourth = hashed(300, 3);
    let mut third = Box::pin(router.select_hashed(&third, &hints));
    let mut fourth = Box::pin(router.select_hashed(&fourth, &hints));
    assert!(poll!(&mut third).is_pending() && poll!(&mut fourth).is_pending());
    assert_eq!(router.waiting(), (2, 96));
    first.first_token();
    let third = third.await.expect("a worker");
    assert_eq!(third.worker(), first.worker(), "the one that has room");
    assert_eq!(third.queued().map(|at| at.position), Some(0));
    assert!(poll!(&mut fourth).is_pending(), "the third took the room");
    drop(second);
    let fourth = fourth.await.expect("a worker");
    assert_eq!(fourth.queued().map(|at| at.position), Some(1));
    assert_eq!((router.waiting(), router.counts().queued), ((0, 0), 2));
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_bounded_and_can_be_left() {
    let router = queueing(&["a"]);
    let hints = Hints::default();
    let first = router.select_hashed(&hashed(0, 3), &hints).await.expect("a worker");
    let prompts = [hashed(100, 3), hashed(200, 3), hashed(300, 3)];
    let mut waiting: Vec<_> =
        prompts.iter().map(|prompt| Box::pin(router.select_hashed(prompt, &hints))).collect();
    for request in &mut waiting {
        assert!(poll!(request).is_pending());
    }
    let late = hashed(400, 3);
    let full = router.select_hashed(&late, &hints).await.expect_err("the queue is full");
    assert_eq!(full, RouteError::QueueFull);
    // A disconnected client leaves the queue; another request takes its slot and waits for one second only.
    drop(waiting.remove(0));
    let brief = Hints { queue_timeout: Some(Duration::from_secs(1)), ..Hints::default() };
    let error = router.select_hashed(&late, &brief).await.expect_err("it waits no longer");
    assert_eq!(error, RouteError::QueueTimeout(Duration::from_secs(1)));
    assert_eq!(router.waiting(), (2, 96));
    drop(first);
    let second = waiting.remove(0).await.expect("a worker");
    drop(second);
    drop(waiting.remove(0).await.expect("a worker"));
    assert!(router.loads().iter().all(|(_, load)| load.is_empty()));
}

#[tokio::test]
async fn a_request_that_was_released_and_hangs_up_lets_the_next_one_go() {
    let router = queueing(&["a"]);
    let hints = Hints::default();
    let first = router.select_hashed(&hashed(0, 3), &hints).await.expect("a worker");
    let prompts = [hashed(100, 3), hashed(200, 3)];
    let mut second = Box::pin(router.select_hashed(&prompts[0], &hints));
    let mut third = Box::pin(router.select_hashed(&prompts[1], &hints));
    assert!(poll!(&mut second).is_pending() && poll!(&mut third).is_pending());
    drop(first);
    // The second request was released, but is never polled again.
    drop(second);
    let third = third.await.expect("a worker");
    assert_eq!(third.worker().worker.as_str(), "a");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_fails_is_left_alone_and_a_retry_goes_elsewhere() {
    let router = router(Mode::RoundRobin, Index::None);
    let prompt = hashed(0, 2);
    let mut hints = Hints::default();
    for _ in 0..5 {
        let pin = Some(crate::route::Pin { worker: worker("a").key.worker, rank: None });
        let pinned = Hints { filter: Filter { pin, ..Filter::default() }, ..Hints::default() };
        let failed = router.select_hashed(&prompt, &pinned).await.expect("a worker");
        hints = Hints::default().excluding(&failed.worker().worker);
        failed.failed();
    }
    assert_eq!(router.counts().ejections, 1);
    let retry = router.select_hashed(&prompt, &hints).await.expect("a worker");
    assert_ne!(retry.worker().worker.as_str(), "a");
    for _ in 0..6 {
        let other = router.select_hashed(&prompt, &Hints::default()).await.expect("a worker");
        assert_ne!(other.worker().worker.as_str(), "a", "it is left alone");
    }
    advance(Duration::from_secs(31)).await;
    let mut chosen = Vec::new();
    for _ in 0..3 {
        let next = router.select_hashed(&prompt, &Hints::default()).await.expect("a worker");
        chosen.push(next.worker().worker.as_str().to_owned());
    }
    assert!(chosen.contains(&"a".to_owned()), "{chosen:?}");
}

#[tokio::test(start_paused = true)]
async fn a_session_returns_to_its_worker_until_it_ends() {
    let builder = Router::builder(NonZeroU32::new(BLOCK_SIZE).expect("not 0"));
    let builder = builder.session_ttl(Duration::from_secs(60)).workers(["a", "b", "c"].map(worker));
    let router = builder.build().expect("settings that can be used");
    let hints = Hints { session: Some("s".to_owned()), ..Hints::default() };
    let first = router.select_hashed(&hashed(0, 2), &hints).await.expect("a worker");
    let served = first.worker().clone();
    drop(first);
    for first in 1..6 {
        let next = router.select_hashed(&hashed(first * 100, 2), &hints).await.expect("a worker");
        assert_eq!(*next.worker(), served);
    }
    advance(Duration::from_secs(61)).await;
    let later = router.select_hashed(&hashed(900, 2), &hints).await.expect("a worker");
    assert_ne!(*later.worker(), served, "it is the next one's turn");
    let long = Hints { session: Some("x".repeat(257)), ..Hints::default() };
    let error = router.select_hashed(&hashed(0, 2), &long).await.expect_err("too long");
    assert_eq!(error.to_string(), "session id must have 1 to 256 bytes");
}

#[tokio::test(start_paused = true)]
async fn detached_requests_are_known_by_id_until_their_lease_ends() {
    let router = router(Mode::RoundRobin, Index::None);
    let prompt = hashed(0, 2);
    let named = |id: &str| Hints { request_id: Some(id.to_owned()), ..Hints::default() };
    let select = |id| {
        let router = router.clone();
        let prompt = prompt.clone();
        let hints = named(id);
        async move { router.select_hashed(&prompt, &hints).await.map(Reservation::detach) }
    };
    let (id, choice) = select("one").await.expect("a worker");
    assert_eq!((id.as_str(), choice.decision.reason), ("one", Reason::Turn));
    assert_eq!(select("one").await.expect_err("it is under way"), RouteError::DuplicateId);
    select("two").await.map(drop).expect("a worker");
    assert_eq!(requests(&router), [1, 1, 0]);
    assert_eq!(router.mark_prefill_completed("none"), Ok(Update::Unknown));
    let ended = Ended { has_failed: Some(false), cached_tokens: Some(16) };
    let freed = router.free("one", ended).expect("an id").expect("it was under way");
    assert_eq!((freed.expected_cached_tokens, freed.cached_tokens), (0, Some(16)));
    assert_eq!(router.free("one", ended), Ok(None));
    advance(Duration::from_secs(200)).await;
    assert!(matches!(router.report_output("two", 5), Ok(Update::Changed(_))));
    advance(Duration::from_secs(200)).await;
    assert_eq!((router.tick(), requests(&router)), (0, vec![0, 1, 0]), "it was reported");
    advance(Duration::from_secs(101)).await;
    assert_eq!((router.tick(), requests(&router)), (1, vec![0, 0, 0]));
}

#[tokio::test]
async fn looking_changes_nothing() {
    let router = router(Mode::Kv, Index::None);
    let prompt = hashed(0, 4);
    let held = router.select_hashed(&prompt, &Hints::default()).await.expect("a worker");
    for _ in 0..3 {
        let choice = router.explain(&prompt, &Hints::default()).await.expect("a worker");
        assert_eq!(choice.decision.worker, *held.worker(), "it computes that prompt already");
        assert_eq!(choice.decision.explanations.len(), 3);
    }
    assert_eq!(requests(&router).iter().sum::<u64>(), 1);
    let potential = router.potential_loads(&prompt).await.expect("loads");
    let blocks: Vec<_> = potential.iter().map(|at| at.decode_blocks.to_string()).collect();
    assert_eq!(blocks, ["4", "4", "4"]);
    let scores = router.overlap_scores(&prompt).await.expect("scores");
    assert!(scores.iter().all(|(_, blocks)| blocks.total() == 0));
}

/// A long prompt that is almost computed delays less than a shorter one that has just begun.
#[tokio::test(start_paused = true)]
async fn a_worker_that_is_almost_done_with_a_prompt_is_chosen() {
    let router = router(Mode::Kv, Index::None);
    let mut workers = ["a", "b"].map(worker);
    for worker in &mut workers {
        // With enough room, blocks in use hardly count.
        worker.profile.total_kv_blocks = Some(1 << 20);
    }
    let [a, b] = workers.each_ref().map(|at| at.key.worker.clone());
    router.set_workers(workers);
    let to = |worker: &WorkerId| {
        let pin = Some(crate::route::Pin { worker: worker.clone(), rank: None });
        Hints { filter: Filter { pin, ..Filter::default() }, ..Hints::default() }
    };
    // Both compute a hundred blocks in a second.
    for (first, worker) in [(0, &a), (100, &b)] {
        let held = router.select_hashed(&hashed(first, 100), &to(worker)).await.expect("a worker");
        advance(Duration::from_secs(1)).await;
        held.first_token();
    }
    let _long = router.select_hashed(&hashed(200, 100), &to(&a)).await.expect("a worker");
    advance(Duration::from_millis(900)).await;
    let _short = router.select_hashed(&hashed(300, 50), &to(&b)).await.expect("a worker");
    let next = router.select_hashed(&hashed(400, 10), &Hints::default()).await.expect("a worker");
    assert_eq!(next.worker().worker, a, "ten blocks are left there, and fifty at the other");
}

#[tokio::test]
async fn made_ids_are_nobody_elses() {
    let one = router(Mode::Random, Index::None);
    let other = router(Mode::Random, Index::None);
    let prompt = hashed(0, 2);
    let mut ids = std::collections::BTreeSet::new();
    for router in [&one, &other, &one] {
        let held = router.select_hashed(&prompt, &Hints::default()).await.expect("a worker");
        let (id, _choice) = held.detach();
        assert!(router.has_request(&id));
        ids.insert(id);
    }
    assert_eq!(ids.len(), 3, "{ids:?}");
    for id in &ids {
        let freed =
            [&one, &other].map(|at| at.free(id, Ended::default()).expect("an id").is_some());
        assert_eq!(freed.iter().filter(|freed| **freed).count(), 1, "{id}");
    }
}

#[tokio::test]
async fn who_is_named_in_mode_direct_gets_it_at_once() {
    let router = queueing(&["a"]);
    let _busy = router.select_hashed(&hashed(0, 9), &Hints::default()).await.expect("a worker");
    let pin = Some(crate::route::Pin { worker: worker("a").key.worker, rank: None });
    let filter = Filter { pin, ..Filter::default() };
    let direct = Hints { mode: Some(Mode::Direct), filter, ..Hints::default() };
    let served = router.select_hashed(&hashed(100, 3), &direct).await.expect("a worker");
    assert_eq!((served.queued(), served.decision().reason), (None, Reason::Direct));
}

#[tokio::test]
async fn a_latency_sensitivity_that_cannot_be_used_is_refused() {
    let router = router(Mode::Kv, Index::None);
    for latency_sensitivity_secs in [-1.0, 3_601.0, f64::NAN, f64::INFINITY] {
        let hints = Hints { latency_sensitivity_secs, ..Hints::default() };
        let error = router.select_hashed(&hashed(0, 2), &hints).await.expect_err("refused");
        assert_eq!(error.to_string(), "latency sensitivity must be between 0 and 3600 seconds");
    }
}

#[tokio::test]
async fn who_was_released_and_finds_the_room_taken_waits_on_at_its_place() {
    let router = queueing(&["a"]);
    let hints = Hints::default();
    let first = router.select_hashed(&hashed(0, 3), &hints).await.expect("a worker");
    let second = hashed(100, 3);
    let third = hashed(200, 3);
    let mut second = Box::pin(router.select_hashed(&second, &hints));
    let mut third = Box::pin(router.select_hashed(&third, &hints));
    assert!(poll!(&mut second).is_pending() && poll!(&mut third).is_pending());
    first.first_token();
    // Reports about other requests release no further request: there is room for only one.
    for _ in 0..5 {
        assert_eq!(router.report_output("unknown", 1), Ok(Update::Unknown));
    }
    drop(first);
    let second = poll!(&mut second);
    let third = poll!(&mut third);
    assert!(second.is_ready() && third.is_pending(), "one at a time");
}

#[tokio::test]
async fn a_filter_that_allows_the_same_ranks_does_not_overtake() {
    let router = queueing(&["a", "b"]);
    let hints = Hints::default();
    let held = [
        router.select_hashed(&hashed(0, 3), &hints).await.expect("a worker"),
        router.select_hashed(&hashed(100, 3), &hints).await.expect("a worker"),
    ];
    let waiting = hashed(200, 3);
    let late = hashed(300, 3);
    let mut waiting = Box::pin(router.select_hashed(&waiting, &hints));
    assert!(poll!(&mut waiting).is_pending());
    let nobody = Hints::default().excluding(&worker("nobody").key.worker);
    let mut late = Box::pin(router.select_hashed(&late, &nobody));
    assert!(poll!(&mut late).is_pending());
    drop(held);
    assert!(poll!(&mut waiting).is_ready());
}

#[tokio::test]
async fn who_waits_is_told_when_all_workers_are_gone() {
    let router = queueing(&["a"]);
    let hints = Hints::default();
    let _held = router.select_hashed(&hashed(0, 3), &hints).await.expect("a worker");
    let waiting = hashed(200, 3);
    let mut waiting = Box::pin(router.select_hashed(&waiting, &hints));
    assert!(poll!(&mut waiting).is_pending());
    router.set_workers([]);
    let error = waiting.await.expect_err("nobody is left");
    assert_eq!(error, RouteError::Select(SelectError::NoWorkers));
}

#[tokio::test(start_paused = true)]
async fn a_pin_to_a_worker_that_failed_of_late_waits_as_others_do() {
    let router = queueing(&["a", "b"]);
    let pin = Some(crate::route::Pin { worker: worker("a").key.worker, rank: None });
    let pinned = Hints { filter: Filter { pin, ..Filter::default() }, ..Hints::default() };
    for _ in 0..5 {
        let failed = router.select_hashed(&hashed(0, 1), &pinned).await.expect("a worker");
        failed.failed();
    }
    assert_eq!(router.counts().ejections, 1);
    let _held = router.select_hashed(&hashed(0, 3), &pinned).await.expect("it is the only one");
    let waiting = hashed(200, 3);
    let mut waiting = Box::pin(router.select_hashed(&waiting, &pinned));
    assert!(poll!(&mut waiting).is_pending());
}

#[tokio::test]
async fn a_worker_that_put_out_a_token_did_not_fail() {
    let router = queueing(&["a", "b"]);
    let pin = Some(crate::route::Pin { worker: worker("a").key.worker, rank: None });
    let pinned = Hints { filter: Filter { pin, ..Filter::default() }, ..Hints::default() };
    for _ in 0..6 {
        let served = router.select_hashed(&hashed(0, 1), &pinned).await.expect("a worker");
        served.first_token();
        drop(served);
        let failed = router.select_hashed(&hashed(0, 1), &pinned).await.expect("a worker");
        failed.failed();
    }
    assert_eq!(router.counts().ejections, 0, "never two failures in a row");
}

#[test]
fn a_session_time_that_cannot_be_used_is_refused_at_once() {
    let mut config = RouterConfig::new(NonZeroU32::new(BLOCK_SIZE).expect("not 0"));
    config.session_ttl = Some(Duration::from_millis(500));
    let error = config.check().expect_err("refused").to_string();
    assert_eq!(error, "session ttl must be between a second and a year");
}
