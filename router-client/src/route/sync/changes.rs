use std::collections::BTreeMap;
use std::sync::Arc;

/// Most requests whose changes are kept until they are sent.
pub(super) const CHANGES_MAX: usize = 65_536;

/// What became of a request since the last flush, as replicas need to hear it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// It was added.
    Added,
    /// Its prefill completed.
    PrefillCompleted,
    /// It was freed.
    Freed,
    /// It was freed, and another was added under its id.
    Replaced,
}

/// Changes of a router's own requests since the last flush.
#[derive(Debug, Default)]
pub(super) struct Changes(BTreeMap<Arc<str>, Change>);

// === impl Changes ===

impl Changes {
    /// A request was added. False if there is no room to keep that.
    pub(super) fn added(&mut self, id: Arc<str>) -> bool {
        let change = match self.0.get(&id) {
            None | Some(Change::Added) => Change::Added,
            Some(Change::PrefillCompleted | Change::Freed | Change::Replaced) => Change::Replaced,
        };
        self.put(id, change)
    }

    /// The prefill of a request completed. False if there is no room to keep that.
    pub(super) fn prefill_completed(&mut self, id: Arc<str>) -> bool {
        // What is added is told as it is by then.
        self.0.contains_key(&id) || self.put(id, Change::PrefillCompleted)
    }

    /// A request was freed. False if there is no room to keep that.
    pub(super) fn freed(&mut self, id: Arc<str>) -> bool {
        if self.0.get(&id) == Some(&Change::Added) {
            // Nobody has heard of it.
            self.0.remove(&id);
            return true;
        }
        self.put(id, Change::Freed)
    }

    /// The next change to be sent.
    pub(super) fn pop(&mut self) -> Option<(Arc<str>, Change)> {
        self.0.pop_first()
    }

    fn put(&mut self, id: Arc<str>, change: Change) -> bool {
        if self.0.len() >= CHANGES_MAX && !self.0.contains_key(&id) {
            return false;
        }
        self.0.insert(id, change);
        debug_assert!(self.0.len() <= CHANGES_MAX, "{} changes", self.0.len());
        true
    }
}
