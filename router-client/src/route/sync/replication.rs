use super::answers::{ANSWER_INTERVAL, Answers};
use super::changes::{Change, Changes};
use super::config::SyncConfig;
use super::counts::SyncCounts;
use super::message::{SYNC_IDS_MAX, SYNC_ITEMS_MAX, SyncItem, SyncList, SyncMessage};
use super::pack::Pack;
use super::peers::{Heard, Peers};
use crate::route::active::{
    ActiveLoads, ActiveRequest, AddError, LoadDigest, NewRequest, PromptBlocks, RequestKey,
    RequestNotes, RouterId, Update,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Number of missed digests in a row after which a router is gone.
const SILENT_DIGESTS: u32 = 6;

/// One router's part in replica sync, for one partition: sends its own requests and applies other routers' requests.
/// All times are local.
#[derive(Debug)]
pub struct Replication {
    own: RouterId,
    config: SyncConfig,
    changes: Changes,
    answers: Answers,
    peers: Peers,
    digest_due: Duration,
    /// When the last digest was sent.
    digest_sent: Option<Duration>,
    counts: SyncCounts,
}

// === impl Replication ===

impl Replication {
    /// Creates a router that is unknown to all other routers. Its id is new with each start, like its requests.
    /// Replicas free the requests of its previous process once that process is [gone](Self::free_gone).
    #[must_use]
    pub fn new(own: RouterId, config: SyncConfig) -> Self {
        Self {
            own,
            config,
            changes: Changes::default(),
            answers: Answers::default(),
            peers: Peers::default(),
            digest_due: Duration::ZERO,
            digest_sent: None,
            counts: SyncCounts::default(),
        }
    }

    /// Records that a request was added to the loads. Requests of other routers are ignored, here and below.
    pub fn local_added(&mut self, key: &RequestKey) {
        self.record_change(key, Changes::added);
    }

    /// Records that the prefill of a request completed.
    pub fn local_prefill_completed(&mut self, key: &RequestKey) {
        self.record_change(key, Changes::prefill_completed);
    }

    /// Records that a request was freed, or its lease expired.
    pub fn local_freed(&mut self, key: &RequestKey) {
        self.record_change(key, Changes::freed);
    }

    /// Applies a message of another router. Drops messages of this router, because a broadcast returns them, and
    /// messages of unknown routers if the table is full. Answers are sent with the next flush.
    pub fn receive(&mut self, message: &SyncMessage, loads: &mut ActiveLoads, now: Duration) {
        self.counts.messages_received += 1;
        let from = message.from;
        if from == self.own {
            self.counts.dropped.own_messages += 1;
            return;
        }
        match self.peers.hear(from, now) {
            Heard::Again => {}
            Heard::First => {
                // A new router may lack all requests, so it should not wait for the next regular digest.
                let soon = self.digest_sent.map_or(now, |at| at.saturating_add(ANSWER_INTERVAL));
                self.digest_due = self.digest_due.min(soon);
            }
            Heard::NoRoom => {
                self.counts.dropped.unknown_peer += 1;
                return;
            }
        }
        for item in message.items.iter().take(SYNC_ITEMS_MAX) {
            self.learn(from, item, loads, now);
        }
        let beyond = message.items.len().saturating_sub(SYNC_ITEMS_MAX);
        self.counts.dropped.invalid += beyond as u64;
    }

    /// Frees the requests of routers that are gone: silent for six of this router's digest intervals. Without reports,
    /// these requests would otherwise count as load until their leases expire. If such a router was only disconnected,
    /// its next digest restores its requests.
    pub fn free_gone(&mut self, loads: &mut ActiveLoads, now: Duration) {
        let silence = self.config.digest_interval.saturating_mul(SILENT_DIGESTS);
        while let Some(router) = self.peers.next_gone(silence, now) {
            let requests = loads.digests_after(router, "").map(|(key, _)| key.clone());
            for key in requests.collect::<Vec<_>>() {
                loads.free(&key);
                self.counts.abandoned_freed += 1;
            }
        }
    }

    /// Returns the messages to send now, in order; usually none. Each message has at most
    /// [`SYNC_MESSAGE_BYTES_MAX`](super::SYNC_MESSAGE_BYTES_MAX) bytes, all together about 8 times as many. Further
    /// items wait for the next call.
    pub fn flush(&mut self, loads: &ActiveLoads, now: Duration) -> Vec<SyncMessage> {
        let mut pack = Pack::new(self.own);
        while !pack.is_full()
            && let Some((id, change)) = self.changes.pop()
        {
            self.send_change(id, change, loads, &mut pack);
        }
        while !pack.is_full()
            && let Some(id) = self.answers.pop_request()
        {
            self.counts.requests_told_again += 1;
            self.send_change(id, Change::Added, loads, &mut pack);
        }
        while !pack.is_full()
            && let Some(question) = self.peers.pop_question()
        {
            pack.push(question);
        }
        while !pack.is_full()
            && let Some(list) = self.answers.pop_list(self.own, loads)
        {
            pack.push(list);
        }
        if now >= self.digest_due {
            // Last, and from the current loads: a replica that received all earlier messages has equal loads, unless
            // more items wait.
            pack.push(SyncItem::Digest(loads.digest_of_router(self.own)));
            self.digest_sent = Some(now);
            self.digest_due = now.saturating_add(self.config.digest_interval);
        }
        let messages = pack.into_messages();
        self.counts.messages_sent += messages.len() as u64;
        messages
    }

    /// Number of other routers that sent in the last two minutes; at most [`SYNC_PEERS_MAX`](super::SYNC_PEERS_MAX).
    #[must_use]
    pub fn peers(&self, now: Duration) -> usize {
        self.peers.alive(now)
    }

    /// Counters since the start.
    #[must_use]
    pub const fn counts(&self) -> SyncCounts {
        self.counts
    }

    /// Passes a change of a request to `note`, if the request is this router's own. Counts the change as dropped if
    /// `note` returns false.
    fn record_change(
        &mut self,
        key: &RequestKey,
        note: impl FnOnce(&mut Changes, Arc<str>) -> bool,
    ) {
        if key.router == self.own && !note(&mut self.changes, key.shared_id()) {
            self.counts.dropped.unsent += 1;
        }
    }

    /// Adds a change of an own request to the messages. Skips an added request that is gone by now.
    fn send_change(&self, id: Arc<str>, change: Change, loads: &ActiveLoads, pack: &mut Pack) {
        let Ok(key) = RequestKey::of_shared(self.own, Arc::clone(&id)) else {
            debug_assert!(false, "ids of one's own requests are valid");
            return;
        };
        match change {
            Change::PrefillCompleted => pack.push(SyncItem::PrefillCompleted { id }),
            Change::Freed => pack.push(SyncItem::Freed { id }),
            Change::Added | Change::Replaced => {
                if change == Change::Replaced {
                    pack.push(SyncItem::Freed { id });
                }
                // The request is gone if its rank was removed.
                if let Some(request) = loads.request(&key) {
                    pack.push(SyncItem::Added(request));
                }
            }
        }
    }

    /// Applies an item of another router. A request for this router's list or requests is answered with the next flush.
    fn learn(&mut self, from: RouterId, item: &SyncItem, loads: &mut ActiveLoads, now: Duration) {
        match item {
            SyncItem::Added(request) => self.learn_added(from, request, loads, now),
            SyncItem::PrefillCompleted { id } => {
                if let Some(key) = self.key(from, id) {
                    loads.mark_prefill_completed(&key, now);
                }
            }
            SyncItem::Freed { id } => {
                if let Some(key) = self.key(from, id) {
                    loads.free(&key);
                }
            }
            SyncItem::Digest(digest) => self.compare(from, *digest, loads, now),
            SyncItem::AskList { of } => {
                if *of == self.own && self.answers.want_list(now) {
                    self.counts.lists_told += 1;
                }
            }
            SyncItem::List(list) => self.compare_list(from, list, loads, now),
            SyncItem::AskRequests { of, ids } => {
                if *of == self.own {
                    self.answer(ids, loads, now);
                }
            }
        }
    }

    /// Adds a request of another router. Drops it if it belongs to a third router, is invalid, or has an unknown
    /// rank. A known request is only renewed.
    fn learn_added(
        &mut self,
        from: RouterId,
        told: &ActiveRequest,
        loads: &mut ActiveLoads,
        now: Duration,
    ) {
        if told.key.router != from {
            self.counts.dropped.foreign += 1;
            return;
        }
        if !told.hashes.is_empty() && u32::try_from(told.hashes.len()) != Ok(told.blocks) {
            self.counts.dropped.invalid += 1;
            return;
        }
        if let Some(known) = loads.request(&told.key) {
            if is_same(&known, told) {
                // A reordered message does not revert a completed prefill.
                if told.is_prefill_completed {
                    loads.mark_prefill_completed(&told.key, now);
                }
                loads.renew(&told.key, now);
                return;
            }
            // The last received message counts; if it is outdated, the next digest repairs it.
            loads.free(&told.key);
        }
        match add(told, loads, now) {
            Ok(()) => {}
            Err(AddError::UnknownRank) => self.counts.dropped.unknown_rank += 1,
            Err(AddError::Full) => self.counts.dropped.full += 1,
            Err(AddError::TooManyBlocks | AddError::TooManyTokens | AddError::Duplicate) => {
                self.counts.dropped.invalid += 1;
            }
        }
    }

    /// Compares a router's digest with the local digest of its requests, and renews their leases. If the digests
    /// differ, plans a request for the router's list.
    fn compare(
        &mut self,
        from: RouterId,
        digest: LoadDigest,
        loads: &mut ActiveLoads,
        now: Duration,
    ) {
        loads.renew_all(from, now);
        if loads.digest_of_router(from) == digest {
            self.counts.digests_equal += 1;
            return;
        }
        self.counts.digests_differing += 1;
        if self.peers.want_list(from, now) {
            self.counts.lists_asked += 1;
        }
    }

    /// Corrects the local copies of a router's requests in the range of its list, and requests the missing ones. Drops
    /// a list that is too long.
    fn compare_list(
        &mut self,
        from: RouterId,
        list: &SyncList,
        loads: &mut ActiveLoads,
        now: Duration,
    ) {
        if list.entries.len() > SYNC_IDS_MAX {
            self.counts.dropped.invalid += 1;
            return;
        }
        let listed: BTreeMap<&str, u64> =
            list.entries.iter().map(|(id, digest)| (&**id, *digest)).collect();
        let known = loads.digests_after(from, list.after.as_deref().unwrap_or_default());
        let is_within = |id: &str| list.until.as_deref().is_none_or(|until| id <= until);
        let known = known.take_while(|(key, _)| is_within(key.id()));
        let wrong = known.filter(|(key, digest)| listed.get(key.id()) != Some(digest));
        let wrong: Vec<_> = wrong.map(|(key, _)| key.clone()).collect();
        for key in wrong {
            self.correct(&key, listed.get(key.id()).copied(), loads, now);
        }
        for (id, _) in &list.entries {
            let Some(key) = self.key(from, id) else { continue };
            if loads.digest_of_request(&key).is_some() {
                continue;
            }
            if self.peers.want_request(from, Arc::clone(id)) {
                self.counts.requests_asked += 1;
            } else {
                self.counts.dropped.unsent += 1;
            }
        }
    }

    /// Corrects a request of another router whose local copy differs from the router's list: completes its prefill if
    /// that is the only difference, else frees it.
    fn correct(
        &mut self,
        key: &RequestKey,
        listed: Option<u64>,
        loads: &mut ActiveLoads,
        now: Duration,
    ) {
        // Perhaps only the completed prefill was missed; then its blocks need not be requested.
        if listed.is_some()
            && let Update::Changed(_) = loads.mark_prefill_completed(key, now)
            && loads.digest_of_request(key) == listed
        {
            self.counts.prefills_corrected += 1;
            return;
        }
        loads.free(key);
        self.counts.ghosts_freed += 1;
    }

    /// Plans to send own requests that another router requests. Drops a message with too many ids.
    fn answer(&mut self, ids: &[Arc<str>], loads: &ActiveLoads, now: Duration) {
        if ids.len() > SYNC_IDS_MAX {
            self.counts.dropped.invalid += 1;
            return;
        }
        for id in ids {
            let Some(key) = self.key(self.own, id) else { continue };
            if loads.digest_of_request(&key).is_some() && !self.answers.want_request(id, now) {
                self.counts.dropped.unsent += 1;
            }
        }
    }

    /// The key of a router's request with this id; `None` if the id is invalid.
    fn key(&mut self, router: RouterId, id: &Arc<str>) -> Option<RequestKey> {
        let key = RequestKey::of_shared(router, Arc::clone(id)).ok();
        self.counts.dropped.invalid += u64::from(key.is_none());
        key
    }
}

/// Whether two copies of a request have equal constant fields.
fn is_same(a: &ActiveRequest, b: &ActiveRequest) -> bool {
    let facts = |of: &ActiveRequest| {
        (of.blocks, of.input_tokens, of.prefill_tokens, of.expected_output_tokens)
    };
    a.key == b.key && a.worker == b.worker && facts(a) == facts(b) && a.hashes == b.hashes
}

/// Adds a request of another router with that router's values.
fn add(told: &ActiveRequest, loads: &mut ActiveLoads, now: Duration) -> Result<(), AddError> {
    let rank = loads.rank_of(&told.worker).ok_or(AddError::UnknownRank)?;
    let blocks = if told.hashes.is_empty() {
        PromptBlocks::Unique(told.blocks)
    } else {
        PromptBlocks::Chain(&told.hashes)
    };
    let new = NewRequest {
        rank,
        blocks,
        input_tokens: told.input_tokens,
        prefill_tokens: told.prefill_tokens,
        expected_output_tokens: told.expected_output_tokens,
    };
    let notes = RequestNotes { overlap_blocks: told.overlap_blocks, ..RequestNotes::default() };
    loads.add_noted(&told.key, new, notes, now)?;
    if told.is_prefill_completed {
        loads.mark_prefill_completed(&told.key, now);
    }
    Ok(())
}
