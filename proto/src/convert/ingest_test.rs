use super::*;
use crate::code::ErrorCode;
use prost::bytes::Bytes;

const BLOCK_SIZE: u32 = 2;

fn hello() -> pb::PublishHello {
    pb::PublishHello {
        model: "m".to_owned(),
        worker_id: "w".to_owned(),
        source: "s".to_owned(),
        block_size: BLOCK_SIZE,
        incarnation: Bytes::from_static(&[7; 16]),
        ..Default::default()
    }
}

fn stored() -> pb::BlocksStored {
    pb::BlocksStored { names: vec![1, 2], local_hashes: vec![11, 12], ..Default::default() }
}

fn tokens() -> pb::BlocksStored {
    let token_ids_le = Bytes::from_static(&[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0]);
    pb::BlocksStored { local_hashes: vec![], token_ids_le, ..stored() }
}

fn batch(events: Vec<Event>) -> pb::PublishBatch {
    let events = events.into_iter().map(|event| pb::PublishedEvent { event: Some(event) });
    pb::PublishBatch { sequence: 5, dp_rank: 1, events: events.collect() }
}

fn read_one(event: Event) -> Result<KvEvent, String> {
    let batch = PublishedBatch::read(batch(vec![event]), BLOCK_SIZE);
    let mut batch = batch.map_err(|error| {
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
        error.to_string()
    })?;
    assert_eq!((batch.sequence, batch.rank, batch.events.len()), (5, 1, 1));
    Ok(batch.events.remove(0))
}

#[test]
fn every_form_of_a_stored_event() {
    let check = |stored, expected| {
        assert_eq!(read_one(Event::Stored(stored)), Ok(expected));
    };
    let block = |name, local| StoredBlock { name: BlockName(name), local: LocalHash(local) };
    check(
        pb::BlocksStored { parent_name: Some(9), tier: pb::Tier::Host.into(), ..stored() },
        KvEvent::Stored {
            parent: Some(BlockName(9)),
            tier: Tier::Host,
            blocks: vec![block(1, 11), block(2, 12)],
        },
    );
    let namespace = Namespace { lora_name: "lora", cache_salt: "" };
    let mut locals = Vec::new();
    local_hashes(&tokens().token_ids_le, 2, namespace.seed(), &[], &mut locals);
    check(
        pb::BlocksStored { lora_name: "lora".to_owned(), ..tokens() },
        KvEvent::Stored {
            parent: None,
            tier: Tier::Device,
            blocks: vec![block(1, locals[0].0), block(2, locals[1].0)],
        },
    );
    check(
        pb::BlocksStored { local_hashes: vec![], ..stored() },
        KvEvent::StoredNames { tier: Tier::Device, names: vec![BlockName(1), BlockName(2)] },
    );
}

#[test]
fn every_refusal_of_a_stored_event_names_the_field_and_the_fix() {
    let check = |stored, expected: &str| {
        let error = read_one(Event::Stored(stored));
        assert_eq!(error, Err(format!("events[0].stored.{expected}")));
    };
    check(pb::BlocksStored { names: vec![], ..stored() }, "names is required");
    check(
        pb::BlocksStored { names: vec![0; 65_537], ..stored() },
        "names has 65537 entries, the limit is 65536: send fewer",
    );
    check(pb::BlocksStored { tier: 9, ..stored() }, "tier has the unknown value 9");
    check(
        pb::BlocksStored { local_hashes: vec![1], ..stored() },
        "local_hashes has 1 entries, must be 2, to match the names",
    );
    check(
        pb::BlocksStored { local_hashes: vec![1], ..tokens() },
        "token_ids_le must not be set together with local_hashes: send one of them",
    );
    check(
        pb::BlocksStored { token_ids_le: Bytes::from_static(&[0; 12]), ..tokens() },
        "token_ids_le has 3 tokens, must be 4, to match the names",
    );
    check(
        pb::BlocksStored { token_ids_le: Bytes::from_static(&[0; 13]), ..tokens() },
        "token_ids_le has 13 bytes, must be a multiple of 4: little-endian u32",
    );
    check(
        pb::BlocksStored { lora_name: "a".to_owned(), ..stored() },
        "lora_name must not be set without token_ids_le: local hashes contain it",
    );
    check(
        pb::BlocksStored { parent_name: Some(1), local_hashes: vec![], ..stored() },
        "parent_name must not be set without local_hashes or token_ids_le",
    );
}

