//! Workloads for engines: generated conversations, or a recorded trace.
//!
//! - [`conversations`]: an endless, seeded, multi-turn workload with the statistics of a production
//!   trace;
//! - [`synthetic`]: requests about one shared document, and agents, without tokens;
//! - [`trace`]: a trace in the Mooncake JSONL form;
//! - [`profile`]: lengths, gaps and prefix reuse of any workload, to verify claims;
//! - [`tokens`]: token ids as a pure function of a seed and a position.

pub mod conversations;
pub mod profile;
pub mod synthetic;
pub mod tokens;
pub mod trace;

pub use conversations::Conversations;
pub use profile::Profile;
pub use trace::{Trace, TraceError};

use std::time::Duration;

/// One request of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// When it arrives, from the start of the workload.
    pub arrival: Duration,
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// Tokens of the model's answer.
    pub answer: Vec<u32>,
}
