//! Counters of served and fetched blocks.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why an owner closed a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Disconnect {
    /// The peer read nothing for too long.
    Untaken,
    /// The peer sent nothing for too long.
    Silent,
    /// A request timed out.
    Late,
    /// The peer sent an invalid frame, or uses another version.
    Protocol,
    /// The caller has no identity, or lacks the rights.
    Denied,
    /// The peer's description differs.
    Description,
    /// The connection failed while sending.
    Lost,
}

impl Disconnect {
    /// All reasons.
    pub const ALL: [Self; 7] = [
        Self::Untaken,
        Self::Silent,
        Self::Late,
        Self::Protocol,
        Self::Denied,
        Self::Description,
        Self::Lost,
    ];

    /// The reason as a metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Untaken => "untaken",
            Self::Silent => "silent",
            Self::Late => "late",
            Self::Protocol => "protocol",
            Self::Denied => "denied",
            Self::Description => "description",
            Self::Lost => "lost",
        }
    }
}

/// A counter that only increases.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of what one agent has served and fetched.
#[derive(Debug, Default)]
pub struct TransferCounters {
    pub(crate) served: Counter,
    pub(crate) served_bytes: Counter,
    pub(crate) serve_requests: Counter,
    pub(crate) fetched: Counter,
    pub(crate) fetched_bytes: Counter,
    pub(crate) fetches: Counter,
    pub(crate) corrupt: Counter,
    disconnected: Mutex<BTreeMap<Disconnect, u64>>,
    stopped: Mutex<BTreeMap<&'static str, u64>>,
}

/// Values of [`TransferCounters`] at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TransferMetrics {
    /// Blocks sent to peers.
    pub served: u64,
    /// Bytes of the blocks sent.
    pub served_bytes: u64,
    /// Requests received from peers.
    pub serve_requests: u64,
    /// Blocks received from peers, verified and registered.
    pub fetched: u64,
    /// Bytes of the blocks received.
    pub fetched_bytes: u64,
    /// Fetches, counted per peer.
    pub fetches: u64,
    /// Blocks received with wrong bytes or a wrong hash. They were not registered.
    pub corrupt: u64,
    /// Closed connections of peers, by reason.
    pub disconnected: BTreeMap<&'static str, u64>,
    /// Fetches that stopped before their last block, by reason.
    pub stopped: BTreeMap<&'static str, u64>,
}

impl TransferCounters {
    pub(crate) fn disconnect(&self, why: Disconnect) {
        *self.disconnected.lock().entry(why).or_default() += 1;
    }

    pub(crate) fn stop(&self, why: &'static str) {
        *self.stopped.lock().entry(why).or_default() += 1;
    }

    /// The current values.
    #[must_use]
    pub fn metrics(&self) -> TransferMetrics {
        let disconnected = self.disconnected.lock();
        let count = |why: Disconnect| disconnected.get(&why).copied().unwrap_or_default();
        TransferMetrics {
            served: self.served.get(),
            served_bytes: self.served_bytes.get(),
            serve_requests: self.serve_requests.get(),
            fetched: self.fetched.get(),
            fetched_bytes: self.fetched_bytes.get(),
            fetches: self.fetches.get(),
            corrupt: self.corrupt.get(),
            disconnected: Disconnect::ALL.map(|why| (why.as_str(), count(why))).into(),
            stopped: self.stopped.lock().clone(),
        }
    }
}
