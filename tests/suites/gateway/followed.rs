//! Index servers follow the pods of a Kubernetes service, which have no agents. Each shard takes its own engines.

use crate::api_server::ApiServer;
use crate::fake::{Behaviour, Fake};
use crate::fleet::{MODEL, PATIENCE, prompt, until};
use crate::kubernetes::{blocks, pod, readyz, service, slice, start_engine, workers};
use anyhow::{Context, Result, ensure};
use hyper::Method;
use kvasir_proto::hash::bucket;
use kvasir_proto::pb;
use kvasir_proto::types::WorkerId;
use kvasir_sim::client;
use kvasir_sim::engine::openai::EngineServer;
use kvasir_sim::engine::openai::client::call;
use kvasir_sim::server::{Addresses, Server, binary};
use serde_json::json;
use std::fs;
use std::net::SocketAddr;
use tempfile::TempDir;
use tokio::process::Command;

/// Buckets of the first of two shards.
const HALF: u8 = 128;
const LIST: [&str; 2] = ["--engines-from", "kubernetes:prod/vllm:http"];

/// An engine in a pod, whose worker belongs to one of two shards.
struct PodEngine {
    engine: EngineServer,
    pod: String,
    worker: String,
}

impl PodEngine {
    async fn start(shard: usize) -> Result<Self> {
        let engine = start_engine().await?;
        let port = engine.address().port();
        for number in 0..=u8::MAX {
            let pod = format!("vllm-{port}-{number}");
            let worker = format!("{pod}:{port}");
            if usize::from(bucket(&WorkerId::new(&worker)?) >= HALF) == shard {
                return Ok(Self { engine, pod, worker });
            }
        }
        anyhow::bail!("no name belongs to shard {shard}")
    }

    fn add(&self, api: &ApiServer) {
        api.put("pods", pod(&self.pod, &self.pod, &self.engine));
        api.put("endpointslices", slice(&self.pod, &self.pod, self.engine.address(), false));
    }

    fn delete(&self, api: &ApiServer) -> Result<()> {
        api.delete("pods", &self.pod)?;
        api.delete("endpointslices", &format!("vllm-{}", self.pod))
    }
}

/// An index server with a checkpoint.
struct Index {
    server: Server,
    state: TempDir,
}

impl Index {
    async fn start(api: &ApiServer, flags: &[&str]) -> Result<Self> {
        let state = tempfile::tempdir()?;
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = serve(api, Addresses { grpc: any, http: any }, &state, flags).await?;
        Ok(Self { server, state })
    }

    async fn start_again(&mut self, api: &ApiServer, flags: &[&str]) -> Result<()> {
        self.server = serve(api, self.server.addresses, &self.state, flags).await?;
        Ok(())
    }

    async fn has(&self, expected: &[&str]) -> Result<Vec<pb::WorkerInfo>> {
        let mut expected: Vec<_> = expected.iter().map(|at| (*at).to_owned()).collect();
        expected.sort();
        let found = workers(self.server.addresses.grpc, &expected).await;
        found.with_context(|| self.server.output())
    }

    /// Registers a worker without an engine, as somebody else does.
    async fn register(&self, worker: &str) -> Result<()> {
        let label = pb::Label { key: "registered-by".to_owned(), value: "somebody".to_owned() };
        let profile = pb::WorkerProfile { labels: vec![label], ..Default::default() };
        self.register_as(worker, MODEL, profile).await
    }

    async fn register_as(
        &self,
        worker: &str,
        model: &str,
        profile: pb::WorkerProfile,
    ) -> Result<()> {
        let request = pb::RegisterWorkerRequest {
            worker_id: worker.to_owned(),
            model: model.to_owned(),
            block_size: 16,
            profile: Some(profile),
            ..Default::default()
        };
        client::connect(self.server.addresses.grpc).await?.register_worker(request).await?;
        Ok(())
    }

    async fn blocks(&self, worker: &str, engine: &EngineServer) -> Result<usize> {
        blocks(self.server.addresses.grpc, worker, engine).await
    }
}

async fn serve(api: &ApiServer, at: Addresses, state: &TempDir, flags: &[&str]) -> Result<Server> {
    let mut program = Command::new(binary()?);
    program.env("KUBECONFIG", api.kubeconfig());
    let state = state.path().display().to_string();
    Server::program_at(program, at, &[&["--checkpoint-dir", &state], flags].concat()).await
}

