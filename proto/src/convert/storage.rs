use super::local::read_address;
use super::shared::{
    check_count, check_name, check_range, check_required, incarnation, read_incarnation,
};
use super::{ConvertError, Problem, WorkerAddress};
use crate::limits::{
    SEQUENCE_MAX, STORAGE_BATCH_EVENTS_MAX, STORAGE_LOCATION_BYTES_MAX,
    STORAGE_METADATA_ENTRIES_MAX, STORAGE_METADATA_KEY_BYTES_MAX, STORAGE_METADATA_VALUE_BYTES_MAX,
};
use crate::pb;
use crate::types::{Incarnation, SequenceHash};
use std::collections::BTreeMap;

/// A checked `StorageBatch`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageBatch {
    /// The worker whose block manager publishes the batch.
    pub address: WorkerAddress,
    /// The location, at most [`STORAGE_LOCATION_BYTES_MAX`] bytes.
    pub location: String,
    /// Incarnation of the publisher: one run of its process.
    pub incarnation: Incarnation,
    /// Number of the batch, from 1.
    pub sequence: u64,
    /// Changes, or a part of an image.
    pub content: StorageContent,
}

/// Content of a batch of storage events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StorageContent {
    /// Changes in order, at most [`STORAGE_BATCH_EVENTS_MAX`].
    Changes(Vec<StorageChange>),
    /// A part of an image of all blocks in the location.
    Image(StorageImagePart),
}

/// A part of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageImagePart {
    /// Whether this part is the first.
    pub begins: bool,
    /// Whether this part is the last.
    pub ends: bool,
    /// Stored blocks, at most [`STORAGE_BATCH_EVENTS_MAX`].
    pub blocks: Vec<StorageBlock>,
}

/// One storage event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StorageChange {
    /// The block is registered in the location.
    Store(StorageBlock),
    /// The block was released or evicted in the location.
    Remove(StorageBlock),
}

/// A block in a storage location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageBlock {
    /// Hash of the block and its complete prefix.
    pub sequence: SequenceHash,
    /// Hash of the preceding block; none for a first block.
    pub prefix: Option<SequenceHash>,
    /// Size of the block in bytes, at least 1.
    pub bytes: u64,
    /// Other facts, by key; at most [`STORAGE_METADATA_ENTRIES_MAX`].
    pub metadata: BTreeMap<String, String>,
}

/// Checks the name of a storage location in `field`.
///
/// # Errors
/// If the name is empty or too long, or has an invisible character.
pub fn check_location(field: &str, location: &str) -> Result<(), ConvertError> {
    check_required(field, location, STORAGE_LOCATION_BYTES_MAX)?;
    check_name(field, location)
}

impl TryFrom<pb::StorageBatch> for StorageBatch {
    type Error = ConvertError;

    fn try_from(batch: pb::StorageBatch) -> Result<Self, ConvertError> {
        let address = read_address(&batch.model, &batch.tenant, &batch.worker_id)?;
        let location = batch.storage_location;
        check_location("storage_location", &location)?;
        let incarnation = read_incarnation("incarnation", &batch.incarnation)?;
        check_range("sequence", batch.sequence, 1, SEQUENCE_MAX)?;
        check_count("events", batch.events.len(), STORAGE_BATCH_EVENTS_MAX)?;
        let within =
            |index: usize| move |error: ConvertError| error.within(format!("events[{index}]"));
        let changes = batch.events.into_iter().enumerate();
        let changes = changes.map(|(at, event)| read_event(event, &location).map_err(within(at)));
        let changes = changes.collect::<Result<Vec<_>, _>>()?;
        let content = match batch.image {
            None => StorageContent::Changes(changes),
            Some(pb::StorageImage { begins, ends }) => {
                let stored = |(index, change)| match change {
                    StorageChange::Store(block) => Ok(block),
                    StorageChange::Remove(_) => {
                        let refused = Problem::Unexpected("to REMOVE in an image");
                        Err(within(index)(ConvertError::new("event_type", refused)))
                    }
                };
                let blocks = changes.into_iter().enumerate().map(stored);
                let blocks = blocks.collect::<Result<_, _>>()?;
                StorageContent::Image(StorageImagePart { begins, ends, blocks })
            }
        };
        Ok(Self { address, location, incarnation, sequence: batch.sequence, content })
    }
}

