use kvasir_blocks::BlockEvent;
use kvasir_proto::limits::STORAGE_BATCH_EVENTS_MAX;
use std::collections::VecDeque;
use std::time::Duration;

/// Number of waiting events from which they are published early.
pub const STORAGE_BATCH_EVENTS: usize = 2_048;
/// Maximum number of waiting events, of about 60 bytes each. Beyond it, an image replaces them.
pub const STORAGE_QUEUED_EVENTS_MAX: usize = 65_536;

const _: () = assert!(STORAGE_BATCH_EVENTS <= STORAGE_BATCH_EVENTS_MAX);
const _: () = assert!(STORAGE_BATCH_EVENTS < STORAGE_QUEUED_EVENTS_MAX);

/// Next work for the publisher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// Publish an image of all registered blocks, and call [`Waiting::image_taken`] with its watermark.
    Image,
    /// Publish these events in order. There are at most [`STORAGE_BATCH_EVENTS_MAX`].
    Events {
        /// The events.
        events: Vec<BlockEvent>,
        /// Whether to publish an empty batch for each location that published nothing since the last such work.
        ends_round: bool,
    },
    /// No work before [`Waiting::next_at`], unless new events arrive.
    Nothing,
}

/// Changes that wait to be published. All times are relative to one arbitrary start.
#[derive(Debug)]
pub struct Waiting {
    interval: Duration,
    events_max: usize,
    events: VecDeque<BlockEvent>,
    /// Number of the last event that the last image includes.
    watermark: u64,
    wants_image: bool,
    image_not_before: Duration,
    round_ends_at: Duration,
    overflows: u64,
    dropped_events: u64,
}

impl Waiting {
    /// Creates a queue that begins with an image. At most `events_max` events wait, for `interval` each.
    #[must_use]
    pub const fn new(interval: Duration, events_max: usize) -> Self {
        Self {
            interval,
            events_max,
            events: VecDeque::new(),
            watermark: 0,
            wants_image: true,
            image_not_before: Duration::ZERO,
            round_ends_at: Duration::ZERO,
            overflows: 0,
            dropped_events: 0,
        }
    }

    /// Queues events, which follow the earlier ones without a gap. Never waits. Drops the events if an image is due
    /// anyway; drops all queued events and demands an image if more than `events_max` are queued.
    pub fn push(&mut self, events: &[BlockEvent]) {
        let new = events.iter().filter(|event| event.number > self.watermark);
        if self.wants_image {
            self.dropped_events += new.count() as u64;
            return;
        }
        self.events.extend(new);
        if self.events.len() > self.events_max {
            self.overflows += 1;
            self.demand_image();
        }
    }

    /// Records that events up to `watermark` were dropped before they reached this queue.
    pub fn lost(&mut self, watermark: u64) {
        if watermark > self.watermark {
            self.demand_image();
        }
    }

    /// Makes the next work an image, because a subscriber lacks events, or may lack some.
    pub fn demand_image(&mut self) {
        // The image will include the waiting events.
        self.dropped_events += self.events.len() as u64;
        self.events.clear();
        self.wants_image = true;
    }

    /// Returns the work that is due at `now`: an image, a batch of events, or nothing.
    pub fn next(&mut self, now: Duration) -> Work {
        if self.wants_image && now >= self.image_not_before {
            self.image_not_before = now + self.interval;
            self.wants_image = false;
            return Work::Image;
        }
        let ends_round = now >= self.round_ends_at && self.events.len() <= STORAGE_BATCH_EVENTS_MAX;
        if now < self.round_ends_at && self.events.len() < STORAGE_BATCH_EVENTS {
            return Work::Nothing;
        }
        if ends_round {
            self.round_ends_at = now + self.interval;
        }
        let count = self.events.len().min(STORAGE_BATCH_EVENTS_MAX);
        Work::Events { events: self.events.drain(..count).collect(), ends_round }
    }

    /// Records that an image was made, which includes every event up to `watermark`.
    pub fn image_taken(&mut self, watermark: u64) {
        self.watermark = watermark;
        self.events.retain(|event| event.number > watermark);
    }

    /// Returns the time at which work is due if no further events arrive.
    #[must_use]
    pub fn next_at(&self) -> Duration {
        if self.wants_image {
            self.image_not_before.min(self.round_ends_at)
        } else if self.events.len() >= STORAGE_BATCH_EVENTS {
            Duration::ZERO
        } else {
            self.round_ends_at
        }
    }

    /// Makes all waiting events, and a requested image, due now.
    pub const fn hurry(&mut self) {
        self.round_ends_at = Duration::ZERO;
        self.image_not_before = Duration::ZERO;
    }

    /// Number of waiting events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether no event waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// How often the maximum number of waiting events was exceeded.
    #[must_use]
    pub const fn overflows(&self) -> u64 {
        self.overflows
    }

    /// Number of events that images replaced.
    #[must_use]
    pub const fn dropped_events(&self) -> u64 {
        self.dropped_events
    }
}

#[cfg(test)]
#[path = "waiting_test.rs"]
mod tests;
