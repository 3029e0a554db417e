//! Which requests are reported to the index: what the engine reused, beside what the index had said.

use super::index_fixture_test::FakeIndex;
use super::*;
use crate::route::Pin;
use kvasir_proto::pb::{
    BlocksByTier, FindMatchesRequest, FindMatchesResponse, ReportReuseRequest, ReusedTokens,
    WorkerMatch, WorkerState,
};
use tokio::task::yield_now;

const BLOCK_SIZE: NonZeroU32 = NonZeroU32::new(16).expect("not 0");

/// Worker `w` has two blocks of a prompt of up to 9 blocks; of a prompt of 5 blocks, one is in a pool. The index catches up
/// with the worker for longer prompts.
#[expect(clippy::unnecessary_wraps, reason = "an index may refuse to answer")]
fn two_blocks(request: &FindMatchesRequest) -> Option<FindMatchesResponse> {
    let is_current = request.local_hashes.len() < 10;
    let state = if is_current { WorkerState::Partial } else { WorkerState::CatchingUp };
    let has_pool = request.local_hashes.len() == 5;
    let held = WorkerMatch {
        pool_blocks: u32::from(has_pool),
        worker_id: "w".to_owned(),
        matched_blocks: 2,
        reusable_tokens: 32,
        blocks_by_tier: Some(BlocksByTier { device: 2, ..BlocksByTier::default() }),
        state: state.into(),
        connected: true,
        may_be_high: true,
        ..WorkerMatch::default()
    };
    Some(FindMatchesResponse { matches: vec![held], ..FindMatchesResponse::default() })
}

#[expect(clippy::unnecessary_wraps, reason = "an index may refuse to answer")]
fn nothing(_: &FindMatchesRequest) -> Option<FindMatchesResponse> {
    Some(FindMatchesResponse::default())
}

fn router(index: &FakeIndex) -> Router {
    let worker = WorkerId::new("w").expect("a name");
    let router = Router::builder(BLOCK_SIZE).index(index.client());
    let worker = RouterWorker::new(WorkerKey { worker, rank: 3 });
    router.workers([worker]).build().expect("settings")
}

async fn select(router: &Router, tokens: u32) -> Reservation {
    let tokens: Vec<u32> = (0..tokens).collect();
    let prompt = Prompt { tenant: "t", ..Prompt::new("m", BLOCK_SIZE.get(), &tokens) };
    router.select(&prompt, &Hints::default()).await.expect("a worker")
}

fn ended(has_failed: bool, cached_tokens: Option<u64>) -> Ended {
    Ended { has_failed: Some(has_failed), cached_tokens }
}

fn report(prompt_tokens: u32, expected_tokens: u32, cached_tokens: u32) -> ReportReuseRequest {
    ReportReuseRequest {
        model: "m".to_owned(),
        tenant: "t".to_owned(),
        worker_id: "w".to_owned(),
        dp_rank: 3,
        requests: vec![ReusedTokens { prompt_tokens, expected_tokens, cached_tokens }],
    }
}

#[tokio::test]
async fn requests_that_ran_alone_are_reported() {
    let mut index = FakeIndex::start(2, nothing).await;
    let router = router(&index);
    // The answer lists no rank: the index expects nothing in the cache.
    select(&router, 40).await.end(ended(false, Some(16)));
    assert_eq!(index.next_report().await, report(40, 0, 16));
    // None of these shows what the engine reuses of a prompt that the index predicted.
    select(&router, 41).await.end(ended(true, Some(16)));
    select(&router, 42).await.end(ended(false, None));
    let first = select(&router, 43).await;
    select(&router, 44).await.end(ended(false, Some(16)));
    // An engine cannot have cached more than the prompt.
    first.end(ended(false, Some(50)));
    assert_eq!(index.next_report().await, report(43, 0, 43));
}

#[tokio::test]
async fn the_answer_says_what_is_expected_unless_the_index_catches_up() {
    let mut index = FakeIndex::start(1, two_blocks).await;
    let worker = WorkerKey { worker: WorkerId::new("w").expect("a name"), rank: 0 };
    let router = Router::builder(BLOCK_SIZE).index(index.client());
    let router = router.workers([RouterWorker::new(worker)]).build().expect("settings");
    select(&router, 200).await.end(ended(false, Some(0)));
    // The state of a pool is not the state of the rank that reads it.
    select(&router, 81).await.end(ended(false, Some(0)));
    // A rank that is not exact is reported, too: otherwise it could not become exact again.
    select(&router, 50).await.end(ended(false, Some(16)));
    assert_eq!(index.next_report().await, ReportReuseRequest { dp_rank: 0, ..report(50, 32, 16) });
}

#[tokio::test]
async fn refused_reports_pause_the_reports_of_one_worker() {
    let mut index = FakeIndex::start(1, nothing).await;
    let worker = |id: &str| {
        RouterWorker::new(WorkerKey { worker: WorkerId::new(id).expect("a name"), rank: 3 })
    };
    let router = Router::builder(BLOCK_SIZE).index(index.client());
    let router = router.workers(["refused", "w"].map(worker)).build().expect("settings");
    let serve = async |id: &str, tokens: u32| {
        let tokens: Vec<u32> = (0..tokens).collect();
        let prompt = Prompt { tenant: "t", ..Prompt::new("m", BLOCK_SIZE.get(), &tokens) };
        let pin = Pin { worker: WorkerId::new(id).expect("a name"), rank: None };
        let filter = Filter { pin: Some(pin), ..Filter::default() };
        let hints = Hints { filter, ..Hints::default() };
        let reservation = router.select(&prompt, &hints).await.expect("a worker");
        reservation.end(ended(false, Some(0)));
    };
    serve("refused", 40).await;
    let refused =
        |tokens| ReportReuseRequest { worker_id: "refused".to_owned(), ..report(tokens, 0, 0) };
    assert_eq!(index.next_report().await, refused(40));
    // The refusal arrives some time after the report.
    while !router.shared.is_refused(&WorkerId::new("refused").expect("a name")) {
        yield_now().await;
    }
    serve("refused", 41).await;
    serve("w", 42).await;
    assert_eq!(index.next_report().await, report(42, 0, 0));
}
