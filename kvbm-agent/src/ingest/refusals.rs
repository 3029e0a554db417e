//! Publishers that are refused: counted and logged for the operator.

use kvasir_engine::throttle::Throttle;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::Instant;

/// Time between two log lines of one reason.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Why a stream was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StreamRefusal {
    /// It is of another worker, model or tenant.
    OtherWorker,
    /// Its blocks are of another size.
    BlockSize,
    /// Its second announcements are read otherwise.
    CopyMode,
    /// It is of an incarnation that is over.
    PastIncarnation,
    /// Too many incarnations of it ended lately.
    TooManyIncarnations,
    /// There are as many streams as may be.
    TooManyStreams,
    /// There are as many sources as may be.
    TooManySources,
    /// A source that is no publisher has its name.
    NameTaken,
    /// It publishes for a rank that is reserved for a source which may continue.
    RankReserved,
    /// Its message cannot be read, or does not come.
    Malformed,
    /// A fault of the agent's.
    Failed,
}

impl StreamRefusal {
    /// Each of them.
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

    /// In a word, for metrics.
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

/// Who was refused.
#[derive(Debug, Clone, Copy)]
pub(super) struct Who<'a> {
    /// Name of the source; empty if it did not come as far as that.
    pub(super) source: &'a str,
    /// Where it connected from, if that is known.
    pub(super) peer: Option<SocketAddr>,
}

/// What was refused for one reason.
#[derive(Debug)]
struct Refused {
    count: u64,
    log: Throttle,
}

impl Refused {
    const fn none() -> Self {
        Self { count: 0, log: Throttle::every(LOG_INTERVAL) }
    }

    /// Counts one more. Whether to log it, and how many were not logged before it.
    fn add(&mut self, now: Instant) -> Option<u64> {
        self.count += 1;
        self.log.admit(now)
    }
}

/// What publishers were refused, since the agent's start.
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
    /// Counts a stream, and logs it if that is to be.
    pub(super) fn stream(&self, why: StreamRefusal, who: Who<'_>, error: &dyn fmt::Display) {
        let mut streams = self.streams.lock();
        let line = streams.entry(why).or_insert_with(Refused::none).add(Instant::now());
        drop(streams);
        if let Some(num_suppressed) = line {
            let (reason, Who { source, peer }) = (why.as_str(), who);
            tracing::warn!(reason, source, ?peer, %error, num_suppressed, "a publisher is refused");
        }
    }

    /// Counts a batch that cannot be read, and logs it if that is to be.
    pub(super) fn batch(&self, sequence: u64, who: Who<'_>, error: &dyn fmt::Display) {
        let Who { source, peer } = who;
        let line = self.batches.lock().add(Instant::now());
        if let Some(num_suppressed) = line {
            tracing::warn!(sequence, source, ?peer, %error, num_suppressed, "a batch is refused");
        }
    }

    /// Streams that were refused for a reason.
    #[must_use]
    pub fn streams(&self, why: StreamRefusal) -> u64 {
        self.streams.lock().get(&why).map_or(0, |refused| refused.count)
    }

    /// Batches that could not be read.
    #[must_use]
    pub fn batches(&self) -> u64 {
        self.batches.lock().count
    }
}
