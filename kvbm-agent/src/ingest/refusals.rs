//! Counts refused publishers, and logs them for the operator.

use kvasir_engine::throttle::Throttle;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::Instant;

/// Time between two log lines for one reason.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Why a stream was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StreamRefusal {
    /// The stream is for another worker, model or tenant.
    OtherWorker,
    /// The stream has another block size.
    BlockSize,
    /// The stream has another copy mode.
    CopyMode,
    /// The stream's incarnation is over.
    PastIncarnation,
    /// Too many incarnations of the source have ended recently.
    TooManyIncarnations,
    /// The maximum number of streams is open.
    TooManyStreams,
    /// The maximum number of sources is open.
    TooManySources,
    /// A source that does not publish here has the name.
    NameTaken,
    /// The stream publishes for a rank that is reserved for a source which may continue.
    RankReserved,
    /// The stream's message cannot be read, or does not arrive.
    Malformed,
    /// The agent failed.
    Failed,
}

impl StreamRefusal {
    /// All reasons.
    pub const ALL: [Self; 11] = [
        Self::OtherWorker,
        Self::BlockSize,
        Self::CopyMode,
        Self::PastIncarnation,
        Self::TooManyIncarnations,
        Self::TooManyStreams,
        Self::TooManySources,
        Self::NameTaken,
        Self::RankReserved,
        Self::Malformed,
        Self::Failed,
    ];

    /// Label value for metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OtherWorker => "other_worker",
            Self::BlockSize => "block_size",
            Self::CopyMode => "copy_mode",
            Self::PastIncarnation => "past_incarnation",
            Self::TooManyIncarnations => "too_many_incarnations",
            Self::TooManyStreams => "too_many_streams",
            Self::TooManySources => "too_many_sources",
            Self::NameTaken => "name_taken",
            Self::RankReserved => "rank_reserved",
            Self::Malformed => "malformed",
            Self::Failed => "failed",
        }
    }
}

/// Identity of a refused publisher.
#[derive(Debug, Clone, Copy)]
pub(super) struct Who<'a> {
    /// Name of the source; empty if it is unknown.
    pub(super) source: &'a str,
    /// Address of the peer, if it is known.
    pub(super) peer: Option<SocketAddr>,
}

/// Counter and log limiter for one reason.
#[derive(Debug)]
struct Refused {
    count: u64,
    log: Throttle,
}

impl Refused {
    const fn none() -> Self {
        Self { count: 0, log: Throttle::every(LOG_INTERVAL) }
    }

    /// Counts a refusal. Returns how many were not logged before, if this one should be logged.
    fn add(&mut self, now: Instant) -> Option<u64> {
        self.count += 1;
        self.log.admit(now)
    }
}

/// Refusals of publishers since the agent's start.
#[derive(Debug)]
pub struct Refusals {
    streams: Mutex<BTreeMap<StreamRefusal, Refused>>,
    batches: Mutex<Refused>,
}

impl Default for Refusals {
    fn default() -> Self {
        let streams = Mutex::default();
        let batches = Mutex::new(Refused::none());
        Self { streams, batches }
    }
}

impl Refusals {
    /// Counts a refused stream, and logs it unless the log is limited.
    pub(super) fn stream(&self, why: StreamRefusal, who: Who<'_>, error: &dyn fmt::Display) {
        let mut streams = self.streams.lock();
        let line = streams.entry(why).or_insert_with(Refused::none).add(Instant::now());
        drop(streams);
        if let Some(num_suppressed) = line {
            let (reason, Who { source, peer }) = (why.as_str(), who);
            tracing::warn!(reason, source, ?peer, %error, num_suppressed, "a publisher is refused");
        }
    }

    /// Counts an unreadable batch, and logs it unless the log is limited.
    pub(super) fn batch(&self, sequence: u64, who: Who<'_>, error: &dyn fmt::Display) {
        let Who { source, peer } = who;
        let line = self.batches.lock().add(Instant::now());
        if let Some(num_suppressed) = line {
            tracing::warn!(sequence, source, ?peer, %error, num_suppressed, "a batch is refused");
        }
    }

    /// Number of streams refused for a reason.
    #[must_use]
    pub fn streams(&self, why: StreamRefusal) -> u64 {
        self.streams.lock().get(&why).map_or(0, |refused| refused.count)
    }

    /// Number of batches that could not be read.
    #[must_use]
    pub fn batches(&self) -> u64 {
        self.batches.lock().count
    }
}
