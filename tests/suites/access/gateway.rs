//! The gateway takes tokens as API keys.

use crate::fixture;
use crate::side::{ask, send, status};
use anyhow::{Result, ensure};
use kvasir_proto::pb;
use kvasir_sim::client;
use kvasir_sim::server::Server;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

const IDENTITIES: &[fixture::Identity<'_>] = &[
    ("all", "roles = [\"query\"]"),
    ("one", "roles = [\"query\"]\nmodels = [\"m1\"]"),
    ("other-tenant", "roles = [\"query\"]\ntenants = [\"a\"]"),
    ("adapter", "roles = [\"query\"]\nmodels = [\"tuned\"]"),
    ("publisher", "roles = [\"publish\"]\nworkers = [\"*\"]"),
];
/// Longest time until the gateway knows the workers.
const LISTED_TIMEOUT: Duration = Duration::from_secs(30);

/// Starts an index, and a gateway with this file of identities. Waits until the gateway lists models `m1` and `m2` to token
/// `all`.
pub async fn start(file: &Path) -> Result<(Server, Server)> {
    let index = Server::start_anywhere().await?;
    let mut indexer = client::connect(index.addresses.grpc).await?;
    for model in ["m1", "m2"] {
        let label = pb::Label { key: "http".to_owned(), value: "http://127.0.0.1:1".to_owned() };
        let profile = pb::WorkerProfile { labels: vec![label], ..Default::default() };
        let request = pb::RegisterWorkerRequest {
            worker_id: "w".to_owned(),
            model: model.to_owned(),
            block_size: 16,
            profile: Some(profile),
            lora_names: vec![pb::LoraName { id: 1, name: "tuned".to_owned() }],
            ..Default::default()
        };
        indexer.register_worker(request).await?;
    }
    let target = index.addresses.grpc.to_string();
    let file = file.display().to_string();
    let flags =
        ["--indexer", &target, "--timing", "discovery-interval=100ms", "--identities", &file];
    let gateway = Server::gateway(&flags).await?;
    let at = gateway.addresses.grpc;
    let deadline = Instant::now() + LISTED_TIMEOUT;
    loop {
        let listed = ask(at, "GET", "/v1/models", Some("all")).await?;
        ensure!(status(&listed)? == 200, "{listed}");
        if listed.contains("\"m1\"") && listed.contains("\"m2\"") {
            return Ok((gateway, index));
        }
        ensure!(Instant::now() < deadline, "{listed}");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn an_api_key_is_the_token_of_an_identity() -> Result<()> {
    let folder = TempDir::new()?;
    let file = folder.path().join("identities.toml");
    fixture::write(&file, IDENTITIES)?;
    let (mut gateway, mut index) = start(&file).await?;
    let at = gateway.addresses.grpc;
    let listed = ask(at, "GET", "/v1/models", Some("one")).await?;
    ensure!(listed.contains("\"m1\"") && !listed.contains("m2"), "{listed}");
    for (token, path) in [("one", "/v1/models/m2"), ("other-tenant", "/v1/models/m1")] {
        let answer = ask(at, "GET", path, Some(token)).await?;
        ensure!(status(&answer)? == 404 && answer.contains("model_not_found"), "{answer}");
    }
    // An adapter's name opens no base model. With both, the gateway goes on to ask for tokens.
    let body = "{\"model\": \"tuned\", \"prompt\": \"hi\"}";
    let answer = send(at, "POST", "/v1/completions", Some("adapter"), body).await?;
    ensure!(status(&answer)? == 404 && answer.contains("model_not_found"), "{answer}");
    let answer = send(at, "POST", "/v1/completions", Some("all"), body).await?;
    ensure!(!answer.contains("model_not_found") && status(&answer)? != 401, "{answer}");
    for token in [None, Some("unknown")] {
        for (method, path) in [("GET", "/v1/models"), ("POST", "/v1/completions"), ("GET", "/none")]
        {
            let answer = ask(at, method, path, token).await?;
            ensure!(status(&answer)? == 401 && answer.contains("invalid_api_key"), "{answer}");
            ensure!(!answer.contains("m1"), "{answer}");
        }
    }
    let answer = ask(at, "GET", "/v1/models", Some("publisher")).await?;
    ensure!(status(&answer)? == 403 && answer.contains("lacks the role query"), "{answer}");
    gateway.stop().await;
    index.stop().await;
    Ok(())
}
