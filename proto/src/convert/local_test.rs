use super::*;
use crate::code::ErrorCode;
use crate::limits::SEQUENCE_MAX;
use crate::types::{KvEvent, StoredBlock, Tier};
use prost::Message;
use prost::bytes::Bytes;

const BLOCK_SIZE: u32 = 2;
const INCARNATION: Incarnation = Incarnation(7);

fn source() -> LocalSource {
    let partition = PartitionKey::new("m", "t").expect("names");
    let address = WorkerAddress { partition, worker: WorkerId::new("w").expect("a name") };
    LocalSource { address, name: "s".to_owned() }
}

fn refused<T: std::fmt::Debug>(outcome: Result<T, ConvertError>, expected: &str) {
    let error = outcome.expect_err(expected);
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    assert_eq!(error.to_string(), expected);
}

#[test]
fn questions_arrive_as_they_were_asked() {
    for range in [0..=u64::MAX, 5..=5, 5..=9, u64::MAX..=u64::MAX] {
        let query = EventsQuery { source: source(), incarnation: INCARNATION, range };
        let read = EventsQuery::try_from(pb::GetEventsRequest::from(query.clone()));
        assert_eq!(read, Ok(query));
    }
    let some: RankBuckets = [(0, vec![0, 7, 4_095]), (9, vec![3])].into();
    for (incarnation, buckets) in [(None, None), (Some(INCARNATION), Some(some))] {
        let source = source();
        let chunk_records = 8_192;
        let query = LocalDumpQuery { source, incarnation, chunk_records, buckets };
        let read = LocalDumpQuery::try_from(pb::LocalDumpRequest::from(query.clone()));
        assert_eq!(read, Ok(query));
    }
}

#[test]
fn every_refusal_of_a_question_names_the_field_and_the_fix() {
    let asked = EventsQuery { source: source(), incarnation: INCARNATION, range: 5..=9 };
    let asked = pb::GetEventsRequest::from(asked);
    let check = |change: &dyn Fn(&mut pb::GetEventsRequest), expected: &str| {
        let mut request = asked.clone();
        change(&mut request);
        refused(EventsQuery::try_from(request), expected);
    };
    let required = "must be 5 to 18446744073709551615";
    check(&|request| request.model.clear(), "model is required");
    check(&|request| request.tenant.push('\n'), "tenant has a control character: remove it");
    check(&|request| request.worker_id.clear(), "worker_id is required");
    check(&|request| request.source.clear(), "source is required");
    check(&|request| request.source = "x".repeat(257), "source has 257 bytes, the limit is 256");
    check(
        &|request| request.incarnation = Bytes::from_static(&[1; 15]),
        "incarnation has 15 bytes, must be exactly 16",
    );
    check(
        &|request| request.incarnation = Bytes::new(),
        "incarnation has 0 bytes, must be exactly 16",
    );
    check(&|request| request.to_sequence = Some(4), &format!("to_sequence is 4, {required}"));

    let source = source();
    let incarnation = None;
    let asked = LocalDumpQuery { source, incarnation, chunk_records: 1, buckets: None };
    let asked = pb::LocalDumpRequest::from(asked);
    let check = |change: &dyn Fn(&mut pb::LocalDumpRequest), expected: &str| {
        let mut request = asked.clone();
        change(&mut request);
        refused(LocalDumpQuery::try_from(request), expected);
    };
    check(&|request| request.source.clear(), "source is required");
    check(
        &|request| request.incarnation = Bytes::from_static(&[1; 17]),
        "incarnation has 17 bytes, must be exactly 16",
    );
    check(&|request| request.chunk_records = Some(0), "chunk_records is 0, must be 1 to 8192");
    check(
        &|request| request.chunk_records = Some(8_193),
        "chunk_records is 8193, must be 1 to 8192",
    );
    let buckets = |buckets: &[u32]| vec![pb::RankBuckets { dp_rank: 0, buckets: buckets.into() }];
    check(
        &|request| request.buckets = buckets(&[1, 4_096]),
        "buckets[0].buckets is 4096, must be 2 to 4095",
    );
    check(
        &|request| request.buckets = buckets(&[1, 1]),
        "buckets[0].buckets is 1, must be 2 to 4095",
    );
    let unknown = pb::GetLocalStatusRequest { model: "m".to_owned(), ..Default::default() };
    refused(WorkerAddress::try_from(unknown), "worker_id is required");
}

fn events() -> Vec<KvEvent> {
    let block = |name, local| StoredBlock { name: BlockName(name), local: LocalHash(local) };
    let names = vec![BlockName(1), BlockName(2)];
    vec![
        KvEvent::Stored { parent: None, tier: Tier::Device, blocks: vec![block(1, 11)] },
        KvEvent::Stored {
            parent: Some(BlockName(1)),
            tier: Tier::Host,
            blocks: vec![block(2, 12), block(u64::MAX, 0)],
        },
        KvEvent::StoredNames { tier: Tier::Disk, names: names.clone() },
        KvEvent::Removed { tier: Tier::Host, names },
        KvEvent::Cleared,
    ]
}

