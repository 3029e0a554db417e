use crate::harness::{Server, assert_refused, hello, registration, removed, stored, within};
use kvasir_proto::pb;
use kvasir_proto::pb::dump_worker_response::Part;
use kvasir_proto::pb::indexer_client::IndexerClient;
use std::collections::BTreeMap;
use tokio_stream::StreamExt;
use tonic::Code;
use tonic::transport::Channel;

fn request(worker: &str) -> pb::DumpWorkerRequest {
    pb::DumpWorkerRequest {
        model: "m".to_owned(),
        worker_id: worker.to_owned(),
        ..Default::default()
    }
}

#[derive(Debug, Default)]
struct Dump {
    chunks: Vec<pb::DumpChunk>,
    ends: Vec<pb::DumpEnd>,
}

async fn dump(client: &mut IndexerClient<Channel>, request: pb::DumpWorkerRequest) -> Dump {
    let parts = client.dump_worker(request).await.expect("a known worker").into_inner();
    let parts: Vec<_> = within(parts.collect()).await;
    let mut dump = Dump::default();
    for part in parts {
        match part.expect("a whole dump").part.expect("a part") {
            Part::Chunk(chunk) => {
                assert!(dump.ends.is_empty(), "chunks come before the ends");
                dump.chunks.push(chunk);
            }
            Part::Meanings(meanings) => panic!("no name means more than its tokens: {meanings:?}"),
            Part::End(end) => dump.ends.push(end),
        }
    }
    dump
}

#[tokio::test]
async fn a_dump_has_parents_first_in_bounded_chunks_then_an_end_per_source() {
    let (server, mut client) = Server::with_worker(&[]).await;
    let mut one = server.publisher(hello("w", "one", 1)).await;
    let names: Vec<u64> = (1..=100).collect();
    one.acked(4, vec![stored(None, &names)]).await;
    let mut two = server.publisher(hello("w", "two", 2)).await;
    two.acked(9, vec![stored(None, &[1, 2]), stored(Some(500), &[501])]).await;
    two.acked(10, vec![removed(&[2])]).await;

    let dump =
        dump(&mut client, pb::DumpWorkerRequest { chunk_records: Some(7), ..request("w") }).await;
    assert!(dump.chunks.iter().all(|chunk| (1..=7).contains(&chunk.records.len())));
    let mut seen = BTreeMap::new();
    let mut counts = [0_u64; 2];
    for record in dump.chunks.iter().flat_map(|chunk| &chunk.records) {
        counts[record.source_index as usize] += 1;
        if record.placed {
            let parent_seen = record.parent_name.is_none_or(|parent| seen.contains_key(&parent));
            assert!(parent_seen, "{record:?}");
            assert_eq!(record.local_hash, Some(record.name * 10));
        } else {
            assert_eq!((record.name, record.parent_name), (501, Some(500)));
        }
        assert_eq!((record.device_copies, record.host_copies, record.disk_copies), (1, 0, 0));
        seen.insert(record.name, ());
    }
    assert_eq!(seen.len(), 101);
    let ends: Vec<_> = dump.ends.iter().map(|end| (end.source_index, end.records)).collect();
    assert_eq!(ends, [(0, counts[0]), (1, counts[1])]);
    let mut sources: Vec<_> = dump
        .ends
        .iter()
        .map(|end| (&*end.source, end.watermark.as_ref().map(|at| at.sequence), end.records))
        .collect();
    sources.sort_unstable();
    assert_eq!(sources, [("one", Some(4), 100), ("two", Some(10), 2)]);
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn an_empty_dump_and_no_dump_are_different_answers() {
    let (server, mut client) = Server::with_worker(&[]).await;
    let rank = pb::DumpWorkerRequest { dp_rank: Some(5), ..request("w") };
    let no_rank = "worker w has no rank 5";
    assert_refused(client.dump_worker(rank.clone()).await, Code::NotFound, no_rank);
    let empty = dump(&mut client, request("w")).await;
    assert!(empty.chunks.is_empty() && empty.ends.is_empty(), "{empty:?}");
    server.publisher(hello("w", "s", 1)).await.acked(1, vec![]).await;
    let fed = dump(&mut client, request("w")).await;
    assert_eq!((fed.chunks.len(), fed.ends.len()), (0, 1));
    assert_refused(client.dump_worker(request("x")).await, Code::NotFound, "worker x is not known");
    let bad = pb::DumpWorkerRequest { chunk_records: Some(0), ..request("w") };
    assert_refused(
        client.dump_worker(bad).await,
        Code::InvalidArgument,
        "chunk_records is 0, must be 1 to 8192",
    );
    assert_refused(client.dump_worker(rank).await, Code::NotFound, no_rank);
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn a_dump_that_is_cut_off_or_dropped_leaves_room_for_the_next() {
    let (server, mut client) = Server::with_worker(&[]).await;
    client.register_worker(registration("v")).await.expect("a second worker");
    let mut publisher = server.publisher(hello("w", "s", 1)).await;
    let names: Vec<u64> = (1..=20_000).collect();
    publisher.acked(1, vec![stored(None, &names)]).await;
    let small = || pb::DumpWorkerRequest { chunk_records: Some(1), ..request("w") };
    for _ in 0..10 {
        let mut parts = client.dump_worker(small()).await.expect("room").into_inner();
        within(parts.next()).await.expect("a first part").expect("a chunk");
    }
    let mut parts = client.dump_worker(small()).await.expect("room").into_inner();
    within(parts.next()).await.expect("a first part").expect("a chunk");
    let cleared = pb::published_event::Event::Cleared(pb::BlocksCleared::default());
    publisher.acked(2, vec![cleared]).await;
    let rest: Vec<_> = within(parts.collect()).await;
    let status = rest.last().expect("an error").as_ref().expect_err("cut off");
    assert_eq!(status.code(), Code::Aborted, "{status:?}");
    dump(&mut client, request("w")).await;
    server.stop().await.expect("a clean stop");
}
