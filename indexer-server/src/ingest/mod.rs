//! Ingest: the registry of workers, a task for each engine endpoint, a session for each `PublishEvents` stream, and the
//! placements of routers. `kvasir-engine` decodes, normalises and sequences events. This module applies the results to
//! the index.

mod aged;
mod answer;
mod claim;
mod config;
mod error;
mod exhausted;
mod follower;
mod introduce;
mod limits;
mod link;
mod local;
mod metrics;
mod ownership;
mod placement;
mod pools;
mod presence;
mod push_source;
mod rank_states;
mod registry;
mod resume;
mod reuse;
mod session;
mod sharding;
mod sockets;
mod subscription;
#[cfg(test)]
mod testing;
mod turns;
mod worker;

pub use answer::{BatchAnswer, PendingAnswer, Refusal};
pub use claim::check_sockets;
pub use config::IngestConfig;
pub use error::IngestError;
pub use exhausted::{RegistrationsExhausted, Scarce};
pub use limits::ENDPOINT_SOCKETS_MAX;
pub use link::{Sockets, check_endpoints};
pub use local::{AskError, LocalIndexers, Parts};
pub use metrics::{
    AskLabels, BatchLabels, Count, ExcessLabels, ExpiryLabels, GapLabels, IngestMetrics,
    RefusalLabels,
};
pub use ownership::ShardConfig;
pub use push_source::Arrival;
pub use rank_states::{RANKS_SHOWN_MAX, RankStates};
pub use registry::{Ingest, Registered};
pub use resume::{Expected, Remembered};
pub use session::{Accepted, SourceSession};
pub use worker::AgentStream;
