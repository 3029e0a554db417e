//! One source's stream of events to one indexer, over gRPC.
//!
//! [`Uplink`] is one stream, for batches that are numbered elsewhere; [`run_uplink`] keeps a stream open for
//! a [`Feed`](crate::feed::Feed): several batches are under way at a time, and a stream that ends is
//! replaced by one that continues at the index's position.

mod error;
mod register;
mod run;
mod stream;
mod window;

pub use error::UplinkError;
pub use run::{Overrun, UplinkConfig, UplinkStatus, run_uplink};
pub use stream::{Acknowledged, SourceIdentity, Uplink};
