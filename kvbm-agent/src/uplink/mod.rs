//! One source's stream of events to one indexer, over gRPC.

mod error;
mod stream;

pub use error::UplinkError;
pub use stream::{Acknowledged, SourceIdentity, Uplink};
