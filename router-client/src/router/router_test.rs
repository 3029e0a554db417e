use super::*;
use crate::client::IndexerClient;
use crate::config::ClientConfig;
use crate::route::{Mode, Reason};
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
    let prompt = |number: u32| [tokens(0, 60), tokens(10_000 * number, 40)].concat();
    let mut reservations = Vec::new();
    for number in 1..=3 {
        reservations.push(select(&router, &prompt(number)).await);
    }
    // Each has 40 blocks of its own: a third one at the first worker would cost more than computing the prefix again.
    assert_eq!(requests(&router), [2, 1, 0]);
    let credited = reservations.iter().map(|at| at.decision().cost.credited_blocks);
    assert_eq!(credited.map(|blocks| blocks.to_string()).collect::<Vec<_>>(), ["0", "60", "0"]);
    reservations[0].first_token();
    let prefilling = router.loads().iter().map(|(_, load)| load.prefill_tokens).collect::<Vec<_>>();
    assert_eq!(prefilling, [640, 1_600, 0]);
}

#[tokio::test]
async fn without_an_answer_of_the_index_load_decides_and_the_reservation_says_so() {
    let config = ClientConfig { deadline: Duration::from_millis(50), ..ClientConfig::default() };
    let client = IndexerClient::connect("127.0.0.1:1", config).expect("an address");
    let router = router(Mode::Kv, Index::One(client));
    let reservation = select(&router, &tokens(0, 4)).await;
    assert!(
        matches!(reservation.index_use(), IndexUse::Failed(_)),
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
    // Its worker is gone: freeing it changes nothing.
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
    assert_eq!(error.to_string(), "router temperature must be at least 0");
    let excluded = ["a", "b"].map(|id| WorkerId::new(id).expect("an id")).into();
    let mut hints = Hints { explain: true, ..Hints::default() };
    hints.constraints.excluded = Some(&excluded);
    let reservation = router.select(&prompt, &hints).await.expect("a worker");
    assert_eq!(reservation.worker().worker.as_str(), "c");
    assert_eq!(reservation.decision().explanations.len(), 3);
    assert_eq!(reservation.decision().reason, Reason::Turn);
}
