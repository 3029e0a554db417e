//! Three routers, two replicas of the index, six engines and a trace, while routers and indexes are killed at random.

use crate::fleet::{BLOCK_SIZE, MODEL, Router, connect, free, index, start_router_at, until};
use anyhow::{Context, Result, bail, ensure};
use futures::stream::{FuturesUnordered, StreamExt};
use kvasir_proto::pb;
use kvasir_tests::client;
use kvasir_tests::demo::metrics;
use kvasir_tests::engine::{MockEngine, Prompt};
use kvasir_tests::nats::NatsServer;
use kvasir_tests::place::free_port;
use kvasir_tests::server::{Addresses, Server};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use tempfile::TempDir;

const SEED: u64 = 16;
const ROUTERS: usize = 3;
const ENGINES: usize = 6;
const REQUESTS: u32 = 600;
const UNDER_WAY: usize = 12;
/// One of so many steps kills a process.
const KILL_EVERY: u32 = 40;
/// Attempts of one request: each goes to another router.
const ATTEMPTS: usize = 3 * ROUTERS;

/// What a request met with.
#[derive(Default)]
struct Told {
    /// Decisions by what the index contributed.
    outcomes: BTreeMap<&'static str, u32>,
    /// Attempts that ended because a router was gone.
    failovers: u32,
}

/// Sends a request to one router after the other until one decides; its worker computes it.
async fn serve(
    addresses: &[SocketAddr],
    engines: &[(String, MockEngine)],
    (number, tokens): (u32, Vec<u32>),
) -> Result<(pb::IndexOutcome, u32)> {
    let mut failovers = 0;
    for attempt in 0..ATTEMPTS {
        let address = addresses[(number as usize + attempt) % addresses.len()];
        let decided = async {
            let mut router = connect(address).await?;
            let request = pb::SelectWorkerRequest {
                model: MODEL.to_owned(),
                token_ids: tokens.clone(),
                ..Default::default()
            };
            Ok::<_, anyhow::Error>((router.select_worker(request).await?.into_inner(), router))
        };
        let Ok((chosen, router)) = decided.await else {
            failovers += 1;
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            continue;
        };
        let engine = engines.iter().find(|(id, _)| *id == chosen.worker_id);
        let (_, engine) = engine.context("a worker that is there")?;
        engine.run(Prompt { tokens, answer: Vec::new() }).await?;
        end(router, &chosen.request_id).await;
        ensure!(
            chosen.index() == pb::IndexOutcome::Answered || !reason(&chosen).is_empty(),
            "{chosen:?}"
        );
        return Ok((chosen.index(), failovers));
    }
    bail!("request {number} found no router in {ATTEMPTS} attempts")
}

/// Why a decision did without the index, in whole or in part.
fn reason(chosen: &pb::SelectWorkerResponse) -> String {
    format!("{}{:?}", chosen.index_error, chosen.missing_shards.first())
}

/// A router that was killed meanwhile does not hear of the end; its replicas forget the request with its lease.
async fn end(mut router: Router, request_id: &str) {
    let _gone = router.free(free(request_id)).await;
}

/// Addresses that a restarted process takes again.
fn addresses() -> Result<Addresses> {
    let at = || Ok::<_, anyhow::Error>(SocketAddr::from(([127, 0, 0, 1], free_port()?)));
    Ok(Addresses { grpc: at()?, http: at()? })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_is_lost_while_processes_are_killed() -> Result<()> {
    println!("seed {SEED}");
    let mut rng = ChaCha8Rng::seed_from_u64(SEED);
    let folder = TempDir::new()?;
    let mut nats = NatsServer::start(folder.path()).await?;
    let (mut one, _indexer, engines) = index(ENGINES).await?;
    let two = Server::start_anywhere().await?;
    register(&two, &engines).await?;
    let replicas = format!("{},{}", one.addresses.grpc, two.addresses.grpc);
    let url = nats.url();
    let flags = [
        "--replica-sync",
        "--nats-url",
        &url,
        "--sync-digest-interval",
        "300ms",
        "--request-lease",
        "3s",
    ];
    let mut routers = Vec::new();
    for _ in 0..ROUTERS {
        routers.push(start_router_at(addresses()?, &replicas, &flags).await?.0);
    }
    let ports: Vec<_> = routers.iter().map(|at| at.addresses.grpc).collect();

    let (mut told, mut under_way) = (Told::default(), FuturesUnordered::new());
    for number in 0..REQUESTS {
        while under_way.len() >= UNDER_WAY {
            note(under_way.next().await, &mut told)?;
        }
        // Twenty conversations, each growing.
        let (conversation, turns) = (rng.random_range(0..20_u32), rng.random_range(1..12));
        let prompt = (0..turns * BLOCK_SIZE as u32).map(|at| conversation * 10_000 + at).collect();
        under_way.push(serve(&ports, &engines, (number, prompt)));
        if rng.random_ratio(1, KILL_EVERY) {
            let victim = rng.random_range(0..=ROUTERS);
            if let Some(router) = routers.get_mut(victim) {
                let again = router.addresses;
                router.kill().await;
                let own = ["--indexer", &replicas, "--discovery-interval", "100ms"];
                *router = Server::router_at(again, &[&own, flags.as_slice()].concat()).await?;
                ensure!(router.addresses == again, "another process took the port");
            } else {
                // The first index goes away and comes back with nothing: its engines are registered again.
                let again = one.addresses;
                one.kill().await;
                one = Server::start(again.grpc, again.http).await?;
                register(&one, &engines).await?;
            }
        }
    }
    while !under_way.is_empty() {
        note(under_way.next().await, &mut told)?;
    }
    drop(under_way);
    println!("outcomes {:?}, failovers {}", told.outcomes, told.failovers);
    ensure!(told.outcomes.values().sum::<u32>() == REQUESTS, "{:?}", told.outcomes);
    ensure!(told.failovers > 0, "no router was killed under a request: the test tries too little");

    // Nothing is under way: all routers agree on that, once leases of killed routers are over.
    for router in &routers {
        metrics::ready(router.addresses.http).await?;
        let mut client = connect(router.addresses.grpc).await?;
        until("no ghost load", async || {
            let loads = crate::fleet::loads(&mut client).await?;
            Ok((loads.len() == ENGINES && loads.iter().all(|(_, at)| *at == 0)).then_some(()))
        })
        .await?;
    }
    stop(routers, [one, two], engines).await;
    nats.terminate().await
}

/// Registers all engines at a server that knows none.
async fn register(server: &Server, engines: &[(String, MockEngine)]) -> Result<()> {
    let mut indexer = client::connect(server.addresses.grpc).await?;
    for (id, engine) in engines {
        client::register_engine(&mut indexer, (MODEL, id), BLOCK_SIZE, engine).await?;
    }
    Ok(())
}

fn note(served: Option<Result<(pb::IndexOutcome, u32)>>, told: &mut Told) -> Result<()> {
    let (outcome, failovers) = served.context("a request under way")??;
    *told.outcomes.entry(outcome.as_str_name()).or_default() += 1;
    told.failovers += failovers;
    Ok(())
}

async fn stop(routers: Vec<Server>, servers: [Server; 2], engines: Vec<(String, MockEngine)>) {
    for mut process in routers.into_iter().chain(servers) {
        process.stop().await;
    }
    for (_, engine) in engines {
        engine.stop().await;
    }
}
