use super::{STORAGE_BATCH_EVENTS, STORAGE_QUEUED_EVENTS_MAX, StorageConfig, Waiting, Work};
use kvasir_blocks::BlockEvent;
use parking_lot::Mutex;
use std::time::Duration;
use tokio::sync::Notify;

/// Metrics of storage events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StorageStats {
    /// Whether the connection for storage events is open.
    pub is_connected: bool,
    /// Number of published events; the events of images do not count.
    pub events: u64,
    /// Number of published batches: changes, images, and empty ones.
    pub batches: u64,
    /// Number of published images.
    pub images: u64,
    /// Number of blocks in published images.
    pub image_blocks: u64,
    /// Number of waiting events.
    pub queued_events: u64,
    /// Number of events that were not published, because an image replaced them.
    pub dropped_events: u64,
    /// How often the maximum number of waiting events was exceeded.
    pub overflows: u64,
}

#[derive(Debug)]
struct Pages {
    waiting: Waiting,
    stats: StorageStats,
}

/// Queue of storage events between the reader of the block manager's events and the publisher. Neither waits for the
/// other.
#[derive(Debug)]
pub struct StorageBook {
    config: StorageConfig,
    pages: Mutex<Pages>,
    filled: Notify,
}

impl StorageBook {
    /// Creates an empty queue.
    #[must_use]
    pub fn new(config: StorageConfig) -> Self {
        let waiting = Waiting::new(config.interval, STORAGE_QUEUED_EVENTS_MAX);
        let pages = Mutex::new(Pages { waiting, stats: StorageStats::default() });
        Self { config, pages, filled: Notify::new() }
    }

    /// How storage events are published.
    #[must_use]
    pub const fn config(&self) -> &StorageConfig {
        &self.config
    }

    /// Queues events for the publisher, without waiting. Wakes the publisher once a full batch is queued.
    pub fn push(&self, events: &[BlockEvent]) {
        let is_full = {
            let waiting = &mut self.pages.lock().waiting;
            waiting.push(events);
            waiting.len() >= STORAGE_BATCH_EVENTS
        };
        if is_full {
            self.filled.notify_one();
        }
    }

    /// Records that the reader lost events up to `watermark`.
    pub fn lost(&self, watermark: u64) {
        self.pages.lock().waiting.lost(watermark);
        self.filled.notify_one();
    }

    /// Waits until a batch is full, or events were lost.
    pub async fn filled(&self) {
        self.filled.notified().await;
    }

    /// The next work for the publisher, and when to ask again.
    pub fn next(&self, now: Duration) -> (Work, Duration) {
        let waiting = &mut self.pages.lock().waiting;
        (waiting.next(now), waiting.next_at())
    }

    /// Requests an image, because subscribers need one.
    pub fn demand_image(&self) {
        self.pages.lock().waiting.demand_image();
    }

    /// Records that an image was made, which includes every event up to `watermark`.
    pub fn image_taken(&self, watermark: u64) {
        self.pages.lock().waiting.image_taken(watermark);
    }

    /// Makes all waiting events due now.
    pub fn hurry(&self) {
        self.pages.lock().waiting.hurry();
    }

    /// Updates the metrics.
    pub fn note(&self, change: impl FnOnce(&mut StorageStats)) {
        change(&mut self.pages.lock().stats);
    }

    /// Current metrics.
    #[must_use]
    pub fn stats(&self) -> StorageStats {
        let pages = self.pages.lock();
        let Pages { waiting, stats } = &*pages;
        StorageStats {
            queued_events: waiting.len() as u64,
            dropped_events: waiting.dropped_events(),
            overflows: waiting.overflows(),
            ..*stats
        }
    }
}