#[test]
fn ranges_arrive_as_they_were_sent() {
    let batch = PublishedBatch { sequence: SEQUENCE_MAX, rank: 3, events: events() };
    for part in [
        EventsPart::Batch(batch),
        EventsPart::Batch(PublishedBatch { sequence: 0, rank: 0, events: vec![] }),
        EventsPart::End { head: None },
        EventsPart::End { head: Some(0) },
        EventsPart::TooOld { oldest: 0, head: u64::MAX },
        EventsPart::Ahead { head: None },
        EventsPart::Ahead { head: Some(u64::MAX) },
        EventsPart::WrongIncarnation { present: INCARNATION },
    ] {
        let sent = pb::GetEventsResponse::from(part.clone()).encode_to_vec();
        let received = pb::GetEventsResponse::decode(sent.as_slice()).expect("protobuf");
        assert_eq!(EventsPart::read(received, BLOCK_SIZE), Ok(part));
    }
}

#[test]
fn a_malformed_range_is_refused() {
    let check = |part, expected: &str| {
        refused(EventsPart::read(pb::GetEventsResponse { part }, BLOCK_SIZE), expected);
    };
    check(None, "part is required");
    let batch = pb::PublishBatch { events: vec![Default::default()], ..Default::default() };
    check(
        Some(EventsMessage::Batch(batch)),
        "batch.events[0].stored, removed or cleared is required",
    );
    let answer = pb::EventsTooOld { oldest_sequence: 2, head_sequence: 1 };
    check(
        Some(EventsMessage::TooOld(answer)),
        "too_old.head_sequence is 1, must be 2 to 18446744073709551615",
    );
    let answer = pb::WrongIncarnation { incarnation: Bytes::new() };
    check(
        Some(EventsMessage::WrongIncarnation(answer)),
        "wrong_incarnation.incarnation has 0 bytes, must be exactly 16",
    );
}

#[test]
fn dumps_arrive_as_they_were_sent() {
    let unplaced =
        HeldBlock { name: BlockName(0), parent: None, local: None, copies: [0, 1, u32::MAX] };
    let placed = HeldBlock {
        name: BlockName(u64::MAX),
        parent: Some(BlockName(0)),
        local: Some(LocalHash(0)),
        copies: [1, 0, 0],
    };
    let end =
        LocalDumpEnd { incarnation: INCARNATION, watermark: None, records: 0, incomplete: false };
    for part in [
        LocalDumpPart::Chunk { rank: 1_023, records: vec![unplaced, placed] },
        LocalDumpPart::End(end),
        LocalDumpPart::End(LocalDumpEnd {
            watermark: Some(0),
            records: 2,
            incomplete: true,
            ..end
        }),
        LocalDumpPart::WrongIncarnation { present: INCARNATION },
    ] {
        let sent = pb::LocalDumpResponse::from(part.clone()).encode_to_vec();
        let received = pb::LocalDumpResponse::decode(sent.as_slice()).expect("protobuf");
        assert_eq!(LocalDumpPart::try_from(received), Ok(part));
    }
}

#[test]
fn a_malformed_dump_is_refused() {
    let check = |part, expected: &str| {
        refused(LocalDumpPart::try_from(pb::LocalDumpResponse { part }), expected);
    };
    check(None, "part is required");
    let records = vec![pb::BlockRecord::default(); DUMP_CHUNK_RECORDS_MAX + 1];
    let chunk = pb::DumpChunk { dp_rank: 0, records };
    check(
        Some(DumpMessage::Chunk(chunk)),
        "chunk.records has 8193 entries, the limit is 8192: send fewer",
    );
    let orphan = pb::BlockRecord { parent_name: Some(1), ..Default::default() };
    let chunk = pb::DumpChunk { dp_rank: 0, records: vec![Default::default(), orphan] };
    check(
        Some(DumpMessage::Chunk(chunk)),
        "chunk.records[1].parent_name must not be set without local_hash",
    );
    let end = pb::LocalDumpEnd { incarnation: Bytes::from_static(&[1]), ..Default::default() };
    check(Some(DumpMessage::End(end)), "end.incarnation has 1 bytes, must be exactly 16");
}

#[test]
fn a_status_arrives_as_it_was_sent_and_is_checked() {
    let source = LocalSourceStatus {
        name: "s".to_owned(),
        incarnation: INCARNATION,
        first: 3,
        oldest: Some(4),
        head: Some(5),
        journal_batches: 2,
        journal_bytes: 200,
        held_blocks: 6,
        inventory_bytes: 300,
        copy_mode: CopyMode::Counted,
        incomplete: true,
    };
    let empty = LocalSourceStatus { oldest: None, head: None, ..source.clone() };
    let status = LocalStatus { block_size: BLOCK_SIZE, sources: vec![source, empty] };
    let sent = pb::GetLocalStatusResponse::from(status.clone());
    assert_eq!(LocalStatus::try_from(sent.clone()), Ok(status));
    let check = |change: &dyn Fn(&mut pb::GetLocalStatusResponse), expected: &str| {
        let mut response = sent.clone();
        change(&mut response);
        refused(LocalStatus::try_from(response), expected);
    };
    check(&|status| status.block_size = 0, "block_size is 0, must be 1 to 65536");
    check(&|status| status.sources[1].source.clear(), "sources[1].source is required");
    check(&|status| status.sources[0].copy_mode = 0, "sources[0].copy_mode is required");
    check(
        &|status| status.sources[0].copy_mode = 9,
        "sources[0].copy_mode has the unknown value 9",
    );
    check(
        &|status| status.sources = vec![status.sources[0].clone(); 129],
        "sources has 129 entries, the limit is 128: send fewer",
    );
}
