use super::*;
use crate::limits::{BROKER_MESSAGE_BYTES_MAX, NAME_BYTES_MAX};
use crate::types::{PartitionKey, WorkerId};
use prost::Message;

fn block(sequence: u64) -> StorageBlock {
    StorageBlock {
        sequence: SequenceHash(sequence),
        prefix: Some(SequenceHash(!sequence)),
        bytes: 4 << 20,
        metadata: BTreeMap::from([("position".to_owned(), "1234".to_owned())]),
    }
}

fn batch(content: StorageContent) -> StorageBatch {
    let partition = PartitionKey::new("m", "t").expect("names");
    StorageBatch {
        address: WorkerAddress { partition, worker: WorkerId::new("w").expect("a name") },
        location: "volume:shared".to_owned(),
        incarnation: Incarnation(7),
        sequence: 3,
        content,
    }
}

#[test]
fn batches_come_back_as_they_were() {
    let changes = vec![StorageChange::Store(block(1)), StorageChange::Remove(block(2))];
    let image = StorageImagePart { begins: true, ends: false, blocks: vec![block(1)] };
    for content in [
        StorageContent::Changes(Vec::new()),
        StorageContent::Changes(changes),
        StorageContent::Image(image),
    ] {
        let batch = batch(content);
        let message = pb::StorageBatch::from(&batch);
        assert_eq!(StorageBatch::try_from(message).expect("valid"), batch);
    }
}

#[test]
fn an_event_has_about_a_hundred_bytes() {
    let sized = |count: u64| {
        let changes = (0..count).map(|at| StorageChange::Store(block(!at))).collect();
        pb::StorageBatch::from(&batch(StorageContent::Changes(changes))).encoded_len()
    };
    let bytes = (sized(1_001) - sized(1)) / 1_000;
    assert!((40..=100).contains(&bytes), "{bytes} bytes an event");
}

/// An agent's largest batch, with one metadata entry per event, fits into one message.
#[test]
fn a_full_batch_fits_into_a_message() {
    let name = "n".repeat(NAME_BYTES_MAX);
    let partition = PartitionKey::new(&name, &name).expect("names");
    let address = WorkerAddress { partition, worker: WorkerId::new(&name).expect("a name") };
    let metadata = BTreeMap::from([("position".to_owned(), u32::MAX.to_string())]);
    let block = StorageBlock { bytes: u64::MAX, metadata, ..block(!0) };
    let changes = vec![StorageChange::Remove(block); STORAGE_BATCH_EVENTS_MAX];
    let location = "l".repeat(STORAGE_LOCATION_BYTES_MAX);
    let sequence = SEQUENCE_MAX;
    let full = batch(StorageContent::Changes(changes));
    let full = StorageBatch { address, location, sequence, ..full };
    let bytes = pb::StorageBatch::from(&full).encoded_len();
    assert!(bytes <= BROKER_MESSAGE_BYTES_MAX, "{bytes}");
}

#[test]
fn what_breaks_the_contract_is_named() {
    let valid = || {
        let image = StorageImagePart { begins: true, ends: true, blocks: vec![block(1), block(2)] };
        pb::StorageBatch::from(&batch(StorageContent::Image(image)))
    };
    let check = |change: fn(&mut pb::StorageBatch), expected: &str| {
        let mut message = valid();
        change(&mut message);
        let error = StorageBatch::try_from(message).expect_err(expected).to_string();
        assert_eq!(error, expected);
    };
    check(|at| at.sequence = 0, "sequence is 0, must be 1 to 9223372036854775807");
    check(|at| at.storage_location.clear(), "storage_location is required");
    check(
        |at| at.storage_location = "v\n".to_owned(),
        "storage_location has a control character: remove it",
    );
    check(
        |at| at.events[1].storage_location.clear(),
        "events[1].storage_location is \"\", must be \"volume:shared\", as in the batch",
    );
    check(|at| at.events[0].event_type = 0, "events[0].event_type is required");
    check(|at| at.events[0].event_type = 9, "events[0].event_type has the unknown value 9");
    check(
        |at| at.events[1].event_type = 2,
        "events[1].event_type must not be set to REMOVE in an image",
    );
    check(
        |at| at.events[0].block_bytes = 0,
        "events[0].block_bytes is 0, must be 1 to 18446744073709551615",
    );
    check(
        |at| {
            let metadata = &mut at.events[0].extra_metadata;
            metadata.push(metadata[0].clone());
        },
        "events[0].extra_metadata[1].key repeats position: each may be given once",
    );
    check(
        |at| at.events[0].extra_metadata[0].value = "v".repeat(65),
        "events[0].extra_metadata[0].value has 65 bytes, the limit is 64",
    );
    check(
        |at| at.events = vec![at.events[0].clone(); STORAGE_BATCH_EVENTS_MAX + 1],
        "events has 4097 entries, the limit is 4096: send fewer",
    );
}
