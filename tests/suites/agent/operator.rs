//! What logs and metrics of an agent show its operator when something is wrong.

use crate::disk::value;
use crate::engine::{BLOCK_SIZE, Engine};
use crate::harness::{
    INCARNATION, MODEL, PATIENCE, WORKER, config, delivered, publish, start, url,
};
use anyhow::{Context, Result, ensure};
use kvasir_proto::convert::incarnation;
use kvasir_proto::pb;
use kvasir_proto::pb::event_ingest_client::EventIngestClient;
use kvasir_proto::pb::publish_events_request::Message;
use kvasir_sim::demo::metrics;
use kvasir_sim::server::Server;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Nobody listens there.
const NOBODY: &str = "tcp://127.0.0.1:1";
const LOOK: Duration = Duration::from_millis(20);

/// An agent that feeds an index, with further flags.
async fn agent(indexers: &str, flags: &[&str]) -> Result<Server> {
    let block_size = BLOCK_SIZE.to_string();
    let few = ["--worker-id", WORKER, "--model", MODEL, "--block-size", &block_size];
    Server::agent(&[&few, &["--indexers", indexers][..], flags].concat()).await
}

/// Waits for a line of a process that has all of these; returns it.
async fn line(process: &Server, parts: &[&str]) -> Result<String> {
    let found = async {
        loop {
            let output = process.output();
            let mut lines = output.lines();
            if let Some(line) = lines.find(|line| parts.iter().all(|part| line.contains(part))) {
                return line.to_owned();
            }
            sleep(LOOK).await;
        }
    };
    let found = timeout(PATIENCE, found).await;
    found.with_context(|| format!("no line with {parts:?}:\n{}", process.output()))
}

