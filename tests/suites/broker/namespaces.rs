//! Fleets that share an account of one server, each in its namespace, with the same names for everything.

use crate::access::{access_flags, agent};
use crate::agents::{Broker, MODEL};
use crate::fleet::{Holder, check, connect, index, kept, until};
use async_nats::jetstream::{self, Context};
use futures::TryStreamExt;
use kvasir_process::nats::NatsAccess;
use kvasir_proto::broker::{Namespace, SNAPSHOTS, STREAM};
use kvasir_proto::pb;
use kvasir_proto::pb::router_client::RouterClient;
use kvasir_proto::types::WorkerMetrics;
use kvasir_sim::server::Server;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::env;
use tempfile::TempDir;
use tonic::transport::Channel;

const WORKERS: u64 = 2;
const ROUNDS: u32 = 12;
/// So few that snapshots are taken.
const THRESHOLD: &str = "snapshot-threshold=40";

type Router = RouterClient<Channel>;

/// One fleet: agents, an index with checkpoints, and two replicas of the router.
struct Fleet {
    access: NatsAccess,
    holders: Vec<Holder>,
    index: Server,
    folder: TempDir,
}

fn named(name: &str) -> NatsAccess {
    let namespace = if name.is_empty() { Namespace::default() } else { name.parse().expect(name) };
    NatsAccess { namespace, ..NatsAccess::default() }
}

fn flags(broker: &Broker, folder: &TempDir, access: &NatsAccess) -> Vec<String> {
    let mut flags = kept(broker, folder.path(), &["--nats-stream", THRESHOLD]);
    flags.extend(access_flags(access));
    flags
}

impl Fleet {
    async fn start(broker: &Broker, name: &str, seed: u64) -> Self {
        let access = named(name);
        let folder = tempfile::tempdir().expect("a folder");
        let mut holders = Vec::new();
        for number in 0..WORKERS {
            let config = agent(broker, &format!("w.{number}"), &access);
            let mut holder = Holder::with(config, seed + number).await;
            holder.publish(20);
            holders.push(holder);
        }
        let index = index(&flags(broker, &folder, &access)).await;
        Self { access, holders, index, folder }
    }

    async fn router(&self, broker: &Broker) -> (Server, Router) {
        let indexer = self.index.addresses.grpc.to_string();
        let url = broker.server.url();
        let fixed =
            ["--replica-sync", "--timing", "sync-digest-interval=200ms", "--indexer", &indexer];
        let access = access_flags(&self.access);
        let mut flags = [&fixed[..], &["--nats-url", &url]].concat();
        flags.extend(access.iter().map(String::as_str));
        let process = Server::router(&flags).await.expect("a router");
        let url = format!("http://{}", process.addresses.grpc);
        let router = RouterClient::connect(url).await.expect("it listens");
        (process, router)
    }

    async fn checkpoint(&self) {
        let request = pb::CreateCheckpointRequest::default();
        connect(&self.index).await.create_checkpoint(request).await.expect("a checkpoint");
    }

    fn stream(&self) -> String {
        self.access.namespace.stored(STREAM)
    }
}

async fn streams(context: &Context) -> Vec<String> {
    context.stream_names().try_collect().await.expect("the streams")
}

