use std::time::Duration;

/// How questions travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Calls {
    /// In one stream, many under way at a time; as single calls to a server that has no stream. A
    /// refused question does not hurt the others; a stream that breaks is replaced.
    #[default]
    Pipelined,
    /// As a call each: for proxies that do not carry streams.
    Single,
}

/// Bounds of one client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientConfig {
    /// How long one question may take, waiting for its turn included.
    pub deadline: Duration,
    /// Most questions in flight, at least 1; further ones wait for their turn.
    pub in_flight_max: usize,
    /// How long a connection attempt may take.
    pub connect_timeout: Duration,
    /// How questions travel.
    pub calls: Calls,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            deadline: Duration::from_millis(100),
            in_flight_max: 128,
            connect_timeout: Duration::from_secs(2),
            calls: Calls::default(),
        }
    }
}
