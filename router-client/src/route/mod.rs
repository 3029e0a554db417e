//! The pure cores of the router: from overlap and load to a decision.
//!
//! This module does no I/O, reads no clock and draws no random numbers. Times are [`Duration`](std::time::Duration)s
//! from any origin, and the caller passes in a random function. Outer layers query the index, and communicate with
//! clients and replicas.
//!
//! Steps of one request:
//!
//! 1. [`Queue`]: the request waits while all its eligible ranks are over the queue threshold.
//! 2. [`ActiveLoads`] has each rank's load from active requests, and knows which of them use the prompt's blocks. The
//!    index has each rank's cached blocks ([`TierBlocks`]). Together they form the [`Candidate`]s.
//! 3. [`Selector`] chooses by filters, thresholds, mode and [`Prices`], considering [`Outliers`] and [`Sessions`].
//! 4. [`ActiveLoads::add`] counts the request immediately, so that the next decision includes it.
//! 5. [`ActiveLoads::mark_prefill_completed`], [`ActiveLoads::report_output`] and [`ActiveLoads::free`] track the
//!    request. [`ActiveLoads::expire`] ends it if no report arrives.
//!
//! Formulas and defaults follow the documents: router design (001), KV routing (003), router guide (004). Where they
//! disagree, a comment names the one that is followed.

mod active;
mod cost;
mod error;
mod fetch;
mod held;
mod outliers;
mod queue;
#[cfg(test)]
mod queue_test;
mod select;
mod sessions;
mod sync;
mod trust;

pub use active::{
    ACTIVE_BLOCKS_MAX, ACTIVE_RANKS_MAX, ACTIVE_REQUESTS_MAX, ActiveConfig, ActiveLoads,
    ActiveRequest, AddError, BlockTracking, ExpectedReuse, Expired, KvReuse, LoadDigest,
    NewRequest, Placed, PromptBlocks, REQUEST_BLOCKS_MAX, REQUEST_ID_BYTES_MAX, REQUEST_LEASE_MAX,
    REQUEST_TOKENS_MAX, RankId, RankLoad, RequestKey, RequestNotes, RouterId, SharedBlocks, Update,
};
pub use cost::{
    Cost, CostConfig, CostInput, DecodePrice, FetchCost, Prices, TierBlocks, TierCredits,
};
pub use error::ConfigError;
pub use fetch::{
    BlockKind, FETCH_BLOCKS_MAX, FETCH_GAIN_MIN, Fetch, FetchConfig, FetchMeter, FetchPeer,
    FetchPlan, FetchPlanner, Fetcher, Holder, NoFetch, PLAN_PEERS_MAX, Rate, Segment,
};
pub use held::HeldBlocks;
pub use outliers::{OUTLIERS_MAX, OutlierConfig, Outliers};
pub use queue::{
    LATENCY_SENSITIVITY_SECS_MAX, Lane, QUEUE_ENTRIES_MAX, Queue, QueueConfig, QueueFull,
    QueuePolicy, Released, Ticket, Wait,
};
pub use select::{
    BusyThresholds, Candidate, Candidates, Constraints, Decision, Explanation, Mode, Pin,
    PreferenceWeights, Preferences, PreferredLabel, Question, Reason, Removed, SelectConfig,
    SelectError, Selector, SlowStart, Vitals,
};
pub use sessions::{
    SESSION_ID_BYTES_MAX, SESSION_TTL_MAX, SESSION_TTL_MIN, SESSIONS_MAX, Sessions,
};
pub use sync::{
    Replication, SYNC_DIGEST_INTERVAL_MAX, SYNC_DIGEST_INTERVAL_MIN, SYNC_IDS_MAX, SYNC_ITEMS_MAX,
    SYNC_MESSAGE_BYTES_MAX, SYNC_PEERS_MAX, SyncConfig, SyncCounts, SyncDrops, SyncItem, SyncList,
    SyncMessage,
};
pub use trust::{Freshness, Trust, TrustConfig};
