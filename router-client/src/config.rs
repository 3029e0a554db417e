use kvasir_tls::Dialer;
use std::time::Duration;

/// How questions travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Calls {
    /// In one stream with many in flight, or as single calls if the server has no stream. A refused
    /// question does not affect the others. A stream that breaks is replaced.
    #[default]
    Pipelined,
    /// One call for each question: for proxies that do not carry streams.
    Single,
}

/// Bounds of one client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientConfig {
    /// Longest time for one question, including the wait for room in flight.
    pub deadline: Duration,
    /// Most questions in flight, at least 1. Further questions wait.
    pub in_flight_max: usize,
    /// Longest time for a connection attempt.
    pub connect_timeout: Duration,
    /// How questions travel.
    pub calls: Calls,
    /// What connects; [`Dialer::open`] makes one for `https://` servers.
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
