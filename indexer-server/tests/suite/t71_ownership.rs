//! One shard of several servers: its own workers, refusals, and redirects to other shards.

use crate::harness::{Server, hello, registration, within};
use kvasir_proto::convert::{Owner, owner};
use kvasir_proto::hash::bucket;
use kvasir_proto::pb;
use kvasir_proto::pb::publish_events_request::Message;
use kvasir_proto::shard::{ShardCount, ShardMap};
use kvasir_proto::types::WorkerId;
use tonic::{Code, Status};

const SHARDS: u32 = 3;
const OWN: u8 = 1;

/// The first name that belongs to shard `shard` of an even map.
fn name_at(shard: u8) -> String {
    let map = ShardMap::even(ShardCount::new(SHARDS).expect("a number"));
    let belongs =
        |name: &String| map.owner(bucket(&WorkerId::new(name).expect("a valid id"))) == shard;
    (0..).map(|number| format!("worker-{number}")).find(belongs).expect("names do not end")
}

#[track_caller]
fn assert_sent_on<T: std::fmt::Debug>(outcome: Result<T, Status>, worker: &str, shard: u8) {
    let refused = outcome.expect_err("it belongs to another shard");
    let bucket = bucket(&WorkerId::new(worker).expect("a valid id"));
    let expected = format!(
        "worker_id {worker:?} is in bucket {bucket}, which belongs to shard {shard}, and this is \
         shard {OWN} (map version 0): ask shard {shard}"
    );
    assert_eq!((refused.code(), refused.message()), (Code::FailedPrecondition, &*expected));
    assert_eq!(owner(refused.metadata()), Some(Owner { bucket, shard, version: 0 }));
}

#[tokio::test]
async fn workers_of_other_shards_are_sent_to_their_owner() {
    let server = Server::start(&["--shard=1/3"]).await;
    let mut client = server.indexer().await;
    let own = name_at(OWN);
    client.register_worker(registration(&own)).await.expect("a worker of this shard");
    let mut publisher = server.publisher(hello(&own, "s", 1)).await;
    publisher.acked(0, vec![crate::harness::stored(None, &[1, 2])]).await;

    for shard in [0, 2] {
        let other = name_at(shard);
        let model = "m".to_owned();
        let worker_id = other.clone();
        assert_sent_on(client.register_worker(registration(&other)).await, &other, shard);
        let dump = pb::DumpWorkerRequest {
            model: model.clone(),
            worker_id: worker_id.clone(),
            ..Default::default()
        };
        assert_sent_on(client.dump_worker(dump).await, &other, shard);
        let placement = pb::RecordPlacementRequest {
            model: model.clone(),
            worker_id: worker_id.clone(),
            local_hashes: vec![1],
            ..Default::default()
        };
        assert_sent_on(client.record_placement(placement).await, &other, shard);
        let reused = pb::ReusedTokens { prompt_tokens: 1, expected_tokens: 0, cached_tokens: 0 };
        let report = pb::ReportReuseRequest {
            model: model.clone(),
            worker_id: worker_id.clone(),
            requests: vec![reused],
            ..Default::default()
        };
        assert_sent_on(client.report_reuse(report).await, &other, shard);
        let removal = pb::RemoveWorkerRequest { model, worker_id, ..Default::default() };
        assert_sent_on(client.remove_worker(removal).await, &other, shard);
        let mut stranger = crate::harness::Publisher::raw(server.channel().await).await;
        stranger.send(Message::Hello(hello(&other, "s", 1))).await;
        assert_sent_on(stranger.answer().await, &other, shard);
    }

    // The server answers for its own workers. Only a client that queries all shards reports missing shards.
    let found = client.find_matches(crate::harness::query(&[1, 2])).await.expect("valid");
    let found = found.into_inner();
    assert_eq!(crate::harness::scores(&found), [(&*own, 0, 2)]);
    assert_eq!(found.missing_shards, [0; 0]);
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn a_server_says_which_shard_it_is() {
    for (flags, expected) in [(&["--shard=1/3"][..], true), (&[], false)] {
        let server = Server::start(flags).await;
        let mut client = server.indexer().await;
        let stats = client.get_stats(pb::GetStatsRequest {}).await.expect("stats").into_inner();
        let list = client.list_workers(pb::ListWorkersRequest::default()).await.expect("a list");
        let info = pb::ShardInfo {
            shard: 1,
            shards: 3,
            map_version: 0,
            owned: vec![pb::BucketRange { first: 86, last: 170 }],
            taken: vec![],
        };
        let info = Some(info).filter(|_| expected);
        assert_eq!((stats.shard, list.into_inner().shard), (info.clone(), info));
        server.stop().await.expect("a clean stop");
    }
}

/// All shards have the same configuration. Each registers only its own workers.
#[tokio::test]
async fn configured_workers_of_other_shards_are_left_to_them() {
    let workers =
        [0, 1, 2].map(|shard| format!("--worker=id={},model=m,block-size=4", name_at(shard)));
    let [first, second, third] = workers.each_ref().map(String::as_str);
    let server = Server::start(&["--shard=1/3", first, second, third]).await;
    let mut client = server.indexer().await;
    let list =
        within(client.list_workers(pb::ListWorkersRequest::default())).await.expect("a list");
    let workers = list.into_inner().workers;
    let names: Vec<_> = workers.iter().map(|at| &*at.worker_id).collect();
    assert_eq!(names, [name_at(OWN)]);
    server.stop().await.expect("a clean stop");
}
