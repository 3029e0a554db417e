use crate::harness::{
    Server, hello, http_get, query, registration, removed, scores, stored, within,
};
use kvasir_proto::hash::bucket;
use kvasir_proto::pb;
use kvasir_proto::pb::dump_worker_response::Part;
use kvasir_proto::pb::indexer_client::IndexerClient;
use kvasir_proto::types::WorkerId;
use std::cmp::Reverse;
use tokio_stream::StreamExt;
use tonic::transport::Channel;

const SHARDS: u8 = 3;

/// A worker, its shard, and the number of its blocks 1, 2, ...
struct Member {
    name: String,
    shard: u8,
    blocks: u32,
}

/// Two workers of each shard, by name. All workers share the first two blocks. The number of further blocks differs.
fn members() -> Vec<Member> {
    let mut members: Vec<Member> = Vec::new();
    for name in (0..).map(|number| format!("worker-{number:02}")) {
        let shard = bucket(&WorkerId::new(&name).expect("a valid id")) % SHARDS;
        if members.iter().filter(|at| at.shard == shard).count() < 2 {
            let blocks = 2 + u32::try_from(members.len()).expect("few") % 3;
            members.push(Member { name, shard, blocks });
        }
        if members.len() == 6 {
            return members;
        }
    }
    unreachable!("names do not end")
}

async fn best(client: &mut IndexerClient<Channel>, top_k: u32) -> pb::FindMatchesResponse {
    let request = pb::FindMatchesRequest { top_k, ..query(&[1, 2, 3, 4]) };
    client.find_matches(request).await.expect("valid").into_inner()
}

async fn dumped_records(client: &mut IndexerClient<Channel>, worker: &str) -> u32 {
    let model = "m".to_owned();
    let worker_id = worker.to_owned();
    let request = pb::DumpWorkerRequest { model, worker_id, ..Default::default() };
    let parts = client.dump_worker(request).await.expect("a known worker").into_inner();
    let parts: Vec<_> = within(parts.collect()).await;
    let records = parts.into_iter().map(|part| match part.expect("a whole dump").part {
        Some(Part::Chunk(chunk)) => chunk.records.len(),
        Some(Part::Meanings(_) | Part::End(_)) | None => 0,
    });
    records.sum::<usize>().try_into().expect("few")
}

