use crate::route::active::{
    ActiveRequest, LoadDigest, REQUEST_BLOCKS_MAX, REQUEST_ID_BYTES_MAX, RouterId,
};
use kvasir_proto::limits::{BROKER_MESSAGE_BYTES_MAX, NAME_BYTES_MAX};
use std::sync::Arc;

pub use kvasir_proto::limits::SYNC_ITEMS_MAX;

/// Most bytes of a message when encoded. NATS takes 1 MiB unless it is configured otherwise.
pub const SYNC_MESSAGE_BYTES_MAX: usize = BROKER_MESSAGE_BYTES_MAX;
/// Most ids of one item.
pub const SYNC_IDS_MAX: usize = 2_048;

/// Most bytes of a message or an item beside its names, hashes and ids.
const FRAME_BYTES_MAX: usize = 64;
/// Most bytes of a hash.
const HASH_BYTES_MAX: usize = 9;
/// Most bytes that go with each id of an item: its length, its digest.
const ID_FRAME_BYTES_MAX: usize = 16;

// Each item fits into a message.
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

/// What one router tells all others of its partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncMessage {
    /// The router.
    pub from: RouterId,
    /// What it tells, in this order; at most [`SYNC_ITEMS_MAX`].
    pub items: Vec<SyncItem>,
}

/// One thing that a router tells. Ids are those of its own requests, unless the item says otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SyncItem {
    /// It placed this request, or somebody asked for it.
    Added(ActiveRequest),
    /// The first token of this request is out.
    PrefillCompleted {
        /// The request.
        id: Arc<str>,
    },
    /// This request has ended.
    Freed {
        /// The request.
        id: Arc<str>,
    },
    /// What all of its requests add up to
    /// ([`ActiveLoads::digest_of_router`](crate::route::ActiveLoads::digest_of_router)).
    Digest(LoadDigest),
    /// It asks another router for a list of that one's requests.
    AskList {
        /// The other router.
        of: RouterId,
    },
    /// It lists its requests, or part of them.
    List(SyncList),
    /// It asks another router for requests that it lacks.
    AskRequests {
        /// The other router.
        of: RouterId,
        /// Ids of that router's requests; at most [`SYNC_IDS_MAX`].
        ids: Vec<Arc<str>>,
    },
}

/// All requests of a router whose ids lie in a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncList {
    /// Ids come after this one; none if the list begins with the first.
    pub after: Option<Arc<str>>,
    /// No id comes after this one; none if the list ends with the last.
    pub until: Option<Arc<str>>,
    /// Each request with its digest
    /// ([`ActiveLoads::digest_of_request`](crate::route::ActiveLoads::digest_of_request)); at most [`SYNC_IDS_MAX`].
    pub entries: Vec<(Arc<str>, u64)>,
}

// === impl SyncMessage ===

impl SyncMessage {
    /// A bound of its bytes when encoded, for any encoding with at most 9 bytes for a number. At most
    /// [`SYNC_MESSAGE_BYTES_MAX`] for those that [`Replication::flush`](super::Replication::flush) makes.
    #[must_use]
    pub fn bytes_max(&self) -> usize {
        FRAME_BYTES_MAX + self.items.iter().map(SyncItem::bytes_max).sum::<usize>()
    }
}

// === impl SyncItem ===

impl SyncItem {
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
