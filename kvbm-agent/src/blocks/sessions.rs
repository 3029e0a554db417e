use kvasir_proto::convert::SessionId;
use kvasir_tiers::manager::Session;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// An open session. Calls in progress keep it until they end.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) session: Session,
    /// Cancelled once the session's stream has ended, or must end.
    pub(super) over: CancellationToken,
}

/// Open sessions by id.
#[derive(Debug, Default)]
pub(super) struct Sessions(Mutex<HashMap<SessionId, Arc<Open>>>);

impl Sessions {
    /// Adds a session under a random id. Dropping the returned stream removes the session.
    pub(super) fn add(self: &Arc<Self>, session: Session) -> OpenStream {
        let half = || RandomState::new().hash_one(0).to_le_bytes();
        let mut id = [0; 16];
        id.iter_mut().zip([half(), half()].as_flattened()).for_each(|(to, byte)| *to = *byte);
        let id = SessionId(id);
        let over = CancellationToken::new();
        let open = Arc::new(Open { session, over: over.clone() });
        self.0.lock().insert(id, open);
        OpenStream { sessions: Arc::clone(self), id, over }
    }

    pub(super) fn get(&self, id: SessionId) -> Option<Arc<Open>> {
        self.0.lock().get(&id).cloned()
    }

    /// Removes a session, so that no further call finds it.
    pub(super) fn remove(&self, id: SessionId) -> Option<Arc<Open>> {
        self.0.lock().remove(&id)
    }
}

/// Stream of a session, which ends with it.
#[derive(Debug)]
pub(super) struct OpenStream {
    sessions: Arc<Sessions>,
    pub(super) id: SessionId,
    /// Cancelled once the session was ended.
    pub(super) over: CancellationToken,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.over.cancel();
        // After the last call in progress, the session counts as lost, unless it was ended.
        drop(self.sessions.remove(self.id));
    }
}