/// Requests about a worker go to its shard. Other requests return the union of all shards.
#[tokio::test]
async fn three_shards_answer_as_one() {
    let server = Server::start(&["--index-shards=3"]).await;
    let mut client = server.indexer().await;
    let mut members = members();
    let mut publishers = Vec::new();
    for member in &members {
        client.register_worker(registration(&member.name)).await.expect("a new worker");
        let mut publisher = server.publisher(hello(&member.name, "s", 1)).await;
        let names: Vec<u64> = (1..=member.blocks.into()).collect();
        publisher.acked(1, vec![stored(None, &names)]).await;
        publishers.push(publisher);
    }

    members.sort_by(|a, b| (Reverse(a.blocks), &a.name).cmp(&(Reverse(b.blocks), &b.name)));
    let expected: Vec<_> = members.iter().map(|at| (&*at.name, 0, at.blocks)).collect();
    assert_eq!(scores(&best(&mut client, 0).await), expected);
    for top_k in 1..=6 {
        let answer = best(&mut client, top_k).await;
        assert_eq!(scores(&answer), expected[..top_k as usize]);
        assert_eq!(answer.best_overlap_blocks, 4);
    }

    let stats = client.get_stats(pb::GetStatsRequest {}).await.expect("stats").into_inner();
    let [partition] = &*stats.partitions else { panic!("{:?}", stats.partitions) };
    assert_eq!((partition.workers, partition.pairs, partition.parked), (6, 18, 0));
    let longest = |shard| members.iter().filter(move |at| at.shard == shard).map(|at| at.blocks);
    let blocks = (0..SHARDS).filter_map(|shard| longest(shard).max()).sum::<u32>();
    assert_eq!(partition.blocks, u64::from(blocks), "shards share no blocks");
    let (_, metrics) = server.http("/metrics").await;
    assert!(metrics.contains("index_holdings{model=\"m\",tenant=\"\"} 18\n"), "{metrics}");

    for member in &members {
        assert!(metrics.contains(&format!("worker=\"{}\"", member.name)), "{metrics}");
        assert_eq!(dumped_records(&mut client, &member.name).await, member.blocks);
    }
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn each_of_three_shards_is_written_and_emptied() {
    let server = Server::start(&["--index-shards=3"]).await;
    let mut client = server.indexer().await;
    for Member { name, blocks, .. } in members() {
        client.register_worker(registration(&name)).await.expect("a new worker");
        let mut publisher = server.publisher(hello(&name, "s", 1)).await;
        let names: Vec<u64> = (1..=blocks.into()).collect();
        publisher.acked(1, vec![stored(None, &names)]).await;
        publisher.acked(2, vec![removed(&[1])]).await;
    }
    assert_eq!(scores(&best(&mut client, 0).await), []);
    for Member { name, blocks, .. } in members() {
        let model = "m".to_owned();
        let worker_id = name;
        let request = pb::RemoveWorkerRequest { model, worker_id, ..Default::default() };
        let gone = client.remove_worker(request).await.expect("a worker").into_inner();
        assert_eq!(gone.removed_blocks, u64::from(blocks) - 1);
    }
    let stats = client.get_stats(pb::GetStatsRequest {}).await.expect("stats").into_inner();
    assert_eq!(stats.partitions, []);
    server.stop().await.expect("a clean stop");
}

async fn place(client: &mut IndexerClient<Channel>, worker: &str, names: &[u64]) {
    let placement = pb::RecordPlacementRequest {
        model: "m".to_owned(),
        worker_id: worker.to_owned(),
        local_hashes: query(names).local_hashes,
        ..Default::default()
    };
    within(client.record_placement(placement)).await.expect("a valid placement");
}

/// Speculative blocks are stored beside all shards. Confirmed blocks come from the worker's own shard.
#[tokio::test]
async fn placements_stand_beside_all_of_three_shards() {
    let server = Server::start(&["--index-shards=3"]).await;
    let mut client = server.indexer().await;
    let members = members();
    let mut publishers = Vec::new();
    for member in &members {
        client.register_worker(registration(&member.name)).await.expect("a new worker");
        let mut publisher = server.publisher(hello(&member.name, "s", 1)).await;
        let names: Vec<u64> = (1..=member.blocks.into()).collect();
        publisher.acked(1, vec![stored(None, &names)]).await;
        publishers.push(publisher);
    }
    for member in &members {
        place(&mut client, &member.name, &[9]).await;
    }
    let answer = client.find_matches(query(&[9])).await.expect("valid").into_inner();
    let found = answer.matches.iter().map(|at| (&*at.worker_id, at.matched_blocks));
    let mut expected: Vec<_> = members.iter().map(|at| (&*at.name, 0)).collect();
    expected.sort_unstable();
    assert_eq!(found.collect::<Vec<_>>(), expected);
    for at in &answer.matches {
        assert_eq!((at.speculative_blocks, answer.best_overlap_blocks), (1, 0));
        assert_eq!(at.applied.as_ref().map(|cursor| cursor.sequence), Some(1), "{at:?}");
    }
    // Each worker in turn is best by its placement, independent of the other workers.
    let mut longest = vec![1, 2, 3, 4];
    for (number, member) in (10..).zip(&members) {
        longest.push(number);
        place(&mut client, &member.name, &longest).await;
        let request = pb::FindMatchesRequest { top_k: 1, ..query(&longest) };
        let answer = client.find_matches(request).await.expect("valid").into_inner();
        let [best] = &*answer.matches else { panic!("{:?}", answer.matches) };
        assert_eq!((&best.worker_id, best.matched_blocks), (&member.name, member.blocks));
        assert_eq!(
            (best.speculative_blocks as usize, answer.best_overlap_blocks),
            (longest.len(), 4)
        );
    }
    server.stop().await.expect("a clean stop");
}

/// The number of shards may change at a restart: `auto` depends on the machine.
#[tokio::test]
async fn a_checkpoint_is_restored_with_another_number_of_shards() {
    let folder = tempfile::tempdir().expect("a folder");
    let checkpoints = format!("--checkpoint-dir={}", folder.path().display());
    let server = Server::start(&["--index-shards=1", &checkpoints]).await;
    let mut client = server.indexer().await;
    let mut publishers = Vec::new();
    for member in members() {
        client.register_worker(registration(&member.name)).await.expect("a new worker");
        let mut publisher = server.publisher(hello(&member.name, "s", 1)).await;
        let names: Vec<u64> = (1..=member.blocks.into()).collect();
        publisher.acked(1, vec![stored(None, &names)]).await;
        publishers.push(publisher);
    }
    let before = best(&mut client, 0).await;
    assert_eq!(before.matches.len(), 6);
    drop(publishers);
    server.stop().await.expect("a clean stop");
    for shards in ["--index-shards=3", "--index-shards=2", "--index-shards=auto"] {
        let server = Server::start(&[shards, &checkpoints]).await;
        within(async {
            while http_get(server.addresses.http, "/readyz").await.expect("a side port").0 != 200 {}
        })
        .await;
        let answer = best(&mut server.indexer().await, 0).await;
        assert_eq!(scores(&answer), scores(&before), "{shards}");
        server.stop().await.expect("a clean stop");
    }
}
