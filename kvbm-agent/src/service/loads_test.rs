use super::WorkerLoadsService;
use crate::load::{LoadBoard, LoadConfig};
use crate::service::ServiceConfig;
use futures::FutureExt;
use kvasir_process::port::let_in;
use kvasir_proto::convert::WorkerAddress;
use kvasir_proto::pb;
use kvasir_proto::pb::worker_loads_server::WorkerLoads;
use kvasir_proto::types::{DpRank, PartitionKey, WorkerId, WorkerMetrics};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, advance};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

type Stream = ReceiverStream<Result<pb::WatchLoadsResponse, Status>>;

const REFRESH: Duration = Duration::from_secs(5);
const MIN_INTERVAL: Duration = Duration::from_millis(100);

fn service() -> (Arc<LoadBoard>, WorkerLoadsService) {
    let partition = PartitionKey::new("m", "").expect("a name");
    let address = WorkerAddress { partition, worker: WorkerId::new("w").expect("a name") };
    let board =
        Arc::new(LoadBoard::new(LoadConfig::DEFAULT.totals, LoadConfig::DEFAULT.stale_after));
    let config = ServiceConfig::DEFAULT;
    let stop = CancellationToken::new();
    let service = WorkerLoadsService::new(address, Arc::clone(&board), config, REFRESH, stop);
    (board, service)
}

async fn watch(service: &WorkerLoadsService) -> Stream {
    let model = "m".to_owned();
    let worker_id = "w".to_owned();
    let requested = pb::WatchLoadsRequest { model, worker_id, ..Default::default() };
    service.watch_loads(let_in(requested)).await.expect("a stream").into_inner()
}

fn say(board: &LoadBoard, rank: DpRank, waiting: u64) {
    let metrics = WorkerMetrics { num_requests_waiting: Some(waiting), ..WorkerMetrics::UNKNOWN };
    board.publish(rank, metrics, Duration::ZERO).expect("in range");
}

/// The next answer: rank, waiting requests, age in milliseconds.
async fn next(stream: &mut Stream) -> Vec<(DpRank, Option<u64>, u64)> {
    let next = stream.next().await.expect("the stream goes on").expect("no error");
    let one = |load: &pb::WorkerLoad| (load.dp_rank, load.num_requests_waiting, load.age_ms);
    next.loads.iter().map(one).collect()
}

#[tokio::test(start_paused = true)]
async fn what_changes_within_the_interval_is_one_answer() {
    let (board, service) = service();
    let mut stream = watch(&service).await;
    assert_eq!(next(&mut stream).await, []);
    let start = Instant::now();
    for waiting in 0..10 {
        say(&board, 1, waiting);
        say(&board, 0, 7);
        advance(Duration::from_millis(1)).await;
    }
    assert_eq!(next(&mut stream).await, [(0, Some(7), 91), (1, Some(9), 91)]);
    assert!(start.elapsed() >= MIN_INTERVAL, "{:?}", start.elapsed());
    // An equal report is no change, and causes no answer.
    say(&board, 0, 7);
    advance(Duration::from_secs(1)).await;
    assert_eq!(stream.next().now_or_never().map(drop), None);
    // From time to time, all ranks are sent.
    let before = Instant::now();
    let all = next(&mut stream).await;
    assert_eq!(
        all.iter().map(|(rank, waiting, _)| (*rank, *waiting)).collect::<Vec<_>>(),
        [(0, Some(7)), (1, Some(9))]
    );
    assert!(before.elapsed() > Duration::from_secs(3), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_gets_the_latest_and_no_backlog() {
    let (board, service) = service();
    let mut stream = watch(&service).await;
    for waiting in 0..200 {
        say(&board, 0, waiting);
        advance(MIN_INTERVAL).await;
    }
    // One answer was queued before the reader took any.
    let first = next(&mut stream).await;
    let second = next(&mut stream).await;
    assert!(first.is_empty() || first[0].1 < Some(3), "{first:?}");
    assert_eq!(second.iter().map(|load| load.1).collect::<Vec<_>>(), [Some(199)]);
    assert_eq!(stream.next().now_or_never().map(drop), None);
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_takes_nothing_is_cut_off() {
    let (board, service) = service();
    let mut stream = watch(&service).await;
    let mut answers = 0;
    for waiting in 0..400 {
        say(&board, 0, waiting);
        advance(MIN_INTERVAL).await;
    }
    while let Some(answer) = stream.next().await {
        answer.expect("no error");
        answers += 1;
    }
    assert_eq!(answers, 1);
}
