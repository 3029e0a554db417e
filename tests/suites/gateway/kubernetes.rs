//! `kvasir serve` and `kvasir check` follow the pods of a Kubernetes service.

use crate::api_server::{ApiServer, Gone};
use crate::fleet::{FAST, MODEL, PATIENCE, engine, prompt, tokenizer, until};
use anyhow::{Context, Result, ensure};
use hyper::Method;
use kvasir_proto::pb;
use kvasir_sim::client;
use kvasir_sim::demo::metrics;
use kvasir_sim::engine::openai::client::call;
use kvasir_sim::engine::openai::{EngineServer, Text};
use kvasir_sim::server::{Addresses, Server, binary_of};
use serde_json::{Value, json};
use std::net::SocketAddr;
use tempfile::TempDir;
use tokio::process::Command;

const FROM: &str = "kubernetes:prod/vllm:http";

/// An API server with a service without pods, engines, and `kvasir serve`.
struct Cluster {
    api: ApiServer,
    index: SocketAddr,
    kvasir: Server,
    state: TempDir,
}

pub async fn start_engine() -> Result<EngineServer> {
    let mut config = engine(FAST);
    // The engine can replay its last batch only: other blocks are known from before, or not at all.
    config.live.engine.buffer_batches = 1;
    EngineServer::start(config, Text::load(&tokenizer(), None)?).await
}

pub fn service() -> Value {
    json!({"metadata": {"name": "vllm"}, "spec": {"selector": {"app": "vllm"}}})
}

pub fn pod(name: &str, uid: &str, engine: &EngineServer) -> Value {
    let sockets = engine.engine().endpoints();
    let facts = json!({"kvasir/events": sockets.live, "kvasir/replay": sockets.replay});
    json!({"metadata": {
        "name": name, "uid": uid, "labels": {"app": "vllm", "kvasir/block-size": "16"}, "annotations": facts,
        "managedFields": [{"manager": "kubelet"}],
    }})
}

/// A slice with one pod, since each engine here has its own port.
pub fn slice(pod: &str, uid: &str, at: SocketAddr, is_ending: bool) -> Value {
    json!({
        "metadata": {"name": format!("vllm-{pod}"), "labels": {"kubernetes.io/service-name": "vllm"}},
        "addressType": "IPv4",
        "ports": [{"name": "other", "port": 1}, {"name": "http", "port": at.port()}],
        "endpoints": [{
            "addresses": [at.ip().to_string()],
            "conditions": {"ready": false, "terminating": is_ending},
            "targetRef": {"kind": "Pod", "name": pod, "uid": uid},
        }],
    })
}

impl Cluster {
    async fn start(api: ApiServer) -> Result<Self> {
        let state = tempfile::tempdir()?;
        let index = SocketAddr::from(([127, 0, 0, 1], kvasir_sim::place::free_port()?));
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let kvasir = serve(&api, Addresses { grpc: any, http: any }, index, &state).await?;
        Ok(Self { api, index, kvasir, state })
    }

    async fn restart(&mut self) -> Result<()> {
        let at = self.kvasir.addresses;
        self.kvasir.stop().await;
        self.kvasir = serve(&self.api, at, self.index, &self.state).await?;
        Ok(())
    }

    fn add(&self, name: &str, uid: &str, engine: &EngineServer) {
        self.api.put("pods", pod(name, uid, engine));
        self.api.put("endpointslices", slice(name, uid, engine.address(), false));
    }

    async fn workers(&self, expected: &[String]) -> Result<Vec<pb::WorkerInfo>> {
        workers(self.index, expected).await.with_context(|| self.kvasir.output())
    }

    async fn readyz(&self, what: &str, has: impl Fn(&str) -> bool) -> Result<()> {
        readyz(&self.kvasir, what, has).await
    }

    /// Sends a prompt, as soon as the gateway has an engine.
    async fn complete(&self, text: &str) -> Result<()> {
        let at = self.kvasir.addresses.grpc;
        let body = json!({"model": MODEL, "prompt": prompt(text), "max_tokens": 4}).to_string();
        let host = at.ip().to_string();
        let ask = async || {
            let address = (host.as_str(), at.port());
            let answer = call(Method::POST, address, "/v1/completions", body.clone(), PATIENCE);
            let (status, answer) = answer.await?;
            let text = String::from_utf8_lossy(&answer);
            ensure!(status == 200 || text.contains("no_engine"), "{status}: {text}");
            Ok((status == 200).then_some(()))
        };
        until("an answer", ask).await.with_context(|| self.kvasir.output())
    }

