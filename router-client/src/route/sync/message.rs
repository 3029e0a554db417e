use crate::route::active::{
    ActiveRequest, LoadDigest, REQUEST_BLOCKS_MAX, REQUEST_ID_BYTES_MAX, RouterId,
};
use kvasir_proto::limits::{BROKER_MESSAGE_BYTES_MAX, NAME_BYTES_MAX};
use std::sync::Arc;

pub use kvasir_proto::limits::SYNC_ITEMS_MAX;

/// Maximum size of an encoded message. By default, NATS accepts 1 MiB.
pub const SYNC_MESSAGE_BYTES_MAX: usize = BROKER_MESSAGE_BYTES_MAX;
/// Maximum ids of one item.
pub const SYNC_IDS_MAX: usize = 2_048;

/// Maximum bytes of a message or item apart from names, hashes and ids.
const FRAME_BYTES_MAX: usize = 64;
/// Maximum bytes of an encoded hash.
const HASH_BYTES_MAX: usize = 9;
/// Maximum bytes in addition to each id of an item: its length and digest.
const ID_FRAME_BYTES_MAX: usize = 16;

// Each item fits into one message.
const _: () = assert!(
    2 * FRAME_BYTES_MAX
        + REQUEST_ID_BYTES_MAX
        + NAME_BYTES_MAX
        + REQUEST_BLOCKS_MAX * HASH_BYTES_MAX
        <= SYNC_MESSAGE_BYTES_MAX
);
const _: () = assert!(
    2 * FRAME_BYTES_MAX
        + 2 * REQUEST_ID_BYTES_MAX
        + SYNC_IDS_MAX * (REQUEST_ID_BYTES_MAX + ID_FRAME_BYTES_MAX)
        <= SYNC_MESSAGE_BYTES_MAX
);

/// A message from one router to all others of its partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncMessage {
    /// The sending router.
    pub from: RouterId,
    /// Items in order; at most [`SYNC_ITEMS_MAX`].
    pub items: Vec<SyncItem>,
}

/// One item of a message. Ids name the sender's own requests, unless the item states otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SyncItem {
    /// The sender placed this request, or a replica asked for it.
    Added(ActiveRequest),
    /// The first token of this request was produced.
    PrefillCompleted {
        /// Id of the request.
        id: Arc<str>,
    },
    /// This request has ended.
    Freed {
        /// Id of the request.
        id: Arc<str>,
    },
    /// Digest of all the sender's requests
    /// ([`ActiveLoads::digest_of_router`](crate::route::ActiveLoads::digest_of_router)).
    Digest(LoadDigest),
    /// Asks another router for a list of its requests.
    AskList {
        /// The router that is asked.
        of: RouterId,
    },
    /// The sender's list of its requests, or a part of it.
    List(SyncList),
    /// Asks another router for requests that the sender lacks.
    AskRequests {
        /// The router that is asked.
        of: RouterId,
        /// Ids of requests of the asked router; at most [`SYNC_IDS_MAX`].
        ids: Vec<Arc<str>>,
    },
}

/// All requests of a router with ids in a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncList {
    /// Exclusive lower bound of the ids; `None` for no bound.
    pub after: Option<Arc<str>>,
    /// Inclusive upper bound of the ids; `None` for no bound.
    pub until: Option<Arc<str>>,
    /// Each request's id and digest ([`ActiveLoads::digest_of_request`](crate::route::ActiveLoads::digest_of_request));
    /// at most [`SYNC_IDS_MAX`].
    pub entries: Vec<(Arc<str>, u64)>,
}

// === impl SyncMessage ===

impl SyncMessage {
    /// Upper bound of the encoded size, for any encoding with at most 9 bytes per number. At most
    /// [`SYNC_MESSAGE_BYTES_MAX`] for messages from [`Replication::flush`](super::Replication::flush).
    #[must_use]
    pub fn bytes_max(&self) -> usize {
        FRAME_BYTES_MAX + self.items.iter().map(SyncItem::bytes_max).sum::<usize>()
    }
}

// === impl SyncItem ===

impl SyncItem {
    /// Returns an upper bound of the encoded size.
    pub(super) fn bytes_max(&self) -> usize {
        let ids = match self {
            Self::Added(request) => {
                let names = request.key.id().len() + request.worker.worker.as_str().len();
                names + request.hashes.len() * HASH_BYTES_MAX
            }
            Self::PrefillCompleted { id } | Self::Freed { id } => id.len(),
            Self::Digest(_) | Self::AskList { .. } => 0,
            Self::List(list) => {
                let ends = [&list.after, &list.until].into_iter().flatten();
                ends.map(|id| id.len()).sum::<usize>()
                    + ids_bytes(list.entries.iter().map(|(id, _)| id))
            }
            Self::AskRequests { ids, .. } => ids_bytes(ids.iter()),
        };
        FRAME_BYTES_MAX + ids
    }
}

fn ids_bytes<'a>(ids: impl Iterator<Item = &'a Arc<str>>) -> usize {
    ids.map(|id| id.len() + ID_FRAME_BYTES_MAX).sum()
}
