use kvasir_blocks::BlockEvent;
use kvasir_proto::limits::STORAGE_BATCH_EVENTS_MAX;
use std::collections::VecDeque;
use std::time::Duration;

/// Once so many events wait, they are published before their time.
pub const STORAGE_BATCH_EVENTS: usize = 2_048;
/// Most events that wait, of about 60 bytes each. With more, an image takes their place.
pub const STORAGE_QUEUED_EVENTS_MAX: usize = 65_536;

const _: () = assert!(STORAGE_BATCH_EVENTS <= STORAGE_BATCH_EVENTS_MAX);
const _: () = assert!(STORAGE_BATCH_EVENTS < STORAGE_QUEUED_EVENTS_MAX);

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// Publish a snapshot of all registered blocks, and call [`Waiting::image_taken`] with its watermark.
    Image,
    /// Publish these events in order. There are at most [`STORAGE_BATCH_EVENTS_MAX`].
    Events {
        /// What happened.
        events: Vec<BlockEvent>,
        /// Whether to publish an empty batch for each location that published nothing since the last such work.
        ends_round: bool,
    },
    /// There is nothing to do before [`Waiting::next_at`], unless new events arrive.
    Nothing,
}

/// Changes that wait to be published. All times are relative to one arbitrary start.
#[derive(Debug)]
pub struct Waiting {
    interval: Duration,
    events_max: usize,
    events: VecDeque<BlockEvent>,
    /// Number of the last event that the last image has.
    watermark: u64,
    wants_image: bool,
    image_not_before: Duration,
    round_ends_at: Duration,
    overflows: u64,
    dropped_events: u64,
}

impl Waiting {
    /// Nothing was published yet, so it begins with an image. At most `events_max` events wait, for `interval` each.
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

    /// Takes what happened, in order and without a gap to what was taken before. Never waits, and takes no more memory than
    /// `events_max` events do.
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

    /// Events up to `watermark` were dropped before they reached this queue.
    pub fn lost(&mut self, watermark: u64) {
        if watermark > self.watermark {
            self.demand_image();
        }
    }

    /// A subscriber misses events, or may miss some: the next work is an image.
    pub fn demand_image(&mut self) {
        // What waits will be in it.
        self.dropped_events += self.events.len() as u64;
        self.events.clear();
        self.wants_image = true;
    }

    /// What is to be published at `now`.
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

    /// An image was made, and has every event up to `watermark`.
    pub fn image_taken(&mut self, watermark: u64) {
        self.watermark = watermark;
        self.events.retain(|event| event.number > watermark);
    }

    /// When there is something to do, if nothing more happens.
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

    /// Makes all waiting events due now, and a wanted image too.
    pub const fn hurry(&mut self) {
        self.round_ends_at = Duration::ZERO;
        self.image_not_before = Duration::ZERO;
    }

    /// Events that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Times that more events waited than may.
    #[must_use]
    pub const fn overflows(&self) -> u64 {
        self.overflows
    }

    /// Events that images took the place of.
    #[must_use]
    pub const fn dropped_events(&self) -> u64 {
        self.dropped_events
    }
}

#[cfg(test)]
#[path = "waiting_test.rs"]
mod tests;