    async fn blocks(&self, worker: &str, engine: &EngineServer) -> Result<usize> {
        blocks(self.index, worker, engine).await
    }

    async fn stop(mut self, engines: impl IntoIterator<Item = EngineServer>) -> Result<()> {
        self.kvasir.stop().await;
        for engine in engines {
            engine.stop().await?;
        }
        Ok(())
    }
}

/// Waits until an index has these workers.
pub async fn workers(index: SocketAddr, expected: &[String]) -> Result<Vec<pb::WorkerInfo>> {
    let mut indexer = client::connect(index).await?;
    let mut last = Vec::new();
    let listed = async || {
        let listed = indexer.list_workers(pb::ListWorkersRequest::default()).await?;
        let mut workers = listed.into_inner().workers;
        workers.sort_by(|a, b| a.worker_id.cmp(&b.worker_id));
        last = workers.iter().map(|at| at.worker_id.clone()).collect();
        Ok((last == expected).then_some(workers))
    };
    let found = until(&format!("workers {expected:?}"), listed).await;
    found.with_context(|| format!("there are {last:?}"))
}

/// Blocks of a worker, as soon as the index has the engine's last batch.
pub async fn blocks(index: SocketAddr, worker: &str, engine: &EngineServer) -> Result<usize> {
    let mut indexer = client::connect(index).await?;
    let sequence = engine.engine().truth().await?.last_sequence.context("events")?;
    let has_last = |source: &pb::SourceInfo| {
        source.applied.as_ref().is_some_and(|cursor| cursor.sequence >= sequence)
    };
    let whose = (MODEL, worker);
    client::wait_for_sources(&mut indexer, whose, "the last batch", PATIENCE, has_last).await?;
    Ok(client::dump_device_copies(&mut indexer, MODEL, worker).await?.len())
}

/// Waits until a program's `/readyz` has a text.
pub async fn readyz(program: &Server, what: &str, has: impl Fn(&str) -> bool) -> Result<()> {
    let looks = async || {
        let text = metrics::get(program.addresses.http, "/readyz").await?.1;
        Ok(has(&text).then_some(()))
    };
    until(what, looks).await.with_context(|| program.output())
}

async fn serve(
    api: &ApiServer,
    at: Addresses,
    index: SocketAddr,
    state: &TempDir,
) -> Result<Server> {
    let config = api.kubeconfig().display().to_string();
    let state = state.path().display().to_string();
    let index = format!("--listen-index={index}");
    let own = ["--engines-from", FROM, "--checkpoint-dir", &state, &index, "--self-check=off"];
    // Longer than these tests: engines are removed because their pods go.
    let flags = [&own[..], &["--worker-timeout=1h"]].concat();
    Server::serve_with(at, &[("KUBECONFIG", &config)], &flags).await
}

async fn started() -> Result<Cluster> {
    let api = ApiServer::start().await?;
    api.put("services", service());
    Cluster::start(api).await
}

fn named(pods: &[(&str, &EngineServer)]) -> Vec<String> {
    pods.iter().map(|(pod, engine)| format!("{pod}:{}", engine.address().port())).collect()
}

#[tokio::test]
async fn pods_come_and_go_with_their_service() -> Result<()> {
    let cluster = started().await?;
    let engines = [start_engine().await?, start_engine().await?, start_engine().await?];
    let [first, second, third] = &engines;
    for (name, engine) in [("vllm-a", first), ("vllm-b", second), ("vllm-c", third)] {
        cluster.add(name, name, engine);
    }
    cluster.workers(&named(&[("vllm-a", first), ("vllm-b", second), ("vllm-c", third)])).await?;
    cluster.readyz("ready", |text| text == "ready\n" || text == "ready").await?;
    cluster.complete("a request").await?;
    // A pod that ends still answers, and is not asked any more.
    cluster.api.put("endpointslices", slice("vllm-a", "vllm-a", first.address(), true));
    cluster.workers(&named(&[("vllm-b", second), ("vllm-c", third)])).await?;
    // A pod that is being deleted, before its slice changes.
    let mut ending = pod("vllm-b", "vllm-b", second);
    ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    cluster.api.put("pods", ending);
    cluster.workers(&named(&[("vllm-c", third)])).await?;
    // All are gone: unlike an empty file, this is certain.
    cluster.api.delete("pods", "vllm-c")?;
    cluster.workers(&[]).await?;
    cluster.readyz("not ready", |text| text.contains("no engine answers")).await?;
    cluster.stop(engines).await
}

