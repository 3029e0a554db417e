use super::{
    AGENT_ANSWERS, BoundedCodec, Bounds, EXCESS_MAX, REQUESTS, SMALL_REQUEST_BYTES_MAX,
    check_bounds, count,
};
use crate::limits::{
    BATCH_EVENTS_MAX, GRPC_MESSAGE_BYTES_MAX, QUERY_WORKER_IDS_MAX, SYNC_ITEMS_MAX,
};
use crate::pb;
use prost::{Message, Name};
use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FileDescriptorSet};
use std::collections::BTreeSet;
use tonic::Code;
use tonic::codec::Codec;

fn batch(events: usize) -> Vec<u8> {
    let events = vec![pb::PublishedEvent::default(); events];
    let batch = pb::PublishBatch { sequence: 300, dp_rank: 1, events };
    let message = Some(pb::publish_events_request::Message::Batch(batch));
    pb::PublishEventsRequest { message }.encode_to_vec()
}

#[test]
fn entries_are_counted_on_the_wire() {
    let check = |message: &[u8], path: &[u32], expected: usize| {
        assert_eq!(count(message, path).expect("protobuf"), expected, "{message:?} {path:?}");
    };
    check(&[], &[1], 0);
    check(&batch(0), &[2, 3], 0);
    check(&batch(5), &[2, 3], 5);
    check(&batch(5), &[1, 3], 0);
    // Occurrences of the enclosing message are merged.
    check(&[batch(5), batch(7)].concat(), &[2, 3], 12);
    // Field 3 as a varint, as 8 and as 4 bytes: not an entry.
    check(&[0x18, 7, 0x19, 1, 2, 3, 4, 5, 6, 7, 8, 0x1d, 1, 2, 3, 4, 0x1a, 0], &[3], 1);
    // An entry inside an unknown group does not count; an entry after the group does.
    check(&[0x23, 0x1a, 0, 0x24, 0x1a, 0], &[3], 1);
    // A length may be encoded with more bytes than it needs.
    check(&[0x1a, 0x82, 0x80, 0x00, 1, 2, 0x1a, 0], &[3], 2);
}

