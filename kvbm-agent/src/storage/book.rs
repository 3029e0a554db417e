use super::{STORAGE_BATCH_EVENTS, STORAGE_QUEUED_EVENTS_MAX, StorageConfig, Waiting, Work};
use kvasir_blocks::BlockEvent;
use parking_lot::Mutex;
use std::time::Duration;
use tokio::sync::Notify;

/// Figures of storage events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StorageStats {
    /// Whether there is a connection that they are published over.
    pub is_connected: bool,
    /// Events published, without those of images.
    pub events: u64,
    /// Batches published, of changes, of images and signs of life.
    pub batches: u64,
    /// Images published.
    pub images: u64,
    /// Blocks in them.
    pub image_blocks: u64,
    /// Events that wait.
    pub queued_events: u64,
    /// Events that were not published, for an image took their place.
    pub dropped_events: u64,
    /// Times that more events waited than may.
    pub overflows: u64,
}

#[derive(Debug)]
struct Pages {
    waiting: Waiting,
    stats: StorageStats,
}

/// What happened and is to be published: told by the reader of the block manager's events, read by the publisher. Neither
/// waits for the other.
#[derive(Debug)]
pub struct StorageBook {
    config: StorageConfig,
    pages: Mutex<Pages>,
    filled: Notify,
}

impl StorageBook {
    /// An empty one.
    #[must_use]
    pub fn new(config: StorageConfig) -> Self {
        let waiting = Waiting::new(config.interval, STORAGE_QUEUED_EVENTS_MAX);
        let pages = Mutex::new(Pages { waiting, stats: StorageStats::default() });
        Self { config, pages, filled: Notify::new() }
    }

    /// How they are published.
    #[must_use]
    pub const fn config(&self) -> &StorageConfig {
        &self.config
    }

    /// Takes what happened. Never waits for the publisher.
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

    /// The reader lost events up to `watermark`.
    pub fn lost(&self, watermark: u64) {
        self.pages.lock().waiting.lost(watermark);
        self.filled.notify_one();
    }

    /// Waits until a batch is full, or events were lost.
    pub async fn filled(&self) {
        self.filled.notified().await;
    }

    /// What is to be published, and when to look again.
    pub fn next(&self, now: Duration) -> (Work, Duration) {
        let waiting = &mut self.pages.lock().waiting;
        (waiting.next(now), waiting.next_at())
    }

    /// Subscribers need an image.
    pub fn demand_image(&self) {
        self.pages.lock().waiting.demand_image();
    }

    /// An image was made, and has every event up to `watermark`.
    pub fn image_taken(&self, watermark: u64) {
        self.pages.lock().waiting.image_taken(watermark);
    }

    /// What waits is due now.
    pub fn hurry(&self) {
        self.pages.lock().waiting.hurry();
    }

    /// Notes what was published, or whether there is a connection.
    pub fn note(&self, change: impl FnOnce(&mut StorageStats)) {
        change(&mut self.pages.lock().stats);
    }

    /// Figures of this moment.
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