#[tokio::test]
async fn another_pod_inherits_no_blocks() -> Result<()> {
    let mut cluster = started().await?;
    let engine = start_engine().await?;
    let fill = async |cluster: &Cluster, worker: &str, texts: &[&str]| {
        for text in texts {
            cluster.complete(text).await?;
        }
        let blocks = cluster.blocks(worker, &engine).await?;
        let truth = engine.engine().truth().await?.copies.len();
        anyhow::Ok((blocks, truth))
    };
    cluster.add("vllm-0", "uid-0", &engine);
    let names = named(&[("vllm-0", &engine)]);
    cluster.workers(&names).await?;
    let (blocks, truth) = fill(&cluster, &names[0], &["one", "two", "three"]).await?;
    ensure!(blocks == truth && truth > 0, "{blocks} of {truth}");
    // The same engine plays the next pod of a StatefulSet: blocks that it cannot replay must not be there. First while
    // kvasir serves, then while it is away.
    let uid_of = |workers: &[pb::WorkerInfo]| {
        let registration = workers.first()?.registration.as_ref()?;
        let labels = &registration.profile.as_ref()?.labels;
        Some(labels.iter().find(|label| label.key == "pod-uid")?.value.clone())
    };
    let renamed = async |cluster: &Cluster, uid: &str| {
        until("another pod", async || {
            Ok((uid_of(&cluster.workers(&names).await?) == Some(uid.to_owned())).then_some(()))
        })
        .await
    };
    cluster.add("vllm-0", "uid-1", &engine);
    renamed(&cluster, "uid-1").await?;
    // Only then do all further batches count.
    cluster.blocks(&names[0], &engine).await?;
    let (blocks, truth) = fill(&cluster, &names[0], &["four", "five"]).await?;
    ensure!(blocks < truth, "another id: {blocks} of {truth}\n{}", cluster.kvasir.output());
    let before = blocks;
    cluster.kvasir.stop().await;
    cluster.add("vllm-0", "uid-2", &engine);
    cluster.restart().await?;
    renamed(&cluster, "uid-2").await?;
    let blocks = cluster.blocks(&names[0], &engine).await?;
    ensure!(blocks < before, "after a restart: {blocks} of {before}\n{}", cluster.kvasir.output());
    // A pod with another name at the same address.
    cluster.add("vllm-1", "uid-3", &engine);
    cluster.api.delete("pods", "vllm-0")?;
    cluster.api.delete("endpointslices", "vllm-vllm-0")?;
    let names = named(&[("vllm-1", &engine)]);
    cluster.workers(&names).await?;
    let (blocks, truth) = fill(&cluster, &names[0], &["six"]).await?;
    ensure!(blocks < truth, "another name: {blocks} of {truth}");
    // The next pod of this name does not answer yet, and kvasir was away: the worker in the checkpoint goes all the same.
    let (at, next) = (engine.address(), pod("vllm-1", "uid-4", &engine));
    cluster.kvasir.stop().await;
    engine.stop().await?;
    cluster.api.put("pods", next);
    cluster.api.put("endpointslices", slice("vllm-1", "uid-4", at, false));
    cluster.restart().await?;
    cluster.workers(&[]).await?;
    cluster.stop([]).await
}

#[tokio::test]
async fn a_watch_outlives_what_the_api_server_does() -> Result<()> {
    let cluster = started().await?;
    let engine = start_engine().await?;
    let names = |name: &str| named(&[(name, &engine)]);
    let replace = async |former: &str, name: &str| {
        cluster.add(name, name, &engine);
        if !former.is_empty() {
            cluster.api.delete("pods", former)?;
        }
        cluster.workers(&names(name)).await.map(drop)
    };
    replace("", "vllm-0").await?;
    cluster.api.mark();
    replace("vllm-0", "vllm-1").await?;
    // Streams break, and go on from the last version: nothing is listed again.
    let lists = cluster.api.lists();
    cluster.api.cut();
    replace("vllm-1", "vllm-2").await?;
    ensure!(cluster.api.lists() == lists, "{} lists, {lists} before", cluster.api.lists());
    for (gone, former, name) in
        [(Gone::Event, "vllm-2", "vllm-3"), (Gone::Status, "vllm-3", "vllm-4")]
    {
        cluster.api.forget(gone);
        cluster.api.cut();
        replace(former, name).await.with_context(|| format!("{gone:?}"))?;
    }
    // Refusals are shown, with the fix, and change nothing.
    for status in [403, 503] {
        cluster.api.refuse(Some(status));
        cluster.api.cut();
        cluster
            .readyz("the refusal", |text| {
                text.contains("kubernetes: ") && text.contains("forbidden")
            })
            .await?;
        cluster.workers(&names("vllm-4")).await?;
        cluster.complete("while it refuses").await?;
        cluster.api.refuse(None);
        cluster.readyz("the end of the refusal", |text| !text.contains("kubernetes")).await?;
    }
    replace("vllm-4", "vllm-5").await?;
    cluster.stop([engine]).await
}

