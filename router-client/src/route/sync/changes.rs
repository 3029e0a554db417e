use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum requests whose changes are stored until they are sent.
pub(super) const CHANGES_MAX: usize = 65_536;

/// A request's change since the last flush, as sent to replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// The request was added.
    Added,
    /// The request's prefill completed.
    PrefillCompleted,
    /// The request was freed.
    Freed,
    /// The request was freed, and another was added under its id.
    Replaced,
}

/// Changes of a router's own requests since the last flush.
#[derive(Debug, Default)]
pub(super) struct Changes(BTreeMap<Arc<str>, Change>);

// === impl Changes ===

impl Changes {
    /// Records an added request. False if there is no room.
    pub(super) fn added(&mut self, id: Arc<str>) -> bool {
        let change = match self.0.get(&id) {
            None | Some(Change::Added) => Change::Added,
            Some(Change::PrefillCompleted | Change::Freed | Change::Replaced) => Change::Replaced,
        };
        self.add_change(id, change)
    }

    /// Records a completed prefill. False if there is no room.
    pub(super) fn prefill_completed(&mut self, id: Arc<str>) -> bool {
        // An addition is sent in its state at that time.
        self.0.contains_key(&id) || self.add_change(id, Change::PrefillCompleted)
    }

    /// Records a freed request. False if there is no room.
    pub(super) fn freed(&mut self, id: Arc<str>) -> bool {
        if self.0.get(&id) == Some(&Change::Added) {
            // No replica has received it yet.
            self.0.remove(&id);
            return true;
        }
        self.add_change(id, Change::Freed)
    }

    /// The next change to send.
    pub(super) fn pop(&mut self) -> Option<(Arc<str>, Change)> {
        self.0.pop_first()
    }

    fn add_change(&mut self, id: Arc<str>, change: Change) -> bool {
        if self.0.len() >= CHANGES_MAX && !self.0.contains_key(&id) {
            return false;
        }
        self.0.insert(id, change);
        debug_assert!(self.0.len() <= CHANGES_MAX, "{} changes", self.0.len());
        true
    }
}