/// Waits until `/readyz` has, or has no longer, a line that begins so; returns its status.
async fn complaint(agent: &Server, begins: &str, is_there: bool) -> Result<u16> {
    let mut text = String::new();
    let seen = async {
        loop {
            let (status, body) = metrics::get(agent.addresses.http, "/readyz").await?;
            if body.lines().any(|line| line.starts_with(begins)) == is_there {
                return Ok(status);
            }
            text = body;
            sleep(LOOK).await;
        }
    };
    let seen = timeout(PATIENCE, seen).await;
    seen.unwrap_or_else(|_late| Err(anyhow::anyhow!("{begins:?} is wrong in {text:?}")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_that_is_away_is_told_of_with_its_cause_until_it_is_back() -> Result<()> {
    let mut index = Server::start_anywhere().await?;
    let addresses = index.addresses;
    let endpoint = url(index.addresses.grpc);
    index.kill().await;
    let source = format!("endpoint={NOBODY}");
    let mut agent = agent(&endpoint, &["--source", &source]).await?;
    let refused = "Connection refused";
    let down = ["the uplink is down", &endpoint, "cannot be reached: ", refused];
    let told = line(&agent, &down).await?;
    ensure!(!told.contains("transport error") && told.matches(refused).count() == 1, "{told}");
    // The engine's own lines say whose they are.
    line(&agent, &["publisher is not connected", &format!("source=\"{NOBODY}\"")]).await?;

    let uplink = format!("not well: uplink {endpoint}: ");
    let status = complaint(&agent, &format!("{uplink}cannot be reached: "), true).await?;
    assert_eq!(status, 200, "it takes what engines say all the same");
    let away = format!("not well: source {NOBODY}: cold, not connected");
    assert_eq!(complaint(&agent, &away, true).await?, 200);
    let state = async |state: &str| {
        let labels = format!("source=\"{NOBODY}\",state=\"{state}\"");
        value(&agent, "kvasir_agent_source_state", &labels).await
    };
    assert_eq!((state("cold").await?, state("exact").await?), (1.0, 0.0));
    assert_eq!(value(&agent, "kvasir_agent_uplink_connected", "").await?, 0.0);

    let index = Server::start(addresses.grpc, addresses.http).await?;
    ensure!(index.addresses == addresses, "the port is somebody else's now");
    line(&agent, &["uplink open", &endpoint]).await?;
    assert_eq!(complaint(&agent, &uplink, false).await?, 200);
    assert_eq!(value(&agent, "kvasir_agent_uplink_connected", "").await?, 1.0);
    let worker = format!("worker={WORKER} (model {MODEL})");
    line(&index, &["stream open", "source=\"agent\"", &worker]).await?;
    agent.stop().await;
    line(&index, &["stream closed", "source=\"agent\"", &worker]).await?;
    Ok(())
}

/// The status with which an agent refuses a publisher.
async fn refusal(agent: &Server, hello: pb::PublishHello) -> Result<tonic::Status> {
    let mut ingest = EventIngestClient::connect(url(agent.addresses.grpc)).await?;
    let hello = pb::PublishEventsRequest { message: Some(Message::Hello(hello)) };
    let mut answers = ingest.publish_events(tokio_stream::iter([hello])).await?.into_inner();
    answers.message().await.err().context("it is accepted")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publishers_that_are_refused_are_told_of_and_counted() -> Result<()> {
    let mut agent = agent("http://127.0.0.1:1", &[]).await?;
    let hello = |block_size| pb::PublishHello {
        model: MODEL.to_owned(),
        worker_id: WORKER.to_owned(),
        source: "engine".to_owned(),
        block_size,
        incarnation: incarnation(INCARNATION),
        ..Default::default()
    };
    for _ in 0..3 {
        let status = refusal(&agent, hello(999)).await?;
        assert_eq!(status.code(), tonic::Code::FailedPrecondition, "{status}");
    }
    let other = pb::PublishHello { model: "x".to_owned(), ..hello(BLOCK_SIZE) };
    assert_eq!(refusal(&agent, other).await?.code(), tonic::Code::FailedPrecondition);
    let told = ["a publisher is refused", "reason=\"block_size\"", "source=\"engine\""];
    line(&agent, &[&told[..], &["block_size is 999, that of worker"]].concat()).await?;
    line(&agent, &["a publisher is refused", "reason=\"other_worker\"", "worker w (model x)"])
        .await?;
    assert_eq!(agent.output().matches("reason=\"block_size\"").count(), 1, "once, then counted");
    for (reason, count) in [("block_size", 3.0), ("other_worker", 1.0), ("copy_mode", 0.0)] {
        let labels = format!("reason=\"{reason}\"");
        let counted = value(&agent, "kvasir_agent_refused_streams_total", &labels).await?;
        assert_eq!(counted, count, "{reason}");
    }
    agent.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_waits_for_a_proof_says_so() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let folder = folder.path().to_str().context("a folder with a name")?;
    let flags = ["--engine", "vllm", "--journal-dir", folder];
    let mut killed = agent("http://127.0.0.1:1", &flags).await?;
    line(&killed, &["the journal on disk begins"]).await?;
    let publisher = start(config(vec![url(killed.addresses.grpc)])).await;
    let last = publish(&publisher, &mut Engine::new(1), 50);
    delivered(&publisher, last).await;
    let lag = value(&killed, "kvasir_agent_uplink_lag_batches", "").await?;
    ensure!(lag >= 50.0, "{lag} batches that no index has");
    killed.kill().await;
    drop(publisher);

    let mut back = agent("http://127.0.0.1:1", &flags).await?;
    let waits = "publishes nothing until a source has shown whether its engine survived";
    line(&back, &[waits, "sources=[\"agent\"]", "at_most=60s"]).await?;
    let unsettled = "not ready: waiting for an engine that shows whether it survived";
    assert_eq!(complaint(&back, unsettled, true).await?, 503);
    let pending = value(&back, "kvasir_agent_disk_verdict", "verdict=\"pending\"").await?;
    let lag = value(&back, "kvasir_agent_uplink_lag_batches", "").await?;
    assert_eq!((pending, lag), (1.0, 0.0), "nothing is published, so nothing lacks");
    back.stop().await;
    Ok(())
}
