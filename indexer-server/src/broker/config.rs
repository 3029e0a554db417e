use std::{fmt, str::FromStr, time::Duration};

/// How events come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// As they are published; nobody keeps them.
    Core,
    /// From the stream of JetStream, which keeps them for a while.
    Jetstream,
}

impl Delivery {
    const ALL: [(Self, &'static str); 2] = [(Self::Core, "core"), (Self::Jetstream, "jetstream")];
}

impl fmt::Display for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(delivery, _)| delivery == self);
        f.write_str(name.map_or("", |(_, name)| name))
    }
}

impl FromStr for Delivery {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text);
        let found = found.map(|(delivery, _)| *delivery);
        found.ok_or_else(|| format!("{text:?} is not one of core, jetstream"))
    }
}

/// Where events come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerConfig {
    /// The NATS server: `nats://host:port`.
    pub url: String,
    /// How events come.
    pub delivery: Delivery,
    /// The stream that is made where there is none.
    pub stream: StreamConfig,
    /// Messages in the stream after which a snapshot of the index goes to the object store.
    pub snapshot_threshold: u64,
    /// Whether stream, snapshots and the local checkpoint are emptied at start.
    pub reset: bool,
}

/// Bounds of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamConfig {
    /// How long it keeps a batch.
    pub age_max: Duration,
    /// How many bytes it keeps.
    pub bytes_max: u64,
}