#[test]
fn removals_clears_and_empty_events() {
    let removed =
        pb::BlocksRemoved { names: vec![3], tier: pb::Tier::Disk.into(), all_copies: false };
    assert_eq!(
        read_one(Event::Removed(removed.clone())),
        Ok(KvEvent::Removed { tier: Tier::Disk, names: vec![BlockName(3)] })
    );
    assert_eq!(
        read_one(Event::Removed(pb::BlocksRemoved { all_copies: true, ..removed })),
        Ok(KvEvent::Gone { tier: Tier::Disk, names: vec![BlockName(3)] })
    );
    assert_eq!(
        read_one(Event::Removed(pb::BlocksRemoved::default())),
        Err("events[0].removed.names is required".to_owned())
    );
    assert_eq!(read_one(Event::Cleared(pb::BlocksCleared::default())), Ok(KvEvent::Cleared));
    for tier in Tier::ALL {
        let cleared = KvEvent::ClearedTier(tier);
        assert_eq!(read_one(published(&cleared)), Ok(cleared));
    }
    let empty =
        pb::PublishBatch { events: vec![pb::PublishedEvent { event: None }], ..Default::default() };
    let error = PublishedBatch::read(empty, BLOCK_SIZE).expect_err("an empty event");
    assert_eq!(error.to_string(), "events[0].stored, removed or cleared is required");
    let long = pb::PublishBatch {
        events: vec![pb::PublishedEvent { event: None }; 4_097],
        ..Default::default()
    };
    let error = PublishedBatch::read(long, BLOCK_SIZE).expect_err("a long batch");
    assert_eq!(error.to_string(), "events has 4097 entries, the limit is 4096: send fewer");
}

#[test]
fn a_hello_is_checked() {
    let read = |hello| {
        let message = Some(pb::publish_events_request::Message::Hello(hello));
        Publication::try_from(pb::PublishEventsRequest { message })
    };
    let check = |hello, expected: &str| {
        assert_eq!(read(hello).expect_err(expected).to_string(), expected);
    };
    check(pb::PublishHello { source: String::new(), ..hello() }, "hello.source is required");
    check(pb::PublishHello { model: String::new(), ..hello() }, "hello.model is required");
    check(pb::PublishHello { worker_id: String::new(), ..hello() }, "hello.worker_id is required");
    check(
        pb::PublishHello { block_size: 0, ..hello() },
        "hello.block_size is 0, must be 1 to 65536",
    );
    check(
        pb::PublishHello { incarnation: Bytes::from_static(&[0; 15]), ..hello() },
        "hello.incarnation has 15 bytes, must be exactly 16",
    );
    let Ok(Publication::Hello(hello)) = read(hello()) else { panic!("a valid hello") };
    assert_eq!(hello.copy_mode, CopyMode::Set);
    assert_eq!(hello.incarnation.to_string(), "07".repeat(16));
    let error = Publication::try_from(pb::PublishEventsRequest { message: None });
    assert_eq!(error.expect_err("no message").to_string(), "hello, batch or heartbeat is required");
}

#[test]
fn reasons_of_heartbeats_are_read() {
    let reason = |reason: i32, count, example: &str| pb::StateReason {
        reason,
        count,
        example: example.to_owned(),
        age_ms: Some(7),
        may_be_high: false,
    };
    let known = Reason::UnreadableEvent as i32;
    let later = 999;
    let stated = vec![reason(known, 3, "kind=7"), reason(later, 1, ""), reason(known, 0, "kind=8")];
    let heartbeat = pb::PublishHeartbeat { reasons: stated, ..Default::default() };
    let read = Heartbeat::try_from(heartbeat).expect("a heartbeat");
    let expected = StateReason {
        reason: Reason::UnreadableEvent,
        count: 4,
        example: "kind=7".into(),
        since: Duration::ZERO,
    };
    assert_eq!(read.reasons, [expected]);
    assert_eq!(Heartbeat::try_from(pb::PublishHeartbeat::from(read.clone())), Ok(read));
    let doubt = pb::StateReason { may_be_high: true, ..reason(later, 2, "") };
    let later = pb::PublishHeartbeat { reasons: vec![doubt], ..Default::default() };
    let read = Heartbeat::try_from(later).expect("a heartbeat");
    assert_eq!((read.reasons[0].reason, read.reasons[0].count), (Reason::UnknownEvent, 2));
    // Truncated at the end of a character.
    let long = pb::PublishHeartbeat {
        reasons: vec![reason(1, 1, &"é".repeat(200))],
        ..Default::default()
    };
    let read = Heartbeat::try_from(long).expect("a heartbeat");
    assert_eq!(read.reasons[0].example.len(), REASON_EXAMPLE_BYTES_MAX);
    let many = vec![reason(1, 1, ""); HEARTBEAT_REASONS_MAX + 1];
    let many = pb::PublishHeartbeat { reasons: many, ..Default::default() };
    let error = Heartbeat::try_from(many).expect_err("refused");
    assert_eq!(error.to_string(), "reasons has 65 entries, the limit is 64: send fewer");
}
