//! Settings that belong together, each group as one option with `key=value` pairs.

use kvasir_process::text::{ByteCount, Setting, Settings, Span};

/// Settings of `--timeouts`.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeouts {
    /// Maximum wait for a connection to an engine.
    pub connect: Span,
    /// Maximum wait for an engine's answer: for the first bytes of a stream, or for the complete answer.
    pub answer: Span,
    /// Maximum time between two events of an engine's stream.
    pub stall: Span,
    /// Maximum wait for the body of a client's request.
    pub body: Span,
    /// Maximum wait for rendered tokens.
    pub render: Span,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Span::seconds(2),
            answer: Span::seconds(600),
            stall: Span::seconds(120),
            body: Span::seconds(30),
            render: Span::seconds(5),
        }
    }
}

impl Settings for Timeouts {
    fn settings(&mut self) -> Vec<(&'static str, &mut dyn Setting)> {
        vec![
            ("connect", &mut self.connect),
            ("answer", &mut self.answer),
            ("stall", &mut self.stall),
            ("body", &mut self.body),
            ("render", &mut self.render),
        ]
    }
}

/// Settings of `--limits`.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Maximum number of concurrent requests.
    pub in_flight: usize,
    /// Maximum number of client connections.
    pub connections: usize,
    /// Maximum size of a client's request.
    pub body_bytes: ByteCount,
    /// Maximum memory for the cached tokens of earlier prompts.
    pub token_cache_bytes: ByteCount,
    /// Maximum retries of a request on other workers.
    pub retries: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            in_flight: 4_096,
            connections: 8_192,
            body_bytes: ByteCount(16 << 20),
            token_cache_bytes: ByteCount(64 << 20),
            retries: 2,
        }
    }
}

impl Settings for Limits {
    fn settings(&mut self) -> Vec<(&'static str, &mut dyn Setting)> {
        vec![
            ("in-flight", &mut self.in_flight),
            ("connections", &mut self.connections),
            ("body-bytes", &mut self.body_bytes),
            ("token-cache-bytes", &mut self.token_cache_bytes),
            ("retries", &mut self.retries),
        ]
    }
}
