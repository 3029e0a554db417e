//! Three shards of two replicas each, fed by JetStream, with their map in the key-value store.

use crate::agents::{Broker, MODEL, PATIENCE};
use crate::engine::{BLOCK_SIZE, prompt_tokens};
use crate::fleet::{Holder, NOBODY, check, connect, index, kept, known};
use async_nats::jetstream::{self, kv};
use indexer_server::config::shard_map_toml;
use kvasir_proto::broker::{SHARD_MAP, SHARDS};
use kvasir_proto::hash::bucket;
use kvasir_proto::pb::{CreateCheckpointRequest, GetStatsRequest};
use kvasir_proto::shard::{ShardCount, ShardMap};
use kvasir_proto::types::WorkerId;
use kvasir_sim::client;
use kvasir_sim::server::Server;
use kvbm_agent::broker::Delivery;
use router_client::{ClientConfig, HedgeConfig, Prompt, ShardedClient, ShardedConfig};
use std::cell::RefCell;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::time::Instant;

const SHARD_COUNT: u32 = 3;
const REPLICAS: usize = 2;
/// Questions between two changes.
const QUESTIONS: u64 = 50;

struct Sharded {
    broker: Broker,
    holders: Vec<Holder>,
    /// By shard and replica.
    servers: Vec<Vec<(Server, TempDir)>>,
    map: ShardMap,
}

impl Sharded {
    async fn start() -> Self {
        let broker = Broker::start().await;
        let map = ShardMap::even(ShardCount::new(SHARD_COUNT).expect("a number"));
        // The first version that is anybody's: every bucket stays where it is.
        let map = map.moving(0, 0).expect("a shard");
        let fleet = Self { broker, holders: Vec::new(), servers: Vec::new(), map };
        fleet.publish_map().await;
        fleet.filled().await
    }

    async fn filled(mut self) -> Self {
        for number in 0..9 {
            self.holders.push(Holder::start(&self.broker, number, Delivery::Jetstream, None).await);
        }
        for shard in 0..SHARD_COUNT {
            let mut replicas = Vec::new();
            for _ in 0..REPLICAS {
                let folder = tempfile::tempdir().expect("a folder");
                replicas.push((index(&self.flags(shard as usize, &folder)).await, folder));
            }
            self.servers.push(replicas);
        }
        self
    }

    fn flags(&self, shard: usize, folder: &TempDir) -> Vec<String> {
        let place = format!("{shard}/{SHARD_COUNT}");
        kept(&self.broker, folder.path(), &["--shard", &place, "--shard-map", "nats"])
    }

    async fn publish_map(&self) {
        put_map(&self.broker, &self.map).await;
    }

    /// The engines of a shard's workers.
    fn holders_of(&mut self, shard: usize) -> Vec<Holder> {
        let owner = |holder: &Holder| {
            self.map.owner(bucket(&WorkerId::new(&holder.worker).expect("a name")))
        };
        let (own, others) =
            self.holders.drain(..).partition(|holder| usize::from(owner(holder)) == shard);
        self.holders = others;
        own
    }

    async fn check_shard(&mut self, shard: usize) {
        let own = self.holders_of(shard);
        assert!(!own.is_empty(), "a shard without workers");
        for (server, _) in &self.servers[shard] {
            check(server, &own).await;
        }
        self.holders.extend(own);
    }

    fn client(&self) -> ShardedClient {
        let client = ClientConfig { deadline: PATIENCE, ..ClientConfig::default() };
        let url = |(server, _): &(Server, TempDir)| format!("http://{}", server.addresses.grpc);
        let urls = self.servers.iter().map(|replicas| replicas.iter().map(url).collect::<Vec<_>>());
        let config = ShardedConfig { client, hedge: HedgeConfig::default() };
        ShardedClient::connect(urls, &config).expect("URLs")
    }

    async fn stop(mut self) {
        for (server, _) in self.servers.iter_mut().flatten() {
            server.stop().await;
        }
    }
}

async fn put_map(broker: &Broker, map: &ShardMap) {
    let context = jetstream::new(broker.client().await);
    let bucket = match context.get_key_value(SHARDS).await {
        Ok(bucket) => bucket,
        Err(_missing) => {
            let config = kv::Config { bucket: SHARDS.to_owned(), ..kv::Config::default() };
            context.create_key_value(config).await.expect("a bucket")
        }
    };
    bucket.put(SHARD_MAP, shard_map_toml(map).into()).await.expect("it is written");
}

/// Questions that go on, and what was wrong with answers.
#[derive(Default)]
struct Load {
    asked: watch::Sender<u64>,
    faults: RefCell<Vec<String>>,
}

impl Load {
    /// Asks until `during` is over.
    async fn during<R>(&self, client: &ShardedClient, during: impl Future<Output = R>) -> R {
        tokio::select! {
            over = during => over,
            () = self.ask(client) => unreachable!("it goes on"),
        }
    }

    async fn ask(&self, client: &ShardedClient) {
        for number in 0.. {
            let tokens = prompt_tokens(number % 12);
            let prompt = Prompt::new(MODEL, BLOCK_SIZE, &tokens);
            match client.find(&prompt).await {
                Ok(answer) if answer.missing_shards.is_empty() => {}
                Ok(answer) => {
                    self.faults.borrow_mut().push(format!("missing: {:?}", answer.missing_shards));
                }
                Err(error) => self.faults.borrow_mut().push(error.to_string()),
            }
            self.asked.send_modify(|asked| *asked += 1);
            tokio::task::yield_now().await;
        }
    }

