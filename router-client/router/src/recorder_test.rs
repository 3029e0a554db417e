use super::*;
use router_client::Prompt;
use router_client::router::{Hints, Index, Router, RouterConfig, RouterWorker};
use serde_json::Value;
use std::fs;
use std::num::NonZeroU32;

fn prompt(tokens: &[u32]) -> HashedPrompt {
    Prompt::new("m", 16, tokens).hashed()
}

async fn choice(prompt: &HashedPrompt) -> Choice {
    let config = RouterConfig::new(NonZeroU32::new(16).expect("not 0"));
    let router = Router::new(config, Index::None).expect("a router");
    let worker = kvasir_proto::types::WorkerId::new("w").expect("a name");
    router.set_workers([RouterWorker::new(WorkerKey { worker, rank: 0 })]);
    let chosen = router.select_hashed(prompt, &Hints::default()).await.expect("a worker");
    chosen.detach().1
}

fn output_metrics() -> OutputMetrics {
    OutputMetrics::registered(&mut Registry::default(), "router")
}

fn key(id: &str) -> (PartitionKey, String) {
    (PartitionKey::new("m", "").expect("a name"), id.to_owned())
}

#[tokio::test(start_paused = true)]
async fn requests_become_lines_of_a_trace() {
    let folder = std::env::temp_dir().join(format!("kvasir-recorder-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("requests.jsonl");
    let (recorder, writer) = Recorder::open(Some(&path)).expect("a file");
    let began = Instant::now();
    let open = OpenRequests::new(recorder.clone(), output_metrics(), Duration::from_secs(60));
    let tokens: Vec<u32> = (0..40).collect();
    let prompt = prompt(&tokens);
    let choice = choice(&prompt).await;
    tokio::time::advance(Duration::from_millis(250)).await;
    open.begin(key("a"), Instant::now(), (&prompt, &choice));
    tokio::time::advance(Duration::from_millis(40)).await;
    open.first_token(&key("a"));
    tokio::time::advance(Duration::from_millis(60)).await;
    open.report(&key("a"), 7);
    open.end(&key("a"), Some(32));
    open.end(&key("a"), Some(32));
    open.report(&key("never"), 1);
    assert!(began.elapsed() >= Duration::from_millis(350));
    let stop = CancellationToken::new();
    stop.cancel();
    writer.expect("a writer").run(stop).await.expect("no panic");
    let text = fs::read_to_string(&path).expect("a file");
    fs::remove_dir_all(&folder).expect("a folder");
    let lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let [line] = lines.as_slice() else { panic!("{text}") };
    let hashes: Vec<u64> = prompt.sequence_hashes().iter().map(|hash| hash.0).collect();
    assert_eq!(line["hash_ids"], serde_json::json!(hashes));
    assert_eq!((&line["timestamp"], &line["input_length"]), (&250.into(), &40.into()));
    assert_eq!((&line["output_length"], &line["block_size"]), (&7.into(), &16.into()));
    assert_eq!((&line["worker"], &line["model"]), (&"w".into(), &"m".into()));
    assert_eq!((&line["ttft_ms"], &line["total_ms"]), (&40.0.into(), &100.0.into()));
    assert_eq!(line["cached_tokens"], 32);
    assert_eq!((recorder.counts.written.get(), recorder.counts.dropped.get()), (1, 0));
}

#[tokio::test]
async fn what_finds_no_place_is_dropped_and_counted() {
    let path = std::env::temp_dir().join(format!("kvasir-recorder-full-{}", std::process::id()));
    let (recorder, writer) = Recorder::open(Some(&path)).expect("a file");
    let prompt = prompt(&[1; 16]);
    let choice = choice(&prompt).await;
    for _ in 0..QUEUE_MAX + 10 {
        let request = recorder.begin(Instant::now(), &prompt, &choice).expect("it records");
        recorder.end(request, None);
    }
    assert_eq!(recorder.counts.dropped.get(), 10);
    let stop = CancellationToken::new();
    stop.cancel();
    writer.expect("a writer").run(stop).await.expect("no panic");
    fs::remove_file(&path).expect("a file");
    assert_eq!(recorder.counts.written.get(), QUEUE_MAX as u64);
    let (off, writer) = Recorder::open(None).expect("nothing to open");
    assert!(off.begin(Instant::now(), &prompt, &choice).is_none() && writer.is_none());
}
