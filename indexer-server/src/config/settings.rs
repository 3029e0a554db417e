//! Settings that belong together, each group as one option with `key=value` pairs.

use kvasir_process::text::{ByteCount, Setting, Settings, Span};
use kvasir_proto::broker::STREAM_AGE_DEFAULT;

/// Settings of `--timing`.
#[derive(Debug, Clone, PartialEq)]
pub struct Timing {
    /// How long suspect blocks stay in the index.
    pub degraded_ttl: Span,
    /// How long a source of a pool may be disconnected before its blocks are removed.
    pub pool_source_timeout: Span,
    /// Time between two probes of an engine's replay socket.
    pub probe_interval: Span,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            degraded_ttl: Span::seconds(600),
            pool_source_timeout: Span::seconds(1_800),
            probe_interval: Span::seconds(30),
        }
    }
}

impl Settings for Timing {
    fn settings(&mut self) -> Vec<(&'static str, &mut dyn Setting)> {
        vec![
            ("degraded-ttl", &mut self.degraded_ttl),
            ("pool-source-timeout", &mut self.pool_source_timeout),
            ("probe-interval", &mut self.probe_interval),
        ]
    }
}

/// Settings of `--nats-stream`.
#[derive(Debug, Clone, PartialEq)]
pub struct NatsStream {
    /// How long the stream retains events.
    pub age: Span,
    /// Maximum size of the stream.
    pub bytes: ByteCount,
    /// Number of messages after which a snapshot is uploaded.
    pub snapshot_threshold: u64,
}

impl Default for NatsStream {
    fn default() -> Self {
        Self {
            age: Span(STREAM_AGE_DEFAULT),
            bytes: ByteCount(1 << 30),
            snapshot_threshold: 1_000_000,
        }
    }
}

impl Settings for NatsStream {
    fn settings(&mut self) -> Vec<(&'static str, &mut dyn Setting)> {
        vec![
            ("age", &mut self.age),
            ("bytes", &mut self.bytes),
            ("snapshot-threshold", &mut self.snapshot_threshold),
        ]
    }
}

/// Settings of `--limits`.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientLimits {
    /// Maximum number of concurrent unary requests.
    pub in_flight: usize,
    /// Maximum number of gRPC connections.
    pub connections: usize,
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self { in_flight: 1_024, connections: 1_024 }
    }
}

impl Settings for ClientLimits {
    fn settings(&mut self) -> Vec<(&'static str, &mut dyn Setting)> {
        vec![("in-flight", &mut self.in_flight), ("connections", &mut self.connections)]
    }
}

/// Settings of `--speculative-blocks`.
#[derive(Debug, Clone, PartialEq)]
pub struct SpeculativeBlocks {
    /// Maximum number of speculative blocks.
    pub max: usize,
    /// Fraction that stays when the maximum is exceeded.
    pub keep_ratio: f64,
}

impl Default for SpeculativeBlocks {
    fn default() -> Self {
        Self { max: 1 << 20, keep_ratio: 0.8 }
    }
}

impl Settings for SpeculativeBlocks {
    fn settings(&mut self) -> Vec<(&'static str, &mut dyn Setting)> {
        vec![("max", &mut self.max), ("keep-ratio", &mut self.keep_ratio)]
    }
}