/// A worker id of the first shard.
fn name_of_first_shard(stem: &str) -> Result<String> {
    for number in 0..=u8::MAX {
        let name = format!("{stem}-{number}");
        if bucket(&WorkerId::new(&name)?) < HALF {
            return Ok(name);
        }
    }
    anyhow::bail!("no name belongs to the first shard")
}

#[tokio::test]
async fn each_shard_takes_its_own_pods_and_leaves_others_workers_alone() -> Result<()> {
    let api = ApiServer::start().await?;
    api.put("services", service());
    // Longer than this test: engines are removed because their pods go.
    let flags = |shard| [&LIST[..], &["--worker-timeout", "1h", "--shard", shard]].concat();
    let mut first = Index::start(&api, &flags("0/2")).await?;
    let second = Index::start(&api, &flags("1/2")).await?;
    let pods = [PodEngine::start(0).await?, PodEngine::start(0).await?, PodEngine::start(1).await?];
    let [a, b, c] = &pods;
    pods.iter().for_each(|pod| pod.add(&api));
    first.has(&[&a.worker, &b.worker]).await?;
    second.has(&[&c.worker]).await?;

    // A gateway finds all engines by the index, and the index what they have.
    let indexers = format!("{};{}", first.server.addresses.grpc, second.server.addresses.grpc);
    let gateway = ["--indexer", &indexers, "--timing", "discovery-interval=100ms"];
    let mut gateway = Server::gateway(&gateway).await?;
    let at = gateway.addresses.grpc;
    let body = json!({"model": MODEL, "prompt": prompt("followed"), "max_tokens": 4}).to_string();
    let cached = async || {
        let answer =
            call(Method::POST, ("127.0.0.1", at.port()), "/v1/completions", body.clone(), PATIENCE);
        let (status, answer) = answer.await?;
        let answer: serde_json::Value = serde_json::from_slice(&answer)?;
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        Ok((status == 200 && cached > Some(0)).then_some(()))
    };
    until("a cached prompt", cached).await.with_context(|| gateway.output())?;
    gateway.stop().await;

    // An engine that somebody removes by hand returns, as it is still in the list.
    let request = pb::RemoveWorkerRequest {
        worker_id: a.worker.clone(),
        model: MODEL.to_owned(),
        ..Default::default()
    };
    client::connect(first.server.addresses.grpc).await?.remove_worker(request).await?;
    first.has(&[&a.worker, &b.worker]).await?;

    // A pod goes while the index serves, another one while it is away. A worker of somebody else stays.
    let other = name_of_first_shard("other")?;
    first.register(&other).await?;
    a.delete(&api)?;
    first.has(&[&b.worker, &other]).await?;
    first.server.stop().await;
    b.delete(&api)?;
    first.start_again(&api, &flags("0/2")).await?;
    first.has(&[&other]).await?;
    second.has(&[&c.worker]).await?;

    // A pod with the name of somebody else's worker is refused, and said.
    first.register(&a.worker).await?;
    a.add(&api);
    let taken = format!("{}: another source registered a worker with this id", a.worker);
    readyz(&first.server, "the taken name", |text| text.contains(&taken)).await?;
    let listed = first.has(&[&a.worker, &other]).await?;
    let sockets = listed.iter().flat_map(|at| &at.registration).map(|at| at.endpoints.len());
    ensure!(sockets.sum::<usize>() == 0, "{listed:?}");

    // While the API server refuses, the engines stay.
    api.refuse(Some(403));
    api.cut();
    readyz(&second.server, "the refusal", |text| text.contains("kubernetes: ")).await?;
    second.has(&[&c.worker]).await?;
    api.refuse(None);
    readyz(&second.server, "the end of the refusal", |text| !text.contains("kubernetes: ")).await?;
    for mut index in [first, second] {
        index.server.stop().await;
    }
    for pod in pods {
        pod.engine.stop().await?;
    }
    Ok(())
}

/// Sends prompts to an engine, whose replays have its last batch only.
async fn fill(engine: &EngineServer) -> Result<()> {
    let at = engine.address();
    for number in 0..3 {
        let text = prompt(&format!("prompt {number}"));
        let body = json!({"model": MODEL, "prompt": text, "max_tokens": 4}).to_string();
        let host = at.ip().to_string();
        let address = (host.as_str(), at.port());
        let (status, _) = call(Method::POST, address, "/v1/completions", body, PATIENCE).await?;
        ensure!(status == 200, "{status}");
    }
    Ok(())
}