#[tokio::test]
async fn faults_of_pods_and_services_are_named() -> Result<()> {
    let cluster = started().await?;
    let engines = [start_engine().await?, start_engine().await?];
    let [right, wrong] = &engines;
    cluster.add("vllm-0", "uid-0", right);
    let mut strange = pod("vllm-1", "uid-1", wrong);
    strange["metadata"]["annotations"]["kvasir/model"] = json!("m,key-file=/etc/shadow");
    cluster.api.put("pods", strange.clone());
    cluster.api.put("endpointslices", slice("vllm-1", "uid-1", wrong.address(), false));
    cluster
        .readyz("the comma", |text| {
            text.contains("vllm-1: kvasir/model: ") && text.contains("comma")
        })
        .await?;
    cluster.workers(&named(&[("vllm-0", right)])).await?;
    strange["metadata"]["annotations"]["kvasir/model"] = json!(MODEL);
    strange["metadata"]["annotations"]["kvasir/key-file"] = json!("/etc/shadow");
    cluster.api.put("pods", strange);
    cluster
        .readyz("the key", |text| text.contains("vllm-1: the pod's kvasir/key-file is ignored"))
        .await?;
    cluster.workers(&named(&[("vllm-0", right), ("vllm-1", wrong)])).await?;
    // Another selector: the pods are others.
    let mut other = service();
    other["spec"]["selector"] = json!({"kvasir/block-size": "16", "app": "other"});
    cluster.api.put("services", other);
    cluster.workers(&[]).await?;
    cluster.api.put("services", service());
    cluster.workers(&named(&[("vllm-0", right), ("vllm-1", wrong)])).await?;
    // The service is made again: its slices come later, and until then its pods are not known to be gone.
    cluster.api.delete("services", "vllm")?;
    cluster.readyz("no service", |text| text.contains("has no service vllm")).await?;
    for pod in ["vllm-0", "vllm-1"] {
        cluster.api.delete("endpointslices", &format!("vllm-{pod}"))?;
    }
    cluster.api.put("services", service());
    cluster.readyz("no slices", |text| text.contains("has no endpointslices yet")).await?;
    cluster.workers(&named(&[("vllm-0", right), ("vllm-1", wrong)])).await?;
    cluster.api.put("endpointslices", slice("vllm-0", "uid-0", right.address(), false));
    cluster.api.put("endpointslices", slice("vllm-1", "uid-1", wrong.address(), false));
    let is_over = |text: &str| !text.contains("kubernetes: ");
    cluster.readyz("the slices", is_over).await?;
    cluster.api.put(
        "services",
        json!({"metadata": {"name": "empty"}, "spec": {"selector": {"app": "x"}}}),
    );
    let placeholder = json!({"name": "empty-1", "labels": {"kubernetes.io/service-name": "empty"}});
    cluster.api.put(
        "endpointslices",
        json!({"metadata": placeholder, "addressType": "IPv4", "ports": [], "endpoints": null}),
    );
    let config = cluster.api.kubeconfig().display().to_string();
    let check = async |from: &str, config: &str| {
        let mut command = Command::new(binary_of("kvasir")?);
        command.args(["check", "--engines-from", from]).env("KUBECONFIG", config);
        let output =
            command.env_remove("KUBERNETES_SERVICE_HOST").kill_on_drop(true).output().await?;
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        anyhow::Ok((output.status.code(), format!("{}{log}", String::from_utf8(output.stdout)?)))
    };
    let (code, text) = check("kubernetes:vllm:http", &config).await?;
    let names = named(&[("vllm-0", right), ("vllm-1", wrong)]);
    ensure!(
        names.iter().all(|name| text.contains(name)) && text.contains("✓ cache hit"),
        "{code:?}: {text}"
    );
    for (from, config, part) in [
        ("kubernetes:vllm:grpc", config.as_str(), "no port named \"grpc\""),
        ("kubernetes:empty:http", &config, "its selector app=x matches no pod in namespace prod"),
        ("kubernetes:other:http", &config, "namespace prod has no service other"),
        ("kubernetes:vllm:http", "/no/such/file", "name a kubeconfig in KUBECONFIG"),
    ] {
        let (code, text) = check(from, config).await?;
        ensure!(code == Some(1) && text.contains(part), "{from}: {code:?}: {text}");
    }
    cluster.stop(engines).await
}