#[test]
fn malformed_messages_are_errors() {
    for message in [
        // A key without a number, an invalid wire type, a group that has only an end or has no end.
        &[0x02, 0][..],
        &[0x1e],
        &[0x24],
        &[0x23, 0x1a, 0],
        &[0x23, 0x2c],
        // Lengths beyond the end, beyond the address space, beyond 64 bits.
        &[0x1a, 1],
        &[0x1a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0],
        &[0x1a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
        &[0x12, 2, 0x1a, 1, 0],
    ] {
        assert!(count(message, &[2, 3]).is_err(), "{message:?}");
    }
    // Groups nested deeper than the decoder accepts.
    assert!(count(&[0x23; 1_000_000], &[3]).is_err());
}

/// If the decoder accepts a message, counting accepts it too, with the same result.
#[test]
fn every_truncation_is_counted_as_it_is_decoded() {
    let message = [batch(3), batch(200)].concat();
    for end in 0..=message.len() {
        let part = &message[..end];
        let counted = count(part, &[2, 3]);
        match pb::PublishEventsRequest::decode(part) {
            Ok(pb::PublishEventsRequest { message: Some(message) }) => {
                let pb::publish_events_request::Message::Batch(batch) = message else {
                    panic!("a hello at {end}")
                };
                assert_eq!(counted.expect("decoded"), batch.events.len(), "{end}");
            }
            Ok(_) => assert_eq!(counted.expect("decoded"), 0, "{end}"),
            Err(_) => assert!(counted.is_err(), "{end}"),
        }
    }
}

#[test]
fn requests_beyond_their_bounds_are_refused() {
    let check = |name: &str, message: &[u8], code: Code, text: &str| {
        let outcome = check_bounds(name, message);
        let (actual, message) = match &outcome {
            Ok(()) => (Code::Ok, ""),
            Err(status) => (status.code(), status.message()),
        };
        assert_eq!((actual, message), (code, text), "{name}");
    };
    let events = pb::PublishEventsRequest::NAME;
    check(events, &batch(BATCH_EVENTS_MAX * EXCESS_MAX), Code::Ok, "");
    let text = "batch.events has 16385 entries, the limit is 4096: send fewer";
    check(events, &batch(BATCH_EVENTS_MAX * EXCESS_MAX + 1), Code::InvalidArgument, text);
    let worker_ids = vec![String::new(); QUERY_WORKER_IDS_MAX * EXCESS_MAX + 1];
    let query = pb::FindMatchesRequest { worker_ids, ..Default::default() };
    let text = "worker_ids has 16385 entries, the limit is 4096: send fewer";
    check("FindMatchesRequest", &query.encode_to_vec(), Code::InvalidArgument, text);
    let endpoints = vec![pb::EngineEndpoint::default(); 257];
    let registration = pb::RegisterWorkerRequest { endpoints, ..Default::default() };
    let text = "endpoints has 257 entries, the limit is 64: send fewer";
    check("RegisterWorkerRequest", &registration.encode_to_vec(), Code::InvalidArgument, text);
    let items = vec![pb::RouterSyncItem::default(); SYNC_ITEMS_MAX * EXCESS_MAX + 1];
    let sync = pb::RouterSync { items, ..Default::default() };
    let text = "items has 16385 entries, the limit is 4096: send fewer";
    check("RouterSync", &sync.encode_to_vec(), Code::InvalidArgument, text);
    let excluded_worker_ids = vec![String::new(); QUERY_WORKER_IDS_MAX * EXCESS_MAX + 1];
    let select = pb::SelectWorkerRequest { excluded_worker_ids, ..Default::default() };
    let text = "excluded_worker_ids has 16385 entries, the limit is 4096: send fewer";
    check("SelectWorkerRequest", &select.encode_to_vec(), Code::InvalidArgument, text);
    let text = "GetStatsRequest has 1048577 bytes, the limit is 1048576";
    check("GetStatsRequest", &[0; SMALL_REQUEST_BYTES_MAX + 1], Code::InvalidArgument, text);
    check("FindMatchesResponse", &[0xff], Code::Ok, "");
    assert_eq!(check_bounds(events, &[0x12, 9]).expect_err("too short").code(), Code::Internal);
}

/// A message or list that is missing from the tables would have no bounds.
#[test]
fn the_tables_know_every_request_and_every_list_of_messages_or_strings() {
    let set = FileDescriptorSet::decode(pb::FILE_DESCRIPTOR_SET).expect("the package");
    let messages: Vec<_> = set.file.iter().flat_map(|file| &file.message_type).collect();
    let services: Vec<_> = set.file.iter().flat_map(|file| &file.service).collect();
    let short = |name: &str| name.trim_start_matches(".kvasir.v1.").to_owned();
    let methods = services.iter().flat_map(|service| &service.method);
    let requests: BTreeSet<_> = methods.map(|method| short(method.input_type())).collect();
    let agents = ["LocalIndexer", "WorkerLoads"];
    let agents = services.iter().filter(|service| agents.contains(&service.name()));
    let methods = agents.flat_map(|service| &service.method);
    let answers: BTreeSet<_> = methods.map(|method| short(method.output_type())).collect();
    let known = |table: &[Bounds]| -> BTreeSet<String> {
        table.iter().map(|bounds| bounds.message.to_owned()).collect()
    };
    assert_eq!((known(&REQUESTS), known(&AGENT_ANSWERS)), (requests, answers));
    for bounds in REQUESTS.iter().chain(&AGENT_ANSWERS) {
        let mut lists = Vec::new();
        find_lists(&messages, bounds.message, "", &mut Vec::new(), &mut lists);
        let known = bounds.lists.iter().map(|list| (list.name.to_owned(), list.path.to_vec()));
        assert_eq!(known.collect::<Vec<_>>(), lists, "{}", bounds.message);
    }
}

/// Name and path of every list of messages or strings in a message, including nested lists.
fn find_lists(
    messages: &[&DescriptorProto],
    name: &str,
    prefix: &str,
    path: &mut Vec<u32>,
    found: &mut Vec<(String, Vec<u32>)>,
) {
    let message = messages.iter().find(|message| message.name() == name).expect("a message");
    for field in &message.field {
        path.push(u32::try_from(field.number()).expect("positive"));
        let full = format!("{prefix}{}", field.name());
        let repeated = field.label.is_some_and(|label| label == 3);
        let inner = field.type_name().trim_start_matches(".kvasir.v1.");
        let message = field.r#type() == Type::Message;
        if repeated && (message || matches!(field.r#type(), Type::String | Type::Bytes)) {
            found.push((full.clone(), path.clone()));
        }
        if message {
            find_lists(messages, inner, &format!("{full}."), path, found);
        }
        path.pop();
    }
}

#[test]
fn the_largest_message_of_empty_events_is_refused_before_it_is_decoded() {
    let events = GRPC_MESSAGE_BYTES_MAX / 2 - 8;
    let mut message = vec![0x12];
    prost::encoding::encode_varint(u64::try_from(events * 2).expect("small"), &mut message);
    message.extend([0x1a, 0].repeat(events));
    let status = check_bounds("PublishEventsRequest", &message).expect_err("too many");
    assert_eq!(
        status.message(),
        format!("batch.events has {events} entries, the limit is 4096: send fewer")
    );
    let _named = BoundedCodec::<pb::GetStatsResponse, pb::GetStatsRequest>::default().decoder();
}
