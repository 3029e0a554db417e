//! Events in: the registry of workers, one task per engine endpoint, one session per
//! `PublishEvents` stream, and what routers say they have placed. Decoding, normalising and sequencing are `kvasir-engine`'s; here are
//! adapters that turn what it says into changes of the index.

mod aged;
mod answer;
mod config;
mod error;
mod follower;
mod link;
mod local;
mod metrics;
mod ownership;
mod placement;
mod publisher;
mod registry;
mod resume;
mod session;
mod standing;
#[cfg(test)]
mod testing;
mod turns;
mod worker;

pub use answer::{BatchAnswer, PendingAnswer, Refusal};
pub use config::IngestConfig;
pub use error::IngestError;
pub use link::{Sockets, check_endpoints};
pub use local::{AskError, LocalIndexers, Parts};
pub use metrics::{
    AskLabels, BatchLabels, Count, ExcessLabels, ExpiryLabels, GapLabels, IngestMetrics,
    RefusalLabels,
};
pub use ownership::ShardConfig;
pub use registry::{Ingest, Registered};
pub use resume::{Expected, Remembered};
pub use session::{Accepted, Session};
pub use standing::{RANKS_SHOWN_MAX, WorkerStandings};
pub use worker::Speaking;
