//! A gRPC port with limits on connections, calls and their memory, health, both versions of reflection, and spans.
//! Every gRPC server of Kvasir uses it, so that all have the same protection.

mod access;
mod config;
mod connections;
mod deadline;
mod limit;
mod metrics;
mod serve;

pub use access::{Roles, client, let_in, principal, quota, take_query};
pub use config::{CONNECTION_CALLS_MAX, PortConfig, UNTAKEN_TIMEOUT};
pub use metrics::PortMetrics;
pub use serve::{Port, ServeError, Services};

/// Kind of a stream or of a long call, which determines its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamKind {
    /// Many acknowledged messages. It may be idle without limit, and some streams are reserved for it.
    Publish,
    /// Many requests with one answer each. It ends after too long an idle time.
    Query,
    /// One request with a finite number of answers.
    Read,
    /// One request with answers as long as the connection lasts.
    Watch,
    /// One request whose answer stays open while its client works. Only the client or the service ends it. Its
    /// connection is not closed for its age while the stream is open, but accepts no further calls once it is old.
    Hold,
    /// One request with one answer, after much work. Timeout: the client's deadline, or one hour.
    Work,
}

/// The streams and long calls of a port's services, by path. All other calls of our services have one request and one
/// answer.
pub type Streams = &'static [(&'static str, StreamKind)];
