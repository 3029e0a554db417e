//! The pure cores of the router: from overlap and load to a decision.
//!
//! Nothing here does I/O, reads a clock or draws random numbers: times are [`Duration`](std::time::Duration)s counted
//! from wherever the caller likes, and randomness is a function that the caller hands in. Shells around it ask the
//! index, speak to clients and to other replicas.
//!
//! One request, in order:
//!
//! 1. [`Queue`]: while all ranks that it may go to have enough to compute, it waits.
//! 2. [`ActiveLoads`] has the load of each rank by the requests under way, and which of them use the prompt's blocks already;
//!    an index knows what each rank holds ([`TierBlocks`]). Together they make the [`Candidate`]s.
//! 3. [`Selector`] chooses by filters, thresholds, mode and [`Prices`], with regard to [`Outliers`] and [`Sessions`].
//! 4. [`ActiveLoads::add`] counts the request at once, so that the next decision knows of it.
//! 5. [`ActiveLoads::mark_prefill_completed`], [`ActiveLoads::report_output`] and [`ActiveLoads::free`] follow its life;
//!    [`ActiveLoads::expire`] ends it if nobody does.
//!
//! Formulas and defaults are those of the documents: router design (001), KV routing (003), router guide (004). Where
//! they disagree, a comment at the place names the one that is followed.

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
    ActiveRequest, AddError, BlockTracking, Expired, KvReuse, LoadDigest, NewRequest, Placed,
    PromptBlocks, REQUEST_BLOCKS_MAX, REQUEST_ID_BYTES_MAX, REQUEST_LEASE_MAX, REQUEST_TOKENS_MAX,
    RankId, RankLoad, RequestKey, RequestNotes, RouterId, SharedBlocks, Update,
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
