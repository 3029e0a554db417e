use super::message::{SYNC_IDS_MAX, SyncItem, SyncList};
use crate::route::active::{ActiveLoads, RequestKey, RouterId};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Between two lists, and in which a request is sent again once: all replicas hear an answer.
pub(super) const ANSWER_INTERVAL: Duration = Duration::from_secs(1);
/// Most requests that are sent again within that time.
pub(super) const ANSWERS_MAX: usize = 65_536;

/// What replicas asked of a router.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Ids of requests that are to be sent again.
    wanted: BTreeSet<Arc<str>>,
    /// Ids of those that were, not long ago.
    told: BTreeSet<Arc<str>>,
    /// When that began to be noted.
    told_since: Duration,
    /// The id after which the list goes on, empty at its beginning; none if no list is being sent.
    listing: Option<Arc<str>>,
    /// When the last list was begun.
    listed: Option<Duration>,
}

// === impl Answers ===

impl Answers {
    /// A replica asks for the list. False if one was begun a moment ago, which it hears as well.
    pub(super) fn want_list(&mut self, now: Duration) -> bool {
        let is_recent = |at: Duration| now < at.saturating_add(ANSWER_INTERVAL);
        if self.listing.is_some() || self.listed.is_some_and(is_recent) {
            return false;
        }
        self.listing = Some("".into());
        self.listed = Some(now);
        true
    }

    /// A replica asks for a request that is under way. False if there is no room to keep that.
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

    /// The next request to be sent again.
    pub(super) fn pop_request(&mut self) -> Option<Arc<str>> {
        let id = self.wanted.pop_first()?;
        self.told.insert(Arc::clone(&id));
        debug_assert!(self.told.len() <= ANSWERS_MAX, "{} told again", self.told.len());
        Some(id)
    }

    /// The next part of the list, if one is being sent.
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