#[tokio::test]
async fn engines_of_a_checkpoint_are_compared_with_the_list() -> Result<()> {
    let api = ApiServer::start().await?;
    api.put("services", service());
    let flags = [&LIST[..], &["--worker-timeout", "1s"]].concat();
    let mut index = Index::start(&api, &flags).await?;
    let [a, b] = [PodEngine::start(0).await?, PodEngine::start(0).await?];
    a.add(&api);
    b.add(&api);
    let listed = index.has(&[&a.worker, &b.worker]).await?;
    // What a checkpoint has of an engine that had another model before.
    let of_a = listed.iter().find(|at| at.worker_id == a.worker);
    let of_a = of_a.and_then(|at| at.registration.as_ref()?.profile.clone()).context("labels")?;
    index.register_as(&a.worker, "former", of_a).await?;
    index.has(&[&a.worker, &b.worker]).await?;
    index.register("other").await?;
    fill(&a.engine).await?;
    let blocks = index.blocks(&a.worker, &a.engine).await?;
    ensure!(blocks == a.engine.engine().truth().await?.copies.len() && blocks > 0, "{blocks}");

    // An engine died while the index was away, and its pod is still listed.
    index.server.stop().await;
    b.engine.stop().await?;
    index.start_again(&api, &flags).await?;
    index.has(&[&a.worker, "other"]).await?;
    ensure!(index.blocks(&a.worker, &a.engine).await? == blocks, "{}", index.server.output());

    // The API server is away at the start: the engines of the checkpoint stay.
    index.server.stop().await;
    api.refuse(Some(503));
    index.start_again(&api, &flags).await?;
    readyz(&index.server, "the refusal", |text| text.contains("kubernetes: ")).await?;
    index.has(&[&a.worker, "other"]).await?;
    api.refuse(None);
    readyz(&index.server, "the list", |text| !text.contains("kubernetes: ")).await?;
    ensure!(index.blocks(&a.worker, &a.engine).await? == blocks, "{}", index.server.output());

    // A replica without a list copies other workers only.
    let at = format!("http://{}", index.server.addresses.grpc);
    let mut replica = Index::start(&api, &["--siblings", &at]).await?;
    replica.has(&["other"]).await?;
    replica.server.stop().await;

    // Another pod has the name and the address: it inherits nothing.
    index.server.stop().await;
    api.put("pods", pod(&a.pod, "another", &a.engine));
    api.put("endpointslices", slice(&a.pod, "another", a.engine.address(), false));
    index.start_again(&api, &flags).await?;
    let is_other = async || {
        let listed = index.has(&[&a.worker, "other"]).await?;
        Ok(format!("{listed:?}").contains("another").then_some(()))
    };
    until("another pod", is_other).await?;
    let inherited = index.blocks(&a.worker, &a.engine).await?;
    ensure!(inherited < blocks, "{inherited} of {blocks}\n{}", index.server.output());

    // Without the list, its engines go.
    index.server.stop().await;
    index.start_again(&api, &[]).await?;
    index.has(&["other"]).await?;
    index.server.stop().await;
    a.engine.stop().await
}

#[tokio::test]
async fn a_list_states_the_key_that_its_engines_demand() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (key, list) = (folder.path().join("key"), folder.path().join("engines"));
    let fake = Fake::start(Behaviour { key: Some("key 1"), ..Behaviour::default() }).await?;
    let engine = fake.address.to_string();
    let facts = "events=tcp://127.0.0.1:1,block-size=16";
    fs::write(&list, format!("{engine},{facts},key-file={}\n", key.display()))?;
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let source = format!("file:{}", list.display());
    let flags = ["--engines-from", &source];
    let at = Addresses { grpc: any, http: any };
    let mut server = Server::program_at(Command::new(binary()?), at, &flags).await?;
    // No file, a wrong key, the right key: each is read again.
    readyz(&server, "no file", |text| text.contains("No such file")).await?;
    fs::write(&key, "key 2\n")?;
    readyz(&server, "a wrong key", |text| text.contains("the engine demands a key")).await?;
    fs::write(&key, "key 1\n")?;
    let found = workers(server.addresses.grpc, &[engine]).await;
    found.with_context(|| server.output())?;
    ensure!(!server.output().contains("key 1"), "{}", server.output());
    server.stop().await;
    Ok(())
}
