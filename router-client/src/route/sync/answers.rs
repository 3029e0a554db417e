use super::message::{SYNC_IDS_MAX, SyncItem, SyncList};
use crate::route::active::{ActiveLoads, RequestKey, RouterId};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Minimum time between two lists, and between two repetitions of a request. All replicas receive each answer.
pub(super) const ANSWER_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum requests that are repeated within this interval.
pub(super) const ANSWERS_MAX: usize = 65_536;

/// Pending answers to replicas.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Ids of requests to send again.
    wanted: BTreeSet<Arc<str>>,
    /// Ids of requests sent again in the current interval.
    told: BTreeSet<Arc<str>>,
    /// Start of the current interval.
    told_since: Duration,
    /// The id after which the list continues, empty at its start; `None` if no list is being sent.
    listing: Option<Arc<str>>,
    /// When the last list was begun.
    listed: Option<Duration>,
}

// === impl Answers ===

impl Answers {
    /// Plans to send this router's list, which a replica requested. Returns false if a list is being sent, or was sent
    /// recently.
    pub(super) fn want_list(&mut self, now: Duration) -> bool {
        let is_recent = |at: Duration| now < at.saturating_add(ANSWER_INTERVAL);
        if self.listing.is_some() || self.listed.is_some_and(is_recent) {
            return false;
        }
        self.listing = Some("".into());
        self.listed = Some(now);
        true
    }

    /// Plans to send an active request, which a replica requested. Returns false if there is no room to store the plan.
    /// Requests sent recently are not sent again.
    pub(super) fn want_request(&mut self, id: &Arc<str>, now: Duration) -> bool {
        if now >= self.told_since.saturating_add(ANSWER_INTERVAL) {
            self.told.clear();
            self.told_since = now;
        }
        if self.told.contains(id) {
            return true;
        }
        if self.told.len() + self.wanted.len() >= ANSWERS_MAX {
            return self.wanted.contains(id);
        }
        self.wanted.insert(Arc::clone(id));
        true
    }

    /// The next request to send again.
    pub(super) fn pop_request(&mut self) -> Option<Arc<str>> {
        let id = self.wanted.pop_first()?;
        self.told.insert(Arc::clone(&id));
        debug_assert!(self.told.len() <= ANSWERS_MAX, "{} told again", self.told.len());
        Some(id)
    }

    /// Returns the next part of the list, if one is being sent.
    pub(super) fn pop_list(&mut self, own: RouterId, loads: &ActiveLoads) -> Option<SyncItem> {
        let after = self.listing.take()?;
        let mut rest = loads.digests_after(own, &after);
        let entry = |(key, digest): (&RequestKey, u64)| (key.shared_id(), digest);
        let entries: Vec<_> = rest.by_ref().take(SYNC_IDS_MAX).map(entry).collect();
        let last = entries.last().map(|(id, _)| Arc::clone(id));
        let until = rest.next().and(last);
        debug_assert!(until.as_ref().is_none_or(|until| *until > after), "it goes on");
        self.listing.clone_from(&until);
        let after = Some(after).filter(|after| !after.is_empty());
        Some(SyncItem::List(SyncList { after, until, entries }))
    }
}
