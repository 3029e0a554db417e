use super::chains::Slot;
use super::key::{RequestKey, RouterId};
use super::request::Request;
use super::slab::Slab;
use std::collections::BTreeSet;
use std::collections::btree_map::{self, BTreeMap};
use std::ops::Bound;
use std::time::Duration;

/// Active requests, indexed by key, by lease and by rank.
///
/// Only the search by key compares ids, which are scattered in memory. All other access is by request number.
#[derive(Debug, Default)]
pub(super) struct Requests {
    by_key: BTreeMap<RequestKey, u32>,
    files: Files,
}

/// A free entry for a new request.
#[derive(Debug)]
pub(super) struct Vacancy<'a> {
    entry: btree_map::VacantEntry<'a, RequestKey, u32>,
    files: &'a mut Files,
}

/// Requests by number.
#[derive(Debug, Default)]
struct Files {
    slab: Slab<File>,
    /// When to check each request's lease; one entry per request.
    due: BTreeSet<(Duration, u32)>,
    /// The newest request of each rank, by the rank's slot.
    last: Vec<Option<u32>>,
}

/// A request, in the linked list of its rank.
#[derive(Debug)]
struct File {
    key: RequestKey,
    request: Request,
    /// The next older request.
    older: Option<u32>,
    /// The next newer request.
    newer: Option<u32>,
}

// === impl Requests ===

impl Requests {
    pub(super) fn len(&self) -> usize {
        debug_assert_eq!(self.files.due.len(), self.by_key.len(), "one look at each lease");
        self.by_key.len()
    }

    pub(super) fn contains(&self, key: &RequestKey) -> bool {
        self.by_key.contains_key(key)
    }

    pub(super) fn get(&self, key: &RequestKey) -> Option<&Request> {
        self.files.get(*self.by_key.get(key)?)
    }

    pub(super) fn get_mut(&mut self, key: &RequestKey) -> Option<&mut Request> {
        self.files.get_mut(*self.by_key.get(key)?)
    }

    /// A free entry for a request; `None` if the request is already active.
    pub(super) fn vacancy(&mut self, key: RequestKey) -> Option<Vacancy<'_>> {
        match self.by_key.entry(key) {
            btree_map::Entry::Occupied(_) => None,
            btree_map::Entry::Vacant(entry) => Some(Vacancy { entry, files: &mut self.files }),
        }
    }

    /// Removes a request from the table and from its rank's list.
    pub(super) fn remove(&mut self, key: &RequestKey) -> Option<Request> {
        let number = self.by_key.remove(key)?;
        self.files.remove(number)
    }

    /// Returns a router's requests with ids after `id`, by id.
    pub(super) fn after<'a>(
        &'a self,
        router: RouterId,
        id: &str,
    ) -> impl Iterator<Item = (&'a RequestKey, &'a Request)> + use<'a> {
        let after = Bound::Excluded(RequestKey::before(router, id));
        let numbers = self.by_key.range((after, Bound::Unbounded));
        let numbers = numbers.take_while(move |(key, _)| key.router == router);
        numbers.filter_map(|(key, number)| Some((key, self.files.get(*number)?)))
    }

    /// Extends the leases of a router's requests to at least `expires`. Returns the number of its requests.
    pub(super) fn renew(&mut self, router: RouterId, expires: Duration) -> u64 {
        let numbers = self.by_key.range(RequestKey::first_of(router)..);
        let numbers = numbers.take_while(|(key, _)| key.router == router);
        let mut renewed = 0;
        for (_, number) in numbers {
            if let Some(request) = self.files.get_mut(*number) {
                request.expires = request.expires.max(expires);
                renewed += 1;
            }
        }
        renewed
    }

    /// The newest request of a rank.
    pub(super) fn last_of(&self, slot: Slot) -> Option<&RequestKey> {
        let number = self.files.last_of(slot)?;
        self.files.slab.get(number).map(|file| &file.key)
    }

    /// The requests of a rank, in unspecified order.
    pub(super) fn of_rank(&self, slot: Slot) -> impl Iterator<Item = (&RequestKey, &Request)> {
        let file = |number: u32| self.files.slab.get(number);
        let first = self.files.last_of(slot).and_then(file);
        let files = std::iter::successors(first, move |at| at.older.and_then(file));
        files.map(|file| (&file.key, &file.request))
    }

    /// When to check leases next.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.files.due.first().map(|(due, _)| *due)
    }

    /// Returns a request whose lease has expired at `now`, if there is one.
    pub(super) fn expired(&mut self, now: Duration) -> Option<RequestKey> {
        let Files { slab, due, .. } = &mut self.files;
        while let Some((_, number)) = due.first().filter(|(due, _)| *due <= now).copied() {
            let Some(File { key, request, .. }) = slab.get_mut(number) else {
                debug_assert!(false, "what is freed is not looked at");
                due.pop_first();
                continue;
            };
            if request.expires <= now {
                return Some(key.clone());
            }
            // The lease was renewed since. Updates do not move the entry, because that would cost each of them a
            // search.
            due.pop_first();
            request.due = request.expires;
            due.insert((request.due, number));
        }
        None
    }

    /// Checks the documented invariants.
    #[cfg(test)]
    pub(super) fn validate(&self) {
        assert_eq!(self.files.slab.len(), self.by_key.len());
        let mut due = BTreeSet::new();
        for (key, number) in &self.by_key {
            let file = self.files.slab.get(*number).expect("it has a file");
            assert_eq!(file.key, *key);
            let request = &file.request;
            assert!(request.due <= request.expires, "a lease is looked at before it ends");
            due.insert((request.due, *number));
            let here = self.of_rank(request.rank.slot).filter(|(other, _)| *other == key);
            assert_eq!(here.count(), 1, "its rank lists it once");
        }
        assert_eq!(self.files.due, due);
    }
}

