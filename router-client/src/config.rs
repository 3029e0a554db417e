use std::time::Duration;

/// Bounds of one client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientConfig {
    /// How long one question may take, waiting for its turn included.
    pub deadline: Duration,
    /// Most questions in flight, at least 1; further ones wait for their turn.
    pub in_flight_max: usize,
    /// How long a connection attempt may take.
    pub connect_timeout: Duration,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            deadline: Duration::from_millis(100),
            in_flight_max: 128,
            connect_timeout: Duration::from_secs(2),
        }
    }
}
