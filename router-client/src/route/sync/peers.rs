use super::message::{SYNC_IDS_MAX, SyncItem};
use crate::route::active::RouterId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Most routers that are remembered beside one's own.
pub const SYNC_PEERS_MAX: usize = 1_024;
/// A router that was silent for so long is forgotten.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(120);
/// Between two questions for a list of the same router.
pub(super) const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// Most ids of requests that are kept until they are asked for.
pub(super) const LACKING_MAX: usize = 65_536;

/// What hearing of a router means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// It is remembered already.
    Again,
    /// It is remembered from now on.
    First,
    /// There is no room to remember it.
    NoRoom,
}

#[derive(Debug)]
struct Peer {
    heard: Duration,
    /// When its list was asked for last.
    asked: Option<Duration>,
    /// It was silent for so long that its requests were freed.
    is_gone: bool,
}

/// Other routers, and what is to be asked of them.
#[derive(Debug, Default)]
pub(super) struct Peers {
    peers: BTreeMap<RouterId, Peer>,
    /// Routers whose lists are to be asked for.
    lists: BTreeSet<RouterId>,
    /// Ids of requests that are to be asked for; of each router at least one.
    lacking: BTreeMap<RouterId, BTreeSet<Arc<str>>>,
    /// How many ids these are.
    lacking_ids: usize,
}

// === impl Peers ===

impl Peers {
    /// A message of a router came.
    pub(super) fn hear(&mut self, router: RouterId, now: Duration) -> Heard {
        if let Some(peer) = self.peers.get_mut(&router) {
            peer.heard = peer.heard.max(now);
            peer.is_gone = false;
            return Heard::Again;
        }
        if self.peers.len() >= SYNC_PEERS_MAX {
            self.peers.retain(|_, peer| is_alive(peer, now));
        }
        if self.peers.len() >= SYNC_PEERS_MAX {
            return Heard::NoRoom;
        }
        self.peers.insert(router, Peer { heard: now, asked: None, is_gone: false });
        debug_assert!(self.peers.len() <= SYNC_PEERS_MAX, "{} peers", self.peers.len());
        Heard::First
    }

    /// A router that has been silent for so long; each once, unless it is heard of again.
    pub(super) fn next_gone(&mut self, silence: Duration, now: Duration) -> Option<RouterId> {
        let mut peers = self.peers.iter_mut();
        let is_gone = |peer: &Peer| !peer.is_gone && now >= peer.heard.saturating_add(silence);
        let (router, peer) = peers.find(|(_, peer)| is_gone(peer))?;
        peer.is_gone = true;
        Some(*router)
    }

    /// Routers heard of lately.
    pub(super) fn alive(&self, now: Duration) -> usize {
        self.peers.values().filter(|peer| is_alive(peer, now)).count()
    }

    /// The list of a router is wanted. False if it was asked for a moment ago.
    pub(super) fn want_list(&mut self, of: RouterId, now: Duration) -> bool {
        let Some(peer) = self.peers.get_mut(&of) else {
            debug_assert!(false, "its digest came");
            return false;
        };
        if peer.asked.is_some_and(|at| now < at.saturating_add(ASK_INTERVAL)) {
            return false;
        }
        // Questions to routers that were forgotten since take room until they are sent.
        if self.lists.len() >= SYNC_PEERS_MAX {
            return false;
        }
        peer.asked = Some(now);
        self.lists.insert(of);
        true
    }

    /// A request of a router is wanted. False if there is no room to keep that.
    pub(super) fn want_request(&mut self, of: RouterId, id: Arc<str>) -> bool {
        if self.lacking_ids >= LACKING_MAX {
            return false;
        }
        let is_new = self.lacking.entry(of).or_default().insert(id);
        self.lacking_ids += usize::from(is_new);
        true
    }

    /// The next question to be sent.
    pub(super) fn pop_question(&mut self) -> Option<SyncItem> {
        if let Some(of) = self.lists.pop_first() {
            return Some(SyncItem::AskList { of });
        }
        let mut first = self.lacking.first_entry()?;
        let of = *first.key();
        let ids: Vec<_> = (0..SYNC_IDS_MAX).map_while(|_| first.get_mut().pop_first()).collect();
        if first.get().is_empty() {
            first.remove();
        }
        debug_assert!(!ids.is_empty() && ids.len() <= self.lacking_ids, "each was counted");
        self.lacking_ids = self.lacking_ids.saturating_sub(ids.len());
        Some(SyncItem::AskRequests { of, ids })
    }
}

fn is_alive(peer: &Peer, now: Duration) -> bool {
    now < peer.heard.saturating_add(SILENCE_MAX)
}
