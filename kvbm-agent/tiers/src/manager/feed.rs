//! Event stream of registrations, for the index: a snapshot, then changes.

use super::error::FeedTaken;
use super::shared::Shared;
use kvasir_blocks::BlockEvent;
use kvasir_blocks::events::Image;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

/// Maximum events of one step.
const STEP_EVENTS_MAX: usize = 4_096;

/// The next item of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FeedStep {
    /// Changes in order, with no gap after the previous step.
    Events(Vec<BlockEvent>),
    /// A snapshot of all registrations. It replaces everything sent before.
    Image(Image),
}

/// Streams a snapshot of all registrations, then their changes. A slow reader gets a new snapshot; pools never wait for
/// the reader.
#[derive(Debug)]
pub struct EventFeed {
    shared: Arc<Shared>,
    is_begun: bool,
}

impl EventFeed {
    pub(super) fn acquire(shared: &Arc<Shared>) -> Result<Self, FeedTaken> {
        if shared.is_feed_taken.swap(true, Ordering::AcqRel) {
            return Err(FeedTaken);
        }
        Ok(Self { shared: Arc::clone(shared), is_begun: false })
    }

    /// Waits for the next step: first an image, then events, and another image after an overflow. Cancel-safe: dropping
    /// the future loses nothing.
    pub async fn next(&mut self) -> FeedStep {
        let events = self.shared.state.events();
        if !self.is_begun {
            self.is_begun = true;
            return FeedStep::Image(events.image());
        }
        let ready = |context: &mut std::task::Context<'_>| {
            if events.poll(context.waker()) { Poll::Ready(()) } else { Poll::Pending }
        };
        poll_fn(ready).await;
        let mut step = Vec::new();
        match events.read(STEP_EVENTS_MAX, &mut step) {
            Ok(()) => FeedStep::Events(step),
            Err(_overflowed) => FeedStep::Image(events.image()),
        }
    }
}

impl Drop for EventFeed {
    fn drop(&mut self) {
        self.shared.is_feed_taken.store(false, Ordering::Release);
    }
}
