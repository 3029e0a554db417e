//! Any bytes as a message of the contract: within its bounds, converted without a panic, and the same after a round
//! trip where there is one. The first byte chooses the message.

use bytes::Bytes;
use kvasir_proto::codec::decode;
use kvasir_proto::convert::{
    BrokerMessage, DigestsPart, EventsPart, FindRequest, Hello, ListQuery, LocalDumpPart,
    Placement, Publication, Registration, ReuseReport, WorkerLoad,
};
use kvasir_proto::pb;
use prost::Message;

/// Tokens per block of the worker whose events are read.
const BLOCK_SIZE: u32 = 4;

pub(super) fn target(input: &[u8]) -> bool {
    let Some((&choice, bytes)) = input.split_first() else { return false };
    let bytes = Bytes::copy_from_slice(bytes);
    match choice % 11 {
        0 => FindRequest::read(&bytes).is_ok_and(|request| request.query.is_ok()),
        1 => registration(&bytes),
        2 => broker_message(bytes),
        3 => decode::<pb::PublishEventsRequest>(bytes)
            .is_ok_and(|request| Publication::try_from(request).is_ok()),
        4 => EventsPart::decode(bytes, BLOCK_SIZE).is_ok(),
        5 => DigestsPart::decode(bytes).is_ok(),
        6 => decode::<pb::ListWorkersRequest>(bytes)
            .is_ok_and(|request| ListQuery::try_from(request).is_ok()),
        7 => decode::<pb::RecordPlacementRequest>(bytes)
            .is_ok_and(|request| Placement::try_from(request).is_ok()),
        10 => decode::<pb::ReportReuseRequest>(bytes)
            .is_ok_and(|request| ReuseReport::try_from(request).is_ok()),
        8 => decode::<pb::WorkerLoad>(bytes).is_ok_and(|load| WorkerLoad::try_from(load).is_ok()),
        _ => {
            let hello = decode::<pb::PublishHello>(bytes.clone());
            let is_hello = hello.is_ok_and(|hello| Hello::try_from(hello).is_ok());
            is_hello || LocalDumpPart::decode(bytes).is_ok()
        }
    }
}

/// What a checkpoint stores of a registration is what is read back.
fn registration(bytes: &Bytes) -> bool {
    let Ok(registration) = Registration::decode(bytes) else { return false };
    let again = Registration::decode(&registration.encode());
    assert_eq!(again.as_ref(), Ok(&registration));
    true
}

fn broker_message(bytes: Bytes) -> bool {
    let Ok(message) = BrokerMessage::decode(bytes) else { return false };
    let encoded = pb::BrokerMessage::from(message.clone()).encode_to_vec();
    assert_eq!(BrokerMessage::decode(encoded.into()).as_ref(), Ok(&message));
    true
}
