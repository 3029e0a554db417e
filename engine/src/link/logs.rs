//! Rate-limited log lines for events that an engine can cause.

use super::replay::ReplayError;
use crate::decode::{DecodeError, Unreadable};
use crate::throttle::Throttle;
use crate::zmtp::LinkError;
use std::fmt::Display;
use std::time::Duration;
use tokio::time::Instant;

/// Minimum time between two log lines of one kind.
const INTERVAL: Duration = Duration::from_secs(10);

pub(super) struct Logs {
    link: Throttle,
    replay: Throttle,
    content: Throttle,
    /// Fields of unreadable events that were logged: at most as many as the decoder has names for.
    unreadable: Vec<&'static str>,
}

impl Logs {
    pub(super) const fn new() -> Self {
        Self {
            link: Throttle::every(INTERVAL),
            replay: Throttle::every(INTERVAL),
            content: Throttle::every(INTERVAL),
            unreadable: Vec::new(),
        }
    }

    pub(super) fn disconnected(&mut self, error: &LinkError) {
        if let Some(num_suppressed) = self.link.admit(Instant::now()) {
            tracing::warn!(%error, num_suppressed, "publisher is not connected");
        }
    }

    pub(super) fn replay_failed(&mut self, endpoint: Option<&impl Display>, error: &ReplayError) {
        if let Some(num_suppressed) = self.replay.admit(Instant::now()) {
            let endpoint = endpoint.map(ToString::to_string);
            tracing::warn!(
                endpoint,
                %error,
                num_suppressed,
                "replay failed: batches that were published before the connection, or lost, stay missing; check the \
                 replay endpoint"
            );
        }
    }

    pub(super) fn malformed(&mut self, error: &impl Display) {
        if let Some(num_suppressed) = self.content.admit(Instant::now()) {
            tracing::warn!(%error, num_suppressed, "malformed message");
        }
    }

    pub(super) fn unbelievable(&mut self, sequence: u64) {
        if let Some(num_suppressed) = self.content.admit(Instant::now()) {
            tracing::warn!(
                sequence,
                num_suppressed,
                "a batch is dropped: its number is too far beyond the one before, or beyond any engine's"
            );
        }
    }

    /// Logs an unreadable event, once per field.
    pub(super) fn unreadable(&mut self, sequence: u64, unreadable: Unreadable) {
        let Unreadable { field, fault, .. } = unreadable;
        if !self.unreadable.contains(&field) {
            self.unreadable.push(field);
            let fault = fault.as_str();
            tracing::warn!(
                sequence,
                field,
                fault,
                "event cannot be read: its blocks are not known"
            );
        }
    }

    pub(super) fn undecodable(&mut self, sequence: u64, error: &DecodeError) {
        if let Some(num_suppressed) = self.content.admit(Instant::now()) {
            tracing::warn!(sequence, %error, num_suppressed, "batch cannot be read");
        }
    }
}
