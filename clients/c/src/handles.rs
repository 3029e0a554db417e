use crate::fault::Fault;
use crate::publisher::Publisher;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum number of open publishers. Each has a thread.
const PUBLISHERS_MAX: usize = 1_024;

static OPEN: RwLock<Open> = RwLock::new(Open { last: 0, publishers: BTreeMap::new() });

struct Open {
    /// The last issued handle. Handles are never reused.
    last: usize,
    publishers: BTreeMap<usize, Arc<Publisher>>,
}

/// Issues a handle, which is not 0, for a publisher. Fails if [`PUBLISHERS_MAX`] publishers are open.
pub(crate) fn insert(publisher: Publisher) -> Result<usize, Fault> {
    let mut open = OPEN.write();
    let count = open.publishers.len();
    let limit = PUBLISHERS_MAX;
    if count >= limit {
        return Err(Fault::Full { count, what: "publishers are open", limit, fix: "free some" });
    }
    open.last += 1;
    let handle = open.last;
    open.publishers.insert(handle, Arc::new(publisher));
    Ok(handle)
}

/// The publisher of a handle.
pub(crate) fn get(handle: usize) -> Result<Arc<Publisher>, Fault> {
    OPEN.read().publishers.get(&handle).cloned().ok_or(Fault::Handle)
}

/// Frees a handle. Active calls keep the publisher alive until they end.
pub(crate) fn remove(handle: usize) -> Result<Arc<Publisher>, Fault> {
    OPEN.write().publishers.remove(&handle).ok_or(Fault::Handle)
}
