use kvasir_tls::Dialer;
use std::time::Duration;

/// How queries are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Calls {
    /// Over one stream with many queries in flight, or as single calls if the server has no stream. A refused query
    /// does not affect the others. A broken stream is replaced.
    #[default]
    Pipelined,
    /// One call per query, for proxies that do not support streams.
    Single,
}

/// Limits of one client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientConfig {
    /// Timeout of one query, including the wait for a permit.
    pub deadline: Duration,
    /// Maximum queries in flight, at least 1. Further queries wait.
    pub in_flight_max: usize,
    /// Timeout of a connection attempt.
    pub connect_timeout: Duration,
    /// How queries are sent.
    pub calls: Calls,
    /// Opens connections; [`Dialer::open`] makes a dialer for `https://` servers.
    pub dialer: Dialer,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            deadline: Duration::from_millis(100),
            in_flight_max: 128,
            connect_timeout: Duration::from_secs(2),
            calls: Calls::default(),
            dialer: Dialer::default(),
        }
    }
}
