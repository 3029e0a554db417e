use kvasir_proto::convert::SessionId;
use kvasir_tiers::manager::Session;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// An open session. Calls under way keep it until they end.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) session: Session,
    /// Its stream has ended, or is to end.
    pub(super) over: CancellationToken,
}

/// The sessions that are open, by their ids.
#[derive(Debug, Default)]
pub(super) struct Sessions(Mutex<HashMap<SessionId, Arc<Open>>>);

impl Sessions {
    /// Adds a session, until what is returned is dropped.
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

    /// Takes a session out: no further call finds it.
    pub(super) fn take(&self, id: SessionId) -> Option<Arc<Open>> {
        self.0.lock().remove(&id)
    }
}

/// A session's stream: its end is the session's.
#[derive(Debug)]
pub(super) struct OpenStream {
    sessions: Arc<Sessions>,
    pub(super) id: SessionId,
    /// Ready once the session was ended.
    pub(super) over: CancellationToken,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.over.cancel();
        // With the last call under way, the session counts as lost, unless it was ended.
        drop(self.sessions.take(self.id));
    }
}