// === impl Vacancy ===

impl Vacancy<'_> {
    /// Adds the request.
    pub(super) fn fill(self, request: Request) {
        let key = self.entry.key().clone();
        self.entry.insert(self.files.add(key, request));
    }
}

// === impl Files ===

impl Files {
    fn get(&self, number: u32) -> Option<&Request> {
        self.slab.get(number).map(|file| &file.request)
    }

    fn get_mut(&mut self, number: u32) -> Option<&mut Request> {
        self.slab.get_mut(number).map(|file| &mut file.request)
    }

    fn last_of(&self, slot: Slot) -> Option<u32> {
        usize::try_from(slot).ok().and_then(|slot| self.last.get(slot)).copied().flatten()
    }

    /// Adds a request as the newest of its rank, and returns its number.
    fn add(&mut self, key: RequestKey, request: Request) -> u32 {
        let due = request.due;
        let slot = request.rank.slot;
        let older = self.last_of(slot);
        let number = self.slab.insert(File { key, request, older, newer: None });
        if let Some(older) = older.and_then(|older| self.slab.get_mut(older)) {
            older.newer = Some(number);
        }
        self.set_last(slot, Some(number));
        self.due.insert((due, number));
        number
    }

    /// Removes and returns the request with this number, also from the list of its rank and from the expiry queue.
    fn remove(&mut self, number: u32) -> Option<Request> {
        let File { request, older, newer, .. } = self.slab.remove(number)?;
        self.due.remove(&(request.due, number));
        match newer {
            Some(newer) => {
                if let Some(newer) = self.slab.get_mut(newer) {
                    newer.older = older;
                }
            }
            None => self.set_last(request.rank.slot, older),
        }
        if let Some(older) = older.and_then(|older| self.slab.get_mut(older)) {
            older.newer = newer;
        }
        Some(request)
    }

    /// Sets the number of the newest request at a rank.
    fn set_last(&mut self, slot: Slot, number: Option<u32>) {
        let slot = usize::try_from(slot).unwrap_or(usize::MAX);
        if slot >= self.last.len() {
            // The number of ranks is limited.
            self.last.resize(slot.saturating_add(1), None);
        }
        if let Some(last) = self.last.get_mut(slot) {
            *last = number;
        }
    }
}
