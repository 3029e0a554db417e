use super::message::{SYNC_IDS_MAX, SyncItem};
use crate::route::active::RouterId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Maximum other routers that are tracked.
pub const SYNC_PEERS_MAX: usize = 1_024;
/// A router that was silent for this long may be removed.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(120);
/// Minimum time between two requests for the list of one router.
pub(super) const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum ids of missing requests that are stored until they are asked for.
pub(super) const LACKING_MAX: usize = 65_536;

/// Result of receiving a message from a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// The router was known already.
    Again,
    /// The router is new.
    First,
    /// The router is new, and there is no room to track it.
    NoRoom,
}

#[derive(Debug)]
struct Peer {
    heard: Duration,
    /// When the router's list was last asked for.
    asked: Option<Duration>,
    /// The router was silent for so long that its requests were freed.
    is_gone: bool,
}

/// Other routers, and the questions to send.
#[derive(Debug, Default)]
pub(super) struct Peers {
    peers: BTreeMap<RouterId, Peer>,
    /// Routers whose lists are to be asked for.
    lists: BTreeSet<RouterId>,
    /// Ids of requests to ask for, at least one for each listed router.
    lacking: BTreeMap<RouterId, BTreeSet<Arc<str>>>,
    /// Total number of ids in `lacking`.
    lacking_ids: usize,
}

// === impl Peers ===

impl Peers {
    /// Records that a message from a router arrived. Returns whether the router is known (`Again`), new (`First`), or
    /// refused because the table is full (`NoRoom`).
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

    /// A router that has been silent for `silence`. Returns each router once, unless it sends again.
    pub(super) fn next_gone(&mut self, silence: Duration, now: Duration) -> Option<RouterId> {
        let mut peers = self.peers.iter_mut();
        let is_gone = |peer: &Peer| !peer.is_gone && now >= peer.heard.saturating_add(silence);
        let (router, peer) = peers.find(|(_, peer)| is_gone(peer))?;
        peer.is_gone = true;
        Some(*router)
    }

    /// Number of routers that sent recently.
    pub(super) fn alive(&self, now: Duration) -> usize {
        self.peers.values().filter(|peer| is_alive(peer, now)).count()
    }

    /// Plans a request for a router's list. Returns false if the list was requested recently, or there is no room.
    pub(super) fn want_list(&mut self, of: RouterId, now: Duration) -> bool {
        let Some(peer) = self.peers.get_mut(&of) else {
            debug_assert!(false, "its digest came");
            return false;
        };
        if peer.asked.is_some_and(|at| now < at.saturating_add(ASK_INTERVAL)) {
            return false;
        }
        // Questions to routers removed since then take room until they are sent.
        if self.lists.len() >= SYNC_PEERS_MAX {
            return false;
        }
        peer.asked = Some(now);
        self.lists.insert(of);
        true
    }

    /// Plans to ask for a router's request. False if there is no room to store its id.
    pub(super) fn want_request(&mut self, of: RouterId, id: Arc<str>) -> bool {
        if self.lacking_ids >= LACKING_MAX {
            return false;
        }
        let is_new = self.lacking.entry(of).or_default().insert(id);
        self.lacking_ids += usize::from(is_new);
        true
    }

    /// Returns the next request to send to another router, if one is planned.
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
