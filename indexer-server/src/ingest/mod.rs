//! Events in: the registry of workers, one task per engine endpoint, one session per
//! `PublishEvents` stream, and what routers say they have placed. Decoding, normalising and sequencing are `kvasir-engine`'s; here are
//! adapters that turn what it says into changes of the index.

mod config;
mod error;
mod link;
mod metrics;
mod ownership;
mod placement;
mod publisher;
mod registry;
mod worker;

pub use config::IngestConfig;
pub use error::IngestError;
pub use link::{Sockets, check_endpoints};
pub use metrics::{BatchLabels, Count, GapLabels, IngestMetrics, RefusalLabels};
pub use ownership::ShardConfig;
pub use publisher::{Accepted, BatchAnswer, Refusal, Session};
pub use registry::{Ingest, Registered};
