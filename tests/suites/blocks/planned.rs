//! A router plans which blocks a worker fetches from another worker's agent; the engine's side acts on it, and the index then
//! knows the blocks at both workers.

use crate::engine::{Engine, hashes, over_socket, prompt};
use crate::peers::{fetch_hashes, owner};
use crate::place::{BLOCK_BYTES, LOOK, MODEL, Neighbour, PATIENCE, Place, WORKER};
use anyhow::{Context, Result, ensure};
use kvasir_proto::pb;
use kvasir_proto::pb::router_client::RouterClient;
use kvasir_sim::client;
use kvasir_sim::demo::metrics;
use kvasir_sim::server::Server;
use tokio::time::{sleep, timeout};
use tonic::Code;
use tonic::transport::Channel;

/// The worker that lacks the blocks.
const OTHER: &str = "x";

struct Router {
    process: Server,
    client: RouterClient<Channel>,
}

impl Router {
    /// A router that knows both workers.
    async fn start(place: &Place, flags: &[&str]) -> Result<Self> {
        let index = place.index.addresses.grpc.to_string();
        let own = ["--indexer", &index, "--timing", "discovery-interval=100ms"];
        let process = Server::router(&[&own, flags].concat()).await?;
        metrics::ready(process.addresses.http).await.with_context(|| process.output())?;
        let address = format!("http://{}", process.addresses.grpc);
        let mut client = RouterClient::connect(address).await?;
        let known = async {
            while client.get_loads(pb::GetLoadsRequest::default()).await?.into_inner().ranks.len()
                < 2
            {
                sleep(LOOK).await;
            }
            anyhow::Ok(())
        };
        timeout(PATIENCE, known).await.context("never two workers")??;
        Ok(Self { process, client })
    }

    /// Chooses the worker that lacks the blocks.
    async fn select(&mut self, locals: &[u64], id: &str) -> Result<pb::SelectWorkerResponse> {
        let request = pb::SelectWorkerRequest {
            model: MODEL.to_owned(),
            request_id: id.to_owned(),
            local_hashes: locals.to_vec(),
            excluded_worker_ids: vec![WORKER.to_owned()],
            explain: true,
            ..Default::default()
        };
        let chosen = self.client.select_worker(request).await?.into_inner();
        ensure!(chosen.worker_id == OTHER, "{chosen:?}");
        Ok(chosen)
    }

    async fn metric(&self, name: &str, label: &str) -> Result<f64> {
        metrics::sum(self.process.addresses.http, name, label).await
    }
}