    async fn progress(&self) {
        let mut asked = self.asked.subscribe();
        let until = *asked.borrow() + QUESTIONS;
        asked.wait_for(|asked| *asked >= until).await.expect("we hold the sender");
    }

    #[track_caller]
    fn assert_faultless(&self, when: &str) {
        assert_eq!(*self.faults.borrow(), Vec::<String>::new(), "{when}");
    }
}

#[tokio::test]
async fn shards_and_replicas_by_a_broker_are_killed_in_turn_and_missed_by_nobody() {
    let mut fleet = Sharded::start().await;
    for shard in 0..SHARD_COUNT as usize {
        fleet.check_shard(shard).await;
    }
    let load = Load::default();
    for (shard, replica) in (0..SHARD_COUNT as usize).flat_map(|shard| [(shard, 0), (shard, 1)]) {
        let when = format!("replica {replica} of shard {shard}");
        let client = fleet.client();
        load.during(&client, load.progress()).await;
        let (server, _) = &mut fleet.servers[shard][replica];
        load.during(&client, server.kill()).await;
        for holder in &mut fleet.holders {
            holder.publish(10);
        }
        load.during(&client, load.progress()).await;
        load.assert_faultless(&format!("{when} is dead"));
        let begun = Instant::now();
        let flags = fleet.flags(shard, &fleet.servers[shard][replica].1);
        let (grpc, http) = {
            let addresses = fleet.servers[shard][replica].0.addresses;
            (addresses.grpc, addresses.http)
        };
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let back = async {
            let server = Server::start_with(grpc, http, &flags).await.expect("a server");
            (server, begun.elapsed())
        };
        let (server, listening) = load.during(&client, back).await;
        fleet.servers[shard][replica].0 = server;
        load.during(&client, fleet.check_shard(shard)).await;
        let exact = begun.elapsed();
        load.assert_faultless(&format!("{when} is back"));
        println!("{when}: listens after {listening:?}, exact after {exact:?}");
    }
    moved(&mut fleet).await;
    fleet.stop().await;
}

/// A worker's bucket goes to the next shard by two versions of the map.
async fn moved(fleet: &mut Sharded) {
    let holder = fleet.holders.swap_remove(0);
    let bucket = bucket(&WorkerId::new(&holder.worker).expect("a name"));
    let from = usize::from(fleet.map.owner(bucket));
    let to = (from + 1) % SHARD_COUNT as usize;
    fleet.map = fleet.map.clone().moving(bucket, to as u32).expect("a shard");
    fleet.publish_map().await;
    for (server, _) in &fleet.servers[to] {
        check(server, std::slice::from_ref(&holder)).await;
    }
    fleet.map = fleet.map.clone().moved(bucket, to as u32).expect("a shard");
    fleet.publish_map().await;
    let deadline = Instant::now() + PATIENCE;
    for (server, _) in &fleet.servers[from] {
        let mut indexer = connect(server).await;
        while client::find_worker(&mut indexer, MODEL, &holder.worker)
            .await
            .expect("an answer")
            .is_some()
        {
            assert!(Instant::now() < deadline, "the old owner keeps it");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let stats = indexer.get_stats(GetStatsRequest {}).await.expect("stats").into_inner();
        assert_eq!(stats.shard.expect("a shard").map_version, fleet.map.version());
    }
    for (server, _) in &fleet.servers[to] {
        check(server, std::slice::from_ref(&holder)).await;
    }
    fleet.holders.push(holder);
}

/// A shard that was down while the map changed: what its checkpoint has is judged by the map that there is,
/// not by equal stretches. Nobody can be asked.
#[tokio::test]
async fn a_shard_restores_what_the_map_gives_it() {
    let broker = Broker::start().await;
    let even = ShardMap::even(ShardCount::new(2).expect("a number"));
    let bucket_of = |number: u64| bucket(&WorkerId::new(&format!("w.{number}")).expect("a name"));
    let of = |shard: u8| (0..).find(|number| even.owner(bucket_of(*number)) == shard);
    let [own, other] = [of(0).expect("a worker"), of(1).expect("a worker")];
    let came = even.moved(bucket_of(other), 0).expect("a shard");
    put_map(&broker, &came).await;
    let folder = tempfile::tempdir().expect("a folder");
    let flags = kept(&broker, folder.path(), &["--shard", "0/2", "--shard-map", "nats"]);
    let mut holders = Vec::new();
    for number in [own, other] {
        holders.push(Holder::start(&broker, number, Delivery::Jetstream, Some(NOBODY)).await);
    }
    let mut server = index(&flags).await;
    check(&server, &holders).await;
    let mut indexer = connect(&server).await;
    indexer.create_checkpoint(CreateCheckpointRequest::default()).await.expect("a checkpoint");
    server.kill().await;
    let gone = came.moved(bucket_of(own), 1).expect("a shard");
    put_map(&broker, &gone).await;
    let mut server = index(&flags).await;
    let leaves = holders.remove(0).worker;
    assert_eq!(known(&server, &leaves).await, None);
    check(&server, &holders).await;
    assert_eq!(known(&server, &leaves).await, None);
    server.stop().await;
}
