//! Routers for tests.

use super::*;
use crate::route::active::{
    ActiveConfig, ActiveLoads, NewRequest, PromptBlocks, RankId, RequestKey, RequestNotes,
    RouterId, Update,
};
use kvasir_proto::types::{SequenceHash, WorkerId, WorkerKey};
use std::num::NonZeroU32;
use std::time::Duration;

pub(super) const CONFIG: ActiveConfig = ActiveConfig {
    lease: Duration::from_secs(30),
    ..ActiveConfig::new(NonZeroU32::new(16).expect("not 0"))
};

pub(super) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub(super) const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A rank of one of two workers for each two numbers.
pub(super) fn rank(number: u32) -> WorkerKey {
    let worker = WorkerId::new(&format!("w{}", number / 2)).expect("a name");
    WorkerKey { worker, rank: number % 2 }
}

/// Hashes of a path through a tree with branches at each block. A hash identifies the path to it.
pub(super) fn chain(path: &[u64]) -> Vec<SequenceHash> {
    let step = |at: &mut u64, branch: &u64| {
        *at = at.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(branch + 1);
        Some(SequenceHash(*at))
    };
    path.iter().scan(0, step).collect()
}

/// A router with its loads and sync, including the caller's part that connects them.
#[derive(Debug)]
pub(super) struct Router {
    pub(super) own: RouterId,
    pub(super) loads: ActiveLoads,
    pub(super) sync: Replication,
}

impl Router {
    /// A router with ranks 0 and 1.
    pub(super) fn new(number: u64) -> Self {
        let mut router = Self::with(number, CONFIG, SyncConfig::default());
        router.join(0);
        router.join(1);
        router
    }

    pub(super) fn with(number: u64, config: ActiveConfig, sync: SyncConfig) -> Self {
        assert_eq!(sync.check(config.lease), Ok(()));
        let own = RouterId(number);
        Self { own, loads: ActiveLoads::new(config), sync: Replication::new(own, sync) }
    }

    pub(super) fn join(&mut self, number: u32) -> RankId {
        self.loads.join(&rank(number)).expect("room")
    }

    pub(super) fn forget(&mut self, number: u32) {
        if let Some(rank) = self.loads.rank_of(&rank(number)) {
            self.loads.forget(rank);
        }
    }

    pub(super) fn key(&self, id: &str) -> RequestKey {
        RequestKey::new(self.own, id).expect("an id")
    }

    /// Counts a request if its rank is known; returns whether it is.
    pub(super) fn count(&mut self, id: &str, number: u32, path: &[u64], now: Duration) -> bool {
        let key = self.key(id);
        let hashes = chain(path);
        let Some(rank) = self.loads.rank_of(&rank(number)) else { return false };
        let new = NewRequest {
            rank,
            blocks: PromptBlocks::Chain(&hashes),
            input_tokens: hashes.len() as u64 * 16 + 5,
            prefill_tokens: hashes.len() as u64 * 8 + 5,
            expected_output_tokens: path.first().map(|first| first * 100),
        };
        let overlap_blocks = u32::try_from(path.len() / 2).expect("short");
        let notes = RequestNotes { overlap_blocks, ..RequestNotes::default() };
        self.loads.add_noted(&key, new, notes, now).is_ok()
    }

    pub(super) fn add(&mut self, id: &str, number: u32, path: &[u64], now: Duration) -> bool {
        let is_added = self.count(id, number, path, now);
        if is_added {
            self.sync.local_added(&self.key(id));
        }
        is_added
    }

    pub(super) fn complete(&mut self, id: &str, now: Duration) {
        if let Update::Changed(_) = self.loads.mark_prefill_completed(&self.key(id), now) {
            self.sync.local_prefill_completed(&self.key(id));
        }
    }

    /// Reports output, of which only the first token is sent to replicas.
    pub(super) fn output(&mut self, id: &str, tokens: u64, now: Duration) {
        let key = self.key(id);
        let was_completed = self.loads.request(&key).is_some_and(|at| at.is_prefill_completed);
        if self.loads.report_output(&key, tokens, now) != Update::Unknown && !was_completed {
            self.sync.local_prefill_completed(&key);
        }
    }

    pub(super) fn free(&mut self, id: &str) {
        if let Update::Changed(_) = self.loads.free(&self.key(id)) {
            self.sync.local_freed(&self.key(id));
        }
    }

    pub(super) fn expire(&mut self, now: Duration) {
        for expired in self.loads.expire(now) {
            self.sync.local_freed(&expired.key);
        }
        self.sync.free_gone(&mut self.loads, now);
    }

    pub(super) fn flush(&mut self, now: Duration) -> Vec<SyncMessage> {
        let messages = self.sync.flush(&self.loads, now);
        for message in &messages {
            assert_eq!(message.from, self.own);
            assert!(!message.items.is_empty() && message.items.len() <= SYNC_ITEMS_MAX);
            assert!(message.bytes_max() <= SYNC_MESSAGE_BYTES_MAX, "{}", message.bytes_max());
        }
        messages
    }

    /// The items of a flush.
    pub(super) fn items(&mut self, now: Duration) -> Vec<SyncItem> {
        self.flush(now).into_iter().flat_map(|message| message.items).collect()
    }

    pub(super) fn receive(&mut self, message: &SyncMessage, now: Duration) {
        let before = self.loads.digest_of_router(self.own);
        self.sync.receive(message, &mut self.loads, now);
        assert_eq!(
            self.loads.digest_of_router(self.own),
            before,
            "nobody changes a router's own requests"
        );
    }

    pub(super) fn receive_all(&mut self, messages: &[SyncMessage], now: Duration) {
        messages.iter().for_each(|message| self.receive(message, now));
    }

    /// Asserts that both have the same requests of all routers.
    pub(super) fn assert_agrees(&self, other: &Self) {
        let loads = |of: &Self| {
            let ranks = of.loads.ranks().map(|(rank, key, mut load)| {
                // Output is local to each router.
                load.output_milliblocks = 0;
                (key.clone(), load, of.loads.digest(rank))
            });
            let mut ranks: Vec<_> = ranks.collect();
            ranks.sort_by(|a, b| a.0.cmp(&b.0));
            ranks
        };
        assert_eq!(loads(self), loads(other), "{:?} and {:?}", self.own, other.own);
    }
}

/// Number of active requests at a rank in a router's loads.
pub(super) fn requests(of: &Router, number: u32) -> u64 {
    let rank = of.loads.rank_of(&rank(number)).expect("a rank");
    of.loads.load(rank).requests
}

/// Exchanges messages between routers without loss, until no message is left.
pub(super) fn talk(routers: &mut [&mut Router], now: Duration) {
    for _ in 0..10 {
        let messages: Vec<_> = routers.iter_mut().flat_map(|router| router.flush(now)).collect();
        if messages.is_empty() {
            return;
        }
        routers.iter_mut().for_each(|router| router.receive_all(&messages, now));
    }
    panic!("they never end");
}
