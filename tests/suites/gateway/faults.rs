//! Workers that fail: another one answers, as long as the client has nothing of the answer.

use crate::fleet::{FAST, Fleet, engine, profile, prompt, tokenizer};
use anyhow::{Result, ensure};
use kvasir_proto::pb::WorkerRole;
use kvasir_sim::engine::openai::ServerProcess;
use serde_json::json;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// What a server does with each request: it writes this and closes the connection.
pub async fn server(answer: &'static str) -> Result<(SocketAddr, JoinSet<()>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 1 << 16];
            // A request of these tests comes in one piece, or in two.
            let _read = stream.read(&mut head).await;
            let _written = stream.write_all(answer.as_bytes()).await;
            let _closed = stream.shutdown().await;
        }
    });
    Ok((address, serving))
}

const DIES: &str = "";
const DIES_BEFORE_THE_FIRST_BYTE: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
const DIES_IN_THE_BODY: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"choices\": [";
pub const REFUSES: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
const BREAKS_OFF: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n\
    data: {\"choices\": [{\"index\": 0, \"text\": \"half\"}]}\n\n";

#[tokio::test]
async fn another_worker_answers_for_one_that_fails() -> Result<()> {
    for (broken, is_stream) in [
        (DIES, false),
        (DIES, true),
        (DIES_BEFORE_THE_FIRST_BYTE, true),
        (DIES_IN_THE_BODY, false),
        (REFUSES, false),
        (REFUSES, true),
    ] {
        let engines = vec![(WorkerRole::Both, engine(FAST))];
        let flags =
            ["--tokens", "none", "--mode", "round-robin", "--worker-health", "ejection-failures=0"];
        let mut fleet = Fleet::start(engines, &flags).await?;
        let (address, _serving) = server(broken).await?;
        fleet.register("broken", profile(WorkerRole::Both, address), Vec::new()).await?;
        for number in 0..4 {
            if is_stream {
                let body = json!({
                    "model": "m", "prompt": prompt(&number.to_string()), "max_tokens": 4, "stream": true,
                });
                // A stream is no JSON: that it can be read to its end marker is what counts.
                let text = fleet.stream("/v1/completions", &body).await?;
                ensure!(text.ends_with("data: [DONE]\n\n") && !text.contains("error"), "{text}");
            } else {
                fleet.complete(&prompt(&number.to_string())).await?;
            }
        }
        let retries = fleet.metric("gateway_retries_total", "").await?;
        ensure!(retries > 0.0, "{broken:?}: some requests went there");
        ensure!(fleet.metric("router_failed_total", "").await? == retries, "{broken:?}");
        fleet.idle().await?;
        fleet.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_worker_that_fails_again_and_again_is_left_alone() -> Result<()> {
    let flags =
        ["--tokens", "none", "--mode", "round-robin", "--worker-health", "ejection-failures=2"];
    let mut fleet = Fleet::start(vec![(WorkerRole::Both, engine(FAST))], &flags).await?;
    let (address, _serving) = server(DIES).await?;
    fleet.register("broken", profile(WorkerRole::Both, address), Vec::new()).await?;
    for number in 0..10 {
        fleet.complete(&prompt(&number.to_string())).await?;
    }
    ensure!(fleet.metric("gateway_retries_total", "").await? == 2.0);
    ensure!(fleet.metric("router_ejections_total", "").await? == 1.0);
    fleet.stop().await
}

#[tokio::test]
async fn an_answer_that_breaks_off_says_so() -> Result<()> {
    let mut fleet = Fleet::start(Vec::new(), &["--tokens", "none"]).await?;
    let (address, _serving) = server(BREAKS_OFF).await?;
    fleet.register("broken", profile(WorkerRole::Both, address), Vec::new()).await?;
    fleet.ask("breaks").await?;
    fleet.metric_is("gateway_requests_total", "failed", 1.0).await?;
    fleet.stop().await
}

#[tokio::test]
async fn where_no_worker_answers_the_error_names_them() -> Result<()> {
    let mut fleet = Fleet::start(Vec::new(), &["--tokens", "none"]).await?;
    let (address, serving) = server(DIES).await?;
    drop(serving);
    fleet.register("dead", profile(WorkerRole::Both, address), Vec::new()).await?;
    let body = json!({"model": "m", "prompt": "x", "max_tokens": 1});
    let (status, error) = fleet.post("/v1/completions", &body).await?;
    ensure!(status == 502 && error["error"]["code"] == "engine_failed", "{status} {error}");
    ensure!(error["error"]["message"].as_str().is_some_and(|at| at.contains("dead")), "{error}");
    fleet.stop().await
}

#[tokio::test]
async fn no_request_is_lost_when_an_engine_is_killed() -> Result<()> {
    let file = tokenizer().display().to_string();
    let flags = ["--tokenizer", &file, "--mode", "round-robin"];
    let mut fleet = Fleet::start(vec![(WorkerRole::Both, engine(FAST))], &flags).await?;
    let killed = ServerProcess::start(&["--model", "m", "--tokenizer", &file]).await?;
    let address = killed.addresses().http;
    fleet.register("killed", profile(WorkerRole::Both, address), Vec::new()).await?;
    for number in 0..2 {
        fleet.complete(&prompt(&number.to_string())).await?;
    }
    ensure!(fleet.metric("gateway_retries_total", "").await? == 0.0);
    killed.kill().await?;
    for number in 2..8 {
        fleet.complete(&prompt(&number.to_string())).await?;
    }
    ensure!(fleet.metric("gateway_retries_total", "").await? > 0.0);
    fleet.idle().await?;
    fleet.stop().await
}
