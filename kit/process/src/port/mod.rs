//! A gRPC port: limits on connections, calls and what they hold, health, both versions of reflection, spans.
//! Both servers are made of it, so that what protects one of them protects the other.

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

/// How a call is bounded that is not answered at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamKind {
    /// Many messages that are acknowledged. It may be idle for ever, and some streams are kept for it.
    Publish,
    /// Many requests, each with an answer. It ends when it is idle for too long.
    Query,
    /// One request with many answers, of which there is a last one.
    Read,
    /// One request with answers for as long as the connection lasts.
    Watch,
    /// One request whose answer is held open for as long as its client works: nothing ends it but the client and the
    /// service. Its connection gets as old as that, and takes no further calls once it is old.
    Hold,
    /// One request with one answer, which is there once much is done: within the time that its client gives, or an hour.
    Work,
}

/// The streams of a port's services, and long work, by path. All other calls of ours have one request and one answer.
pub type Streams = &'static [(&'static str, StreamKind)];