/// Waits until the index knows so many leading blocks at a worker.
async fn until_at(place: &Place, worker: &str, locals: &[u64], blocks: u32) -> Result<()> {
    let mut index = client::connect(place.index.addresses.grpc).await?;
    let known = async {
        loop {
            let request = pb::FindMatchesRequest {
                model: MODEL.to_owned(),
                local_hashes: locals.to_vec(),
                worker_ids: vec![worker.to_owned()],
                ..Default::default()
            };
            let found = index.find_matches(request).await?.into_inner().matches;
            let found = found.first().map_or(0, |at| at.matched_blocks);
            if found == blocks {
                return anyhow::Ok(());
            }
            sleep(LOOK).await;
        }
    };
    timeout(PATIENCE, known).await.with_context(|| format!("{worker} never has {blocks} blocks"))?
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_fetch_brings_the_blocks_to_the_chosen_worker() -> Result<()> {
    let (a, port) = owner(&[]).await?;
    let b = Neighbour::start(&a, OTHER).await?;
    // One worker has 12 blocks of the prompt's 14, the other one the first two.
    let locals = prompt(1, 14);
    let mut saves = Engine::open(over_socket(&a.socket()).await?).await?;
    saves.save(&locals[..12]).await?;
    let mut engine = Engine::open(over_socket(&b.folder.path().join("socket")).await?).await?;
    engine.save(&locals[..2]).await?;
    until_at(&a, WORKER, &locals, 12).await?;
    until_at(&a, OTHER, &locals, 2).await?;
    let mut router = Router::start(&a, &["--fetch-plans", "--fetch-rates", "prefill=100"]).await?;

    let chosen = router.select(&locals, "r").await?;
    ensure!(chosen.fetch_outcome() == pb::FetchOutcome::Planned, "{chosen:?}");
    let plan = chosen.fetch.clone().context("a plan")?;
    ensure!((plan.first_block, plan.blocks, plan.recompute_blocks) == (2, 10, 2), "{plan:?}");
    let peers: Vec<_> = plan.peers.iter().map(|at| at.address.clone()).collect();
    ensure!(peers == [format!("http://{port}")], "{plan:?}");
    ensure!(plan.peers[0].worker_id == WORKER && plan.peers[0].blocks == 10, "{plan:?}");
    ensure!(plan.block_bytes == BLOCK_BYTES as u64 && !plan.bandwidth_is_measured, "{plan:?}");
    ensure!(plan.compute_us == 400_000 && plan.expected_us < 10_000, "{plan:?}");
    let explained: Vec<_> =
        chosen.explanations.iter().map(|at| (at.worker_id.as_str(), at.fetch_blocks)).collect();
    ensure!(explained == [(WORKER, 0), (OTHER, 10)], "{chosen:?}");

    // What the engine's side does with it.
    let wanted = hashes(&locals)[2..12].to_vec();
    let fetched = fetch_hashes(&mut engine, &peers, wanted).await?;
    ensure!((fetched.leading_blocks, fetched.fetched_blocks) == (10, 10), "{fetched:?}");
    ensure!(engine.load(&locals[..12]).await? == 12, "every byte is as it was saved");
    until_at(&a, OTHER, &locals, 12).await?;
    until_at(&a, WORKER, &locals, 12).await?;

    // The report says how fast it was, and what was expected in the cache.
    let ended = |bytes, micros| pb::FreeRequest {
        model: MODEL.to_owned(),
        request_id: "r".to_owned(),
        fetched_bytes: bytes,
        fetch_us: micros,
        ..Default::default()
    };
    for (report, field) in
        [(ended(Some(1), None), "fetched_bytes"), (ended(None, Some(1)), "fetch_us")]
    {
        let refused = router.client.free(report).await.expect_err(field);
        ensure!(refused.code() == Code::InvalidArgument && refused.message().contains(field));
    }
    ensure!(router.metric("router_fetch_bytes_per_second", "").await? == (1_u64 << 30) as f64);
    let freed = router.client.free(ended(Some(fetched.bytes), Some(2_000))).await?.into_inner();
    ensure!(freed.expected_cached_tokens == Some(12 * 4), "own blocks and those of the plan");
    let bandwidth = router.metric("router_fetch_bytes_per_second", "").await?;
    ensure!(bandwidth == fetched.bytes as f64 * 500.0, "{bandwidth}");

    // There is nothing left to fetch.
    let again = router.select(&locals, "s").await?;
    ensure!(again.fetch.is_none(), "{again:?}");
    ensure!(again.fetch_outcome() == pb::FetchOutcome::NoHolder, "{again:?}");
    for (name, label, expected) in [
        ("router_fetch_outcomes_total", "planned", 1.0),
        ("router_fetch_outcomes_total", "no_holder", 1.0),
        ("router_fetch_blocks_total", "", 10.0),
        ("router_fetch_recompute_blocks_total", "", 2.0),
        ("router_fetch_reported_bytes_total", "", fetched.bytes as f64),
    ] {
        let found = router.metric(name, label).await?;
        ensure!(found == expected, "{name} {label} is {found}, not {expected}");
    }

    // Off, which is the default, nothing is planned.
    let mut plain = Router::start(&a, &["--fetch-rates", "prefill=100"]).await?;
    let chosen = plain.select(&prompt(1, 13), "r").await?;
    ensure!(chosen.fetch.is_none(), "{chosen:?}");
    ensure!(chosen.fetch_outcome() == pb::FetchOutcome::NotAsked, "{chosen:?}");
    for mut process in [router.process, plain.process, b.agent] {
        process.stop().await;
    }
    a.stop().await;
    Ok(())
}
