use crate::fleet::{Fleet, MODEL, PATIENCE};
use crate::load::Load;
use indexer_server::config::shard_map_toml;
use kvasir_proto::convert::{Owner, owner};
use kvasir_proto::hash::bucket;
use kvasir_proto::pb;
use kvasir_proto::shard::{ShardCount, ShardMap};
use kvasir_proto::types::{WorkerId, WorkerKey};
use kvasir_sim::client;
use kvasir_sim::server::Server;
use router_client::HedgeConfig;
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use tokio::time::{Instant, sleep};

/// A folder of this test's own, gone with it.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

async fn shard_info(server: &Server) -> pb::ShardInfo {
    let mut indexer = client::connect(server.addresses.grpc).await.expect("a server");
    let stats = indexer.get_stats(pb::GetStatsRequest {}).await.expect("stats");
    stats.into_inner().shard.expect("a shard")
}

async fn has(server: &Server, worker: &str) -> bool {
    let mut indexer = client::connect(server.addresses.grpc).await.expect("a server");
    client::find_worker(&mut indexer, MODEL, worker).await.expect("a list").is_some()
}

/// Looks again and again, as an operator does.
async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    let begun = Instant::now();
    while !condition().await {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// Makes a text the map of all shards.
async fn publish(fleet: &Fleet, file: &Path, text: &str) {
    std::fs::write(file, text).expect("a writable file");
    for server in fleet.shards.iter().flatten() {
        server.signal(Signal::HUP).expect("a process");
    }
}

async fn adopted(fleet: &Fleet, version: u64) {
    for server in fleet.shards.iter().flatten() {
        let adopted = async || shard_info(server).await.map_version == version;
        until("the map is adopted", adopted).await;
    }
}

/// The new owner takes the bucket's workers first, then the map flips: every answer on the way is a
/// whole one.
#[tokio::test]
async fn a_bucket_moves_while_questions_are_asked() {
    let folder = std::env::temp_dir().join(format!("kvasir-map-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let folder = Folder(folder);
    let file = folder.0.join("map");
    let even = ShardMap::even(ShardCount::new(2).expect("a number"));
    // The first version of a file.
    let first = even.moving(0, 0).expect("a shard");
    std::fs::write(&file, shard_map_toml(&first)).expect("a writable file");
    let flag = format!("--shard-map={}", file.display());
    let fleet = Fleet::start(2, 1, &[&flag]).await;
    let wholes = fleet.whole_answers().await;
    let client = fleet.client(PATIENCE, HedgeConfig::default());
    let name = fleet.workers_of(0)[0].to_owned();
    let moved = bucket(&WorkerId::new(&name).expect("a name"));
    let old = &fleet.shards[0][0];
    let new = &fleet.shards[1][0];
    assert!(has(old, &name).await && !has(new, &name).await);
    let load = Load::default();

    let moving = first.clone().moving(moved, 1).expect("a shard");
    let taken = async {
        load.progress(50).await;
        // Release 0.2 also reads the format of earlier builds.
        let lines = format!(
            "version {}\nshards 2\nbuckets 0-127 shard 0\nbuckets 128-255 shard 1\n\
             moving {moved} shard 1\n",
            moving.version()
        );
        publish(&fleet, &file, &lines).await;
        adopted(&fleet, moving.version()).await;
        until("the new owner has the worker", async || has(new, &name).await).await;
        fleet.wait_for_worker(new, &name).await;
        load.progress(50).await;
    };
    load.during(&fleet, &client, &wholes, taken).await;
    load.assert_faultless("both have the worker");
    assert!(has(old, &name).await, "the owner answers until the map flips");

    let flipped = moving.clone().moved(moved, 1).expect("a shard");
    let handed_over = async {
        publish(&fleet, &file, &shard_map_toml(&flipped)).await;
        adopted(&fleet, flipped.version()).await;
        until("the old owner let go", async || !has(old, &name).await).await;
        load.progress(50).await;
    };
    load.during(&fleet, &client, &wholes, handed_over).await;
    load.assert_faultless("the new owner has the worker alone");

    // The old one sends everybody on, and a client learns from that.
    let mut indexer = client::connect(old.addresses.grpc).await.expect("a server");
    let model = MODEL.to_owned();
    let worker_id = name.clone();
    let request = pb::RemoveWorkerRequest { model, worker_id, ..Default::default() };
    let refused = indexer.remove_worker(request).await.expect_err("it is not there");
    let version = flipped.version();
    let expected = Owner { bucket: moved, shard: 1, version };
    assert_eq!(owner(refused.metadata()), Some(expected), "{refused:?}");
    let worker = WorkerKey { worker: WorkerId::new(&name).expect("a name"), rank: 0 };
    let prompt = fleet.prompt(0);
    for _ in 0..2 {
        client.record_placement(&prompt, &worker, None).await.expect("the new owner takes it");
    }
    let answer = client.find(&prompt).await.expect("an answer");
    let placed = answer.overlaps.iter().find(|at| at.worker == worker).expect("it is listed");
    assert_eq!(placed.speculative_blocks, answer.query_blocks);

    // What cannot be used changes nothing, and the next map holds.
    for text in ["nonsense", &even_of_three(), &shard_map_toml(&moving)] {
        publish(&fleet, &file, text).await;
    }
    let back = flipped.moving(moved, 0).expect("a shard");
    publish(&fleet, &file, &shard_map_toml(&back)).await;
    adopted(&fleet, back.version()).await;
    assert!(has(new, &name).await);
    fleet.stop().await;
}

fn even_of_three() -> String {
    let even = ShardMap::even(ShardCount::new(3).expect("a number"));
    shard_map_toml(&even.with_version(9))
}