fn read_event(event: pb::StorageEvent, location: &str) -> Result<StorageChange, ConvertError> {
    if event.storage_location != location {
        let actual = format!("is {:?}", event.storage_location);
        let expected = format!("{location:?}, as in the batch");
        return Err(ConvertError::new("storage_location", Problem::Mismatch { actual, expected }));
    }
    check_range("block_bytes", event.block_bytes, 1, u64::MAX)?;
    let block = StorageBlock {
        sequence: SequenceHash(event.sequence_hash),
        prefix: event.prefix_hash.map(SequenceHash),
        bytes: event.block_bytes,
        metadata: read_metadata(event.extra_metadata)?,
    };
    match pb::StorageEventType::try_from(event.event_type) {
        Ok(pb::StorageEventType::Store) => Ok(StorageChange::Store(block)),
        Ok(pb::StorageEventType::Remove) => Ok(StorageChange::Remove(block)),
        Ok(pb::StorageEventType::Unspecified) => {
            Err(ConvertError::new("event_type", Problem::Required))
        }
        Err(_) => Err(ConvertError::new("event_type", Problem::UnknownValue(event.event_type))),
    }
}

fn read_metadata(labels: Vec<pb::Label>) -> Result<BTreeMap<String, String>, ConvertError> {
    check_count("extra_metadata", labels.len(), STORAGE_METADATA_ENTRIES_MAX)?;
    let mut metadata = BTreeMap::new();
    for (index, pb::Label { key, value }) in labels.into_iter().enumerate() {
        let field = |name: &str| format!("extra_metadata[{index}].{name}");
        check_required(&field("key"), &key, STORAGE_METADATA_KEY_BYTES_MAX)?;
        check_name(&field("key"), &key)?;
        let bytes = value.len();
        let limit = STORAGE_METADATA_VALUE_BYTES_MAX;
        if bytes > limit {
            return Err(ConvertError::new(field("value"), Problem::TooLong { bytes, limit }));
        }
        check_name(&field("value"), &value)?;
        if metadata.contains_key(&key) {
            return Err(ConvertError::new(field("key"), Problem::Repeated(key)));
        }
        metadata.insert(key, value);
    }
    Ok(metadata)
}

impl From<&StorageBatch> for pb::StorageBatch {
    fn from(batch: &StorageBatch) -> Self {
        let event = |kind, block| event(&batch.location, kind, block);
        let (events, image) = match &batch.content {
            StorageContent::Changes(changes) => {
                let events = changes.iter().map(|change| match change {
                    StorageChange::Store(block) => event(pb::StorageEventType::Store, block),
                    StorageChange::Remove(block) => event(pb::StorageEventType::Remove, block),
                });
                (events.collect(), None)
            }
            StorageContent::Image(StorageImagePart { begins, ends, blocks }) => {
                let events = blocks.iter().map(|block| event(pb::StorageEventType::Store, block));
                (events.collect(), Some(pb::StorageImage { begins: *begins, ends: *ends }))
            }
        };
        Self {
            model: batch.address.partition.model().to_owned(),
            tenant: batch.address.partition.tenant().to_owned(),
            worker_id: batch.address.worker.as_str().to_owned(),
            storage_location: batch.location.clone(),
            incarnation: incarnation(batch.incarnation),
            sequence: batch.sequence,
            events,
            image,
        }
    }
}

fn event(location: &str, kind: pb::StorageEventType, block: &StorageBlock) -> pb::StorageEvent {
    let label =
        |(key, value): (&String, &String)| pb::Label { key: key.clone(), value: value.clone() };
    pb::StorageEvent {
        sequence_hash: block.sequence.0,
        prefix_hash: block.prefix.map(|prefix| prefix.0),
        block_bytes: block.bytes,
        storage_location: location.to_owned(),
        event_type: kind.into(),
        extra_metadata: block.metadata.iter().map(label).collect(),
    }
}

#[cfg(test)]
#[path = "storage_test.rs"]
mod tests;
