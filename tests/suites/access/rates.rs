//! What an identity may ask for in a second, at each program; and clients of replicas of which one has had enough.

use crate::calls::Caller;
use crate::fixture;
use crate::gateway;
use crate::side::{send, status};
use anyhow::{Context, Result, ensure};
use kvasir_proto::pb;
use kvasir_sim::client;
use kvasir_sim::server::Server;
use prost::Message;
use router_client::{ClientConfig, Prompt, ShardedClient, ShardedConfig};
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// Two queries at once, and one more each second.
const RATE: &str = "queries-per-second = 1\nquery-burst = 2";
/// Nothing in these tests takes nearly as long.
const PATIENCE: Duration = Duration::from_secs(30);

fn limited(roles: &str) -> String {
    format!("roles = [{roles:?}]\ntenants = [\"*\"]\n{RATE}")
}

/// Whether a refusal names the identity and says when to ask again.
fn check(refused: &Status) -> Result<()> {
    let wait = refused.get_details_retry_info().and_then(|info| info.retry_delay);
    ensure!(refused.code() == Code::ResourceExhausted, "{refused:?}");
    ensure!(refused.message().starts_with("identity \"limited\" has used"), "{refused:?}");
    ensure!(wait.is_some_and(|wait| wait <= Duration::from_secs(1)), "{refused:?}");
    Ok(())
}

/// Asks until a refusal: how many were answered. A slow machine may earn one more meanwhile.
async fn until_refused(caller: &Caller, path: &str, question: &impl Message) -> Result<usize> {
    for answered in 0..10 {
        match caller.call(path, question).await {
            Ok(answers) => ensure!(!answers.is_empty(), "no answer"),
            Err(refused) => return check(&refused).map(|()| answered),
        }
    }
    anyhow::bail!("nothing was refused")
}

