//! Wire format of replica sync messages.

use kvasir_proto::pb;
use kvasir_proto::pb::router_sync_item::Item;
use kvasir_proto::types::{PartitionKey, SequenceHash, WorkerId, WorkerKey};
use router_client::route::{
    ActiveRequest, LoadDigest, RequestKey, RouterId, SyncItem, SyncList, SyncMessage,
};
use std::sync::Arc;

/// Encodes a message about one pool of a partition: the prefill pool if `is_prefill`, else the main pool.
pub(super) fn encode(
    partition: &PartitionKey,
    is_prefill: bool,
    message: &SyncMessage,
) -> pb::RouterSync {
    let items = message.items.iter().map(|item| pb::RouterSyncItem { item: Some(write(item)) });
    pb::RouterSync {
        model: partition.model().to_owned(),
        tenant: partition.tenant().to_owned(),
        router_id: message.from.0,
        items: items.collect(),
        prefill_pool: is_prefill,
    }
}

/// Decodes a message; `None` if it is malformed.
pub(super) fn decode(sync: pb::RouterSync) -> Option<SyncMessage> {
    let from = RouterId(sync.router_id);
    let items = sync.items.into_iter().map(|item| read_item(from, item.item?));
    Some(SyncMessage { from, items: items.collect::<Option<_>>()? })
}

/// Converts an item to its message.
fn write(item: &SyncItem) -> Item {
    let text = |id: &Arc<str>| id.as_ref().to_owned();
    match item {
        SyncItem::Added(request) => Item::Added(write_request(request)),
        SyncItem::PrefillCompleted { id } => Item::PrefillCompleted(text(id)),
        SyncItem::Freed { id } => Item::Freed(text(id)),
        SyncItem::Digest(LoadDigest { requests, sum }) => {
            Item::Digest(pb::SyncDigest { requests: *requests, sum: *sum })
        }
        SyncItem::AskList { of } => Item::AskList(of.0),
        SyncItem::List(SyncList { after, until, entries }) => Item::List(pb::SyncList {
            after: after.as_ref().map(text),
            until: until.as_ref().map(text),
            request_ids: entries.iter().map(|(id, _)| text(id)).collect(),
            digests: entries.iter().map(|(_, digest)| *digest).collect(),
        }),
        SyncItem::AskRequests { of, ids } => Item::AskRequests(pb::SyncAskRequests {
            router_id: of.0,
            request_ids: ids.iter().map(text).collect(),
        }),
    }
}

/// Converts an item, or returns `None` if it is invalid.
fn read_item(from: RouterId, item: Item) -> Option<SyncItem> {
    let ids = |ids: Vec<String>| ids.into_iter().map(Arc::<str>::from).collect::<Vec<_>>();
    Some(match item {
        Item::Added(request) => SyncItem::Added(read_request(from, request)?),
        Item::PrefillCompleted(id) => SyncItem::PrefillCompleted { id: id.into() },
        Item::Freed(id) => SyncItem::Freed { id: id.into() },
        Item::Digest(pb::SyncDigest { requests, sum }) => {
            SyncItem::Digest(LoadDigest { requests, sum })
        }
        Item::AskList(of) => SyncItem::AskList { of: RouterId(of) },
        Item::List(list) => {
            if list.request_ids.len() != list.digests.len() {
                return None;
            }
            let entries = ids(list.request_ids).into_iter().zip(list.digests).collect();
            let after = list.after.map(Arc::from);
            let until = list.until.map(Arc::from);
            SyncItem::List(SyncList { after, until, entries })
        }
        Item::AskRequests(asked) => {
            SyncItem::AskRequests { of: RouterId(asked.router_id), ids: ids(asked.request_ids) }
        }
    })
}

/// Converts an active request to its message.
fn write_request(request: &ActiveRequest) -> pb::SyncedRequest {
    pb::SyncedRequest {
        request_id: request.key.id().to_owned(),
        worker_id: request.worker.worker.as_str().to_owned(),
        dp_rank: request.worker.rank,
        sequence_hashes: request.hashes.iter().map(|hash| hash.0).collect(),
        blocks: request.blocks,
        overlap_blocks: request.overlap_blocks,
        input_tokens: request.input_tokens,
        prefill_tokens: request.prefill_tokens,
        prefill_completed: request.is_prefill_completed,
        expected_output_tokens: request.expected_output_tokens,
    }
}

/// Converts an active request, or returns `None` if it is invalid.
fn read_request(from: RouterId, request: pb::SyncedRequest) -> Option<ActiveRequest> {
    let worker = WorkerId::new(&request.worker_id).ok()?;
    Some(ActiveRequest {
        key: RequestKey::new(from, &request.request_id).ok()?,
        worker: WorkerKey { worker, rank: request.dp_rank },
        hashes: request.sequence_hashes.into_iter().map(SequenceHash).collect(),
        blocks: request.blocks,
        overlap_blocks: request.overlap_blocks,
        input_tokens: request.input_tokens,
        prefill_tokens: request.prefill_tokens,
        is_prefill_completed: request.prefill_completed,
        expected_output_tokens: request.expected_output_tokens,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    #[test]
    fn what_is_sent_is_what_is_received() {
        let from = RouterId(7);
        let key = RequestKey::new(from, "r").expect("an id");
        let worker = WorkerKey { worker: WorkerId::new("w").expect("a name"), rank: 3 };
        let request = ActiveRequest {
            key,
            worker,
            hashes: vec![SequenceHash(1), SequenceHash(u64::MAX)],
            blocks: 2,
            overlap_blocks: 1,
            input_tokens: 40,
            prefill_tokens: 24,
            is_prefill_completed: true,
            expected_output_tokens: Some(9),
        };
        let id = || Arc::<str>::from("r");
        let items = vec![
            SyncItem::Added(request),
            SyncItem::PrefillCompleted { id: id() },
            SyncItem::Freed { id: id() },
            SyncItem::Digest(LoadDigest { requests: 5, sum: u64::MAX }),
            SyncItem::AskList { of: RouterId(8) },
            SyncItem::List(SyncList { after: None, until: Some(id()), entries: vec![(id(), 11)] }),
            SyncItem::AskRequests { of: RouterId(8), ids: vec![id()] },
        ];
        let message = SyncMessage { from, items };
        let partition = PartitionKey::new("m", "t").expect("a name");
        let wire = encode(&partition, true, &message);
        let bytes = wire.encode_to_vec();
        assert!(bytes.len() <= message.bytes_max(), "{} bytes", bytes.len());
        let sync = pb::RouterSync::decode(bytes.as_slice()).expect("protobuf");
        assert_eq!(
            (sync.model.as_str(), sync.tenant.as_str(), sync.prefill_pool),
            ("m", "t", true)
        );
        assert_eq!(decode(sync), Some(message));
    }

    #[test]
    fn what_no_router_sends_is_dropped() {
        let decoded = |item| {
            decode(pb::RouterSync {
                items: vec![pb::RouterSyncItem { item }],
                ..Default::default()
            })
        };
        assert_eq!(decoded(None), None);
        let list = pb::SyncList { request_ids: vec!["a".to_owned()], ..Default::default() };
        assert_eq!(decoded(Some(Item::List(list))), None);
        assert_eq!(decoded(Some(Item::Added(pb::SyncedRequest::default()))), None);
    }
}
