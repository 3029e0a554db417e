//! Acknowledged gRPC stream of one source's events to one indexer.
//!
//! [`Uplink`] is one stream, for batches that are numbered elsewhere. [`run_uplink`] keeps a stream open for a
//! [`Feed`](crate::feed::Feed), with several batches in transit. A stream that ends is replaced by one that resumes
//! from the index's position.

mod error;
mod register;
mod run;
mod stream;
mod window;

pub use error::UplinkError;
pub use run::{Overrun, UplinkConfig, UplinkStatus, run_uplink};
pub use stream::{Acknowledged, SourceIdentity, Uplink};