#[tokio::test]
async fn the_gateway_answers_429_with_the_time_to_wait() -> Result<()> {
    let folder = TempDir::new()?;
    let file = folder.path().join("identities.toml");
    let limited = format!("roles = [\"query\"]\n{RATE}");
    fixture::write(&file, &[("all", "roles = [\"query\"]"), ("limited", &limited)])?;
    let (mut gateway, mut index) = gateway::start(&file).await?;
    let at = gateway.addresses.grpc;
    let body = "{\"model\": \"m1\", \"prompt\": \"hi\"}";
    let mut answers = Vec::new();
    while answers.len() < 10 {
        let answer = send(at, "POST", "/v1/completions", Some("limited"), body).await?;
        let is_last = status(&answer)? == 429;
        answers.push(answer);
        if is_last {
            break;
        }
    }
    let refused = answers.pop().context("an answer")?;
    ensure!(status(&refused)? == 429 && answers.len() >= 2, "{answers:?}, then {refused}");
    for part in ["retry-after: 1\r\n", "rate_limit_exceeded", "identity \\\"limited\\\" has used"] {
        ensure!(refused.contains(part), "no {part} in {refused}");
    }
    // The engine cannot be reached: any other error will do.
    let other = send(at, "POST", "/v1/completions", Some("all"), body).await?;
    ensure!(status(&other)? != 429, "{other}");
    gateway.stop().await;
    index.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_router_limits_who_asks_for_workers() -> Result<()> {
    let (mut index, folder) = fixture::index(&[]).await?;
    let publisher = Caller::connect(index.addresses.grpc, Some("publish")).await?;
    let worker = pb::RegisterWorkerRequest {
        worker_id: "w".to_owned(),
        model: "m1".to_owned(),
        block_size: 16,
        ..Default::default()
    };
    publisher.call("/kvasir.v1.Indexer/RegisterWorker", &worker).await?;
    let file = folder.path().join("limited.toml");
    let token = folder.path().join("token");
    let rest = limited("query");
    let free = ("free", "roles = [\"query\"]\ntenants = [\"*\"]");
    fixture::write(&file, &[("limited", &rest), free])?;
    fs::write(&token, "query\n")?;
    let target = format!("http://{}", index.addresses.grpc);
    let file = file.display().to_string();
    let token = token.display().to_string();
    let flags = ["--identities", &file, "--token-file", &token, "--indexer", &target];
    let mut router = Server::router(&flags).await?;
    const SELECT: &str = "/kvasir.v1.Router/SelectWorker";
    let question = pb::SelectWorkerRequest {
        model: "m1".to_owned(),
        token_ids: (0..16).collect(),
        ..Default::default()
    };
    let free = Caller::connect(router.addresses.grpc, Some("free")).await?;
    let deadline = Instant::now() + PATIENCE;
    while let Err(unknown) = free.call(SELECT, &question).await {
        ensure!(unknown.code() == Code::NotFound && Instant::now() < deadline, "{unknown:?}");
        sleep(Duration::from_millis(20)).await;
    }
    let caller = Caller::connect(router.addresses.grpc, Some("limited")).await?;
    let answered = until_refused(&caller, SELECT, &question).await?;
    ensure!(answered >= 2, "{answered} answers");
    free.call(SELECT, &question).await?;
    router.stop().await;
    index.stop().await;
    Ok(())
}

#[tokio::test]
async fn an_agent_limits_who_dumps_its_journal() -> Result<()> {
    let folder = TempDir::new()?;
    let file = folder.path().join("identities.toml");
    let rest = limited("query");
    fixture::write(
        &file,
        &[("limited", &rest), ("free", "roles = [\"query\"]\ntenants = [\"*\"]")],
    )?;
    let file = file.display().to_string();
    let own = ["--worker-id", "w", "--model", "m1", "--block-size", "16"];
    // Nothing is published: no index is needed.
    let index = ["--indexers", "http://127.0.0.1:1", "--deregister", "false"];
    let mut agent = Server::agent(&[&own[..], &index, &["--identities", &file]].concat()).await?;
    const DUMP: &str = "/kvasir.v1.LocalIndexer/Dump";
    let question = pb::LocalDumpRequest {
        model: "m1".to_owned(),
        worker_id: "w".to_owned(),
        source: "agent".to_owned(),
        ..Default::default()
    };
    let caller = Caller::connect(agent.addresses.grpc, Some("limited")).await?;
    let answered = until_refused(&caller, DUMP, &question).await?;
    ensure!(answered >= 2, "{answered} answers");
    let free = Caller::connect(agent.addresses.grpc, Some("free")).await?;
    free.call(DUMP, &question).await?;
    agent.stop().await;
    Ok(())
}

/// Of two replicas one is at its limit all the time: the client asks the other one, and fails no question.
#[tokio::test]
async fn a_client_goes_to_another_replica_when_one_is_at_its_limit() -> Result<()> {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let rate = ["--tenant-queries-per-second=1"];
    let mut servers = [Server::start_with(any, any, &rate).await?, Server::start_anywhere().await?];
    for server in &servers {
        let worker = pb::RegisterWorkerRequest {
            worker_id: "w".to_owned(),
            model: "m1".to_owned(),
            block_size: 16,
            ..Default::default()
        };
        client::connect(server.addresses.grpc).await?.register_worker(worker).await?;
    }
    let targets = servers.each_ref().map(|server| server.addresses.grpc.to_string());
    let client = ClientConfig { deadline: PATIENCE, ..ClientConfig::default() };
    let config = ShardedConfig { client, ..ShardedConfig::default() };
    let client = ShardedClient::connect([&targets], &config)?;
    let tokens: Vec<u32> = (0..16).collect();
    for number in 0..100 {
        let answer = client.find(&Prompt::new("m1", 16, &tokens)).await;
        let answer = answer.with_context(|| format!("question {number}"))?;
        ensure!(answer.missing_shards.is_empty(), "question {number}: {answer:?}");
    }
    let counts = client.counts();
    let shard = counts.first().context("a shard")?;
    ensure!(shard.failures == 0 && shard.missing == 0, "a limit is no failure: {shard:?}");
    ensure!(shard.asked > shard.questions, "the limited one was never asked: {shard:?}");
    for server in &mut servers {
        server.stop().await;
    }
    Ok(())
}
