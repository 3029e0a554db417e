//! Stored form of the reasons why a source was not exact.

use kvasir_proto::types::{Reason, StateReason};
use prost::Message;
use std::time::Duration;

/// Why a source was not exact.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct ReasonRecord {
    #[prost(uint32, tag = "1")]
    reason: u32,
    #[prost(uint64, tag = "2")]
    count: u64,
    #[prost(string, tag = "3")]
    example: String,
}

impl ReasonRecord {
    pub(super) fn from_reason(seen: &StateReason) -> Self {
        let StateReason { reason, count, example, .. } = seen;
        Self { reason: *reason as u32, count: *count, example: example.to_string() }
    }

    /// Converts to a reason. `None` for a reason that this server does not support.
    pub(super) fn into_reason(self) -> Option<StateReason> {
        let Self { reason, count, example } = self;
        let reason = Reason::ALL.iter().copied().find(|known| *known as u32 == reason)?;
        Some(StateReason { reason, count, example: example.into(), since: Duration::ZERO })
    }
}
