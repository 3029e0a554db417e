use crate::fleet::{Router, connect, free, index, loads, request, start_router, tokens, until};
use anyhow::{Result, ensure};
use kvasir_proto::pb;
use kvasir_sim::demo::metrics;
use kvasir_sim::server::Server;
use kvasir_tests::nats::NatsServer;
use tempfile::TempDir;

/// Waits until a router knows so many requests at each worker.
async fn knows(router: &mut Router, expected: &[(&str, u64)]) -> Result<()> {
    until(&format!("{expected:?}"), async || {
        let loads = loads(router).await?;
        let loads: Vec<_> = loads.iter().map(|(id, requests)| (id.as_str(), *requests)).collect();
        Ok((loads == expected).then_some(()))
    })
    .await
}

#[tokio::test]
async fn replicas_know_of_each_others_requests() -> Result<()> {
    let folder = TempDir::new()?;
    let mut nats = NatsServer::start(folder.path()).await?;
    let (mut server, _indexer, engines) = index(2).await?;
    let address = server.addresses.grpc.to_string();
    let url = nats.url();
    let flags = [
        "--replica-sync",
        "--nats-url",
        &url,
        "--timing",
        "sync-digest-interval=200ms,request-lease=3s",
    ];
    let (mut first, mut one) = start_router(&address, &flags).await?;
    let (mut second, mut two) = start_router(&address, &flags).await?;
    for process in [&first, &second] {
        until("connected", async || {
            let up = metrics::sum(process.addresses.http, "router_nats_connected", "").await?;
            Ok((up == 1.0).then_some(()))
        })
        .await?;
    }
    let prompt = || request(tokens(0, 20));
    let placed = one.select_worker(prompt()).await?.into_inner();
    let (here, there) = if placed.worker_id == "w0" { (1, 0) } else { (0, 1) };
    knows(&mut two, &[("w0", here), ("w1", there)]).await?;
    // No herding: the second router shares the blocks that the first one's request computes.
    let follows = two.select_worker(prompt()).await?.into_inner();
    ensure!(follows.worker_id == placed.worker_id, "{follows:?}");
    knows(&mut one, &[("w0", 2 * here), ("w1", 2 * there)]).await?;
    one.free(free(&placed.request_id)).await?;
    knows(&mut two, &[("w0", here), ("w1", there)]).await?;
    two.free(free(&follows.request_id)).await?;
    knows(&mut one, &[("w0", 0), ("w1", 0)]).await?;

    // A late joiner learns what is under way, without an event for it.
    let lasting = one.select_worker(prompt()).await?.into_inner();
    let (here, there) = if lasting.worker_id == "w0" { (1, 0) } else { (0, 1) };
    let (mut third, mut three) = start_router(&address, &flags).await?;
    knows(&mut three, &[("w0", here), ("w1", there)]).await?;
    // What is lost while NATS is away is healed once it is back.
    nats.kill().await;
    let unheard = one.select_worker(prompt()).await?.into_inner();
    ensure!(unheard.worker_id == lasting.worker_id, "it shares its blocks: {unheard:?}");
    nats.restart().await?;
    knows(&mut two, &[("w0", 2 * here), ("w1", 2 * there)]).await?;
    knows(&mut three, &[("w0", 2 * here), ("w1", 2 * there)]).await?;
    // A router that is killed leaves no load behind after the lease.
    first.kill().await;
    knows(&mut two, &[("w0", 0), ("w1", 0)]).await?;
    knows(&mut three, &[("w0", 0), ("w1", 0)]).await?;
    for process in [&mut second, &mut third, &mut server] {
        process.stop().await;
    }
    for (_, engine) in engines {
        engine.stop().await;
    }
    nats.terminate().await
}

#[tokio::test]
async fn without_nats_a_router_decides_and_says_what_is_missing() -> Result<()> {
    let (mut server, _indexer, engines) = index(1).await?;
    let address = server.addresses.grpc.to_string();
    let flags = ["--indexer", &address, "--replica-sync", "--nats-url", "nats://127.0.0.1:9"];
    let mut process = Server::router(&flags).await?;
    metrics::ready(process.addresses.http).await?;
    let mut router = connect(process.addresses.grpc).await?;
    until("the worker is known", async || Ok((loads(&mut router).await?.len() == 1).then_some(())))
        .await?;
    let chosen = router.select_worker(request(tokens(0, 1))).await?.into_inner();
    ensure!(chosen.worker_id == "w0" && chosen.index() != pb::IndexOutcome::Refused, "{chosen:?}");
    until("the operator is told", async || {
        let (_, text) = metrics::get(process.addresses.http, "/readyz").await?;
        Ok(text.contains("not well: nats: ").then_some(()))
    })
    .await?;
    process.stop().await;
    server.stop().await;
    for (_, engine) in engines {
        engine.stop().await;
    }
    Ok(())
}