#[expect(clippy::disallowed_methods, reason = "the seed is chosen by whoever runs tests")]
fn seed() -> u64 {
    env::var("KVASIR_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7)
}

/// Random fleets: each index equals its own fleet's truth, whatever the others do.
#[tokio::test]
async fn each_index_has_its_own_fleet_and_nothing_else() {
    let seed = seed();
    println!("KVASIR_SEED={seed}");
    let mut dice = ChaCha8Rng::seed_from_u64(seed);
    let broker = Broker::start().await;
    let context = jetstream::new(broker.client().await);
    let mut fleets = Vec::new();
    for (name, first) in [("", 100), ("east", 200), ("east-1", 300)] {
        fleets.push(Fleet::start(&broker, name, first).await);
    }
    for round in 0..ROUNDS {
        let chosen = dice.random_range(0..fleets.len());
        let fleet = &mut fleets[chosen];
        let holder = &mut fleet.holders[dice.random_range(0..WORKERS as usize)];
        if dice.random_ratio(1, 4) {
            // The lives of the same worker in two fleets are other lives.
            holder.restart(1_000 + u128::from(round), dice.random());
        } else {
            holder.publish(dice.random_range(1..40));
        }
        if dice.random_ratio(1, 4) {
            fleet.index.kill().await;
            fleet.index = index(&flags(&broker, &fleet.folder, &fleet.access)).await;
        }
    }
    for fleet in &fleets {
        check(&fleet.index, &fleet.holders).await;
        fleet.checkpoint().await;
        let shard = format!("{SNAPSHOTS}-shard-0-of-1");
        let bucket = format!("OBJ_{}", fleet.access.namespace.stored(shard));
        until(&bucket, async || streams(&context).await.contains(&bucket)).await;
    }
    // One fleet begins anew: the others keep what they have.
    let before = streams(&context).await.len();
    let others = [1, 2].map(|at: usize| fleets[at].stream());
    let first = &mut fleets[0];
    first.index.kill().await;
    let mut reset = flags(&broker, &first.folder, &first.access);
    reset.push("--reset-states".to_owned());
    first.index = index(&reset).await;
    for fleet in &fleets {
        check(&fleet.index, &fleet.holders).await;
    }
    let left = streams(&context).await;
    assert!(left.len() <= before && others.iter().all(|name| left.contains(name)), "{left:?}");
    for fleet in &mut fleets {
        fleet.index.stop().await;
    }
}

/// What routers of a fleet count at its workers.
async fn requests(router: &mut Router) -> u64 {
    let loads = router.get_loads(pb::GetLoadsRequest::default()).await.expect("an answer");
    loads.into_inner().ranks.iter().map(|rank| rank.routed.unwrap_or_default().requests).sum()
}

async fn waiting(router: &mut Router, worker: &str) -> Option<u64> {
    let loads = router.get_loads(pb::GetLoadsRequest::default()).await.expect("an answer");
    let rank = loads.into_inner().ranks.into_iter().find(|rank| rank.worker_id == worker)?;
    rank.reported?.num_requests_waiting
}

async fn select(router: &mut Router) {
    let request = pb::SelectWorkerRequest {
        model: MODEL.to_owned(),
        token_ids: (0..64).collect(),
        ..pb::SelectWorkerRequest::default()
    };
    router.select_worker(request).await.expect("a worker");
}

#[tokio::test]
async fn routers_hear_replicas_and_loads_of_their_own_fleet() {
    let broker = Broker::start().await;
    let fleets =
        [Fleet::start(&broker, "east", 400).await, Fleet::start(&broker, "west", 500).await];
    let mut routers = Vec::new();
    for fleet in &fleets {
        check(&fleet.index, &fleet.holders).await;
        for _replica in 0..2 {
            let (process, mut router) = fleet.router(&broker).await;
            until("the workers are known", async || {
                let loads = router.get_loads(pb::GetLoadsRequest::default()).await;
                loads.expect("an answer").into_inner().ranks.len() == WORKERS as usize
            })
            .await;
            routers.push((process, router));
        }
    }
    // East has five requests, then west has two: who hears of west's has heard of all of east's that it ever will.
    for (at, count) in [(0, 5), (2, 2)] {
        for _ in 0..count {
            select(&mut routers[at].1).await;
        }
        for replica in [at, at + 1] {
            let router = &mut routers[replica].1;
            until("replicas agree", async || requests(router).await == count).await;
        }
    }
    for (fleet, value) in fleets.iter().zip([3, 9]) {
        let load = WorkerMetrics { num_requests_waiting: Some(value), ..WorkerMetrics::UNKNOWN };
        fleet.holders[0].agent.metrics().publish(0, load).expect("in range");
    }
    for (at, value) in [(0, 3), (1, 3), (2, 9), (3, 9)] {
        let router = &mut routers[at].1;
        until("the load", async || waiting(router, "w.0").await == Some(value)).await;
    }
    for (at, count) in [(0, 5), (1, 5), (2, 2), (3, 2)] {
        assert_eq!(requests(&mut routers[at].1).await, count, "router {at}");
        let expected = if at < 2 { 3 } else { 9 };
        assert_eq!(waiting(&mut routers[at].1, "w.0").await, Some(expected), "router {at}");
    }
    for (process, _) in &mut routers {
        process.stop().await;
    }
    for mut fleet in fleets {
        fleet.index.stop().await;
    }
}
