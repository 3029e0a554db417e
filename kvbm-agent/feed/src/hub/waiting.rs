//! Small batches of a rank as one: what waits to be said. Pure: time is an argument.

use super::HubError;
use kvasir_proto::types::{DpRank, KvEvent};
use std::collections::BTreeMap;
use std::mem;
use std::time::Duration;
use tokio::time::Instant;

/// Longest that anything may wait.
pub const BATCH_INTERVAL_MAX: Duration = Duration::from_secs(10);
/// Most blocks that may wait.
pub const BATCH_BLOCKS_MAX: usize = 65_536;

/// How long sources' batches wait for others, to be said together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchingConfig {
    /// How long the first of them waits, at most [`BATCH_INTERVAL_MAX`]; 0 to say each as it comes.
    pub interval: Duration,
    /// Once so many blocks wait, stored and removed ones over all ranks, they are said: 1 to
    /// [`BATCH_BLOCKS_MAX`].
    pub blocks_max: usize,
}

impl BatchingConfig {
    /// Each batch is said as it comes.
    pub const DEFAULT: Self = Self { interval: Duration::ZERO, blocks_max: 4_096 };

    /// Whether nothing waits ever.
    #[must_use]
    pub const fn is_off(&self) -> bool {
        self.interval.is_zero()
    }

    /// Checks it.
    ///
    /// # Errors
    /// If a value is out of its range.
    pub fn check(&self) -> Result<(), HubError> {
        if self.interval > BATCH_INTERVAL_MAX {
            return Err(HubError::BatchInterval(self.interval));
        }
        if !(1..=BATCH_BLOCKS_MAX).contains(&self.blocks_max) {
            return Err(HubError::BatchBlocks(self.blocks_max));
        }
        Ok(())
    }
}

/// What waits, in order for each rank. Nothing is left out of it: a block that is stored and removed in the meantime
/// is said to be both, since only the reader knows how copies count.
#[derive(Debug)]
pub(super) struct Waiting {
    config: BatchingConfig,
    ranks: BTreeMap<DpRank, Vec<KvEvent>>,
    /// Block operations in them.
    blocks: usize,
    /// When all of it is said at the latest; none while nothing waits.
    due: Option<Instant>,
}

impl Waiting {
    pub(super) const fn new(config: BatchingConfig) -> Self {
        Self { config, ranks: BTreeMap::new(), blocks: 0, due: None }
    }

    /// Blocks that wait.
    pub(super) const fn blocks(&self) -> usize {
        self.blocks
    }

    /// When what waits is to be said at the latest; none while nothing waits.
    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Takes what is said of a rank. A clear is not to wait, nor what came before it.
    pub(super) fn add(&mut self, rank: DpRank, events: Vec<KvEvent>, now: Instant) {
        if events.is_empty() {
            return;
        }
        self.blocks += events.iter().map(KvEvent::operations).sum::<usize>();
        let at_once = self.blocks >= self.config.blocks_max || events.contains(&KvEvent::Cleared);
        self.ranks.entry(rank).or_default().extend(events);
        let due = self.due.unwrap_or(now + self.config.interval);
        self.due = Some(if at_once { now } else { due });
    }

    /// What is to be said now, rank by rank.
    pub(super) fn take_due(&mut self, now: Instant) -> BTreeMap<DpRank, Vec<KvEvent>> {
        if self.due.is_some_and(|due| due <= now) { self.take_all() } else { BTreeMap::new() }
    }

    /// All that waits, rank by rank.
    pub(super) fn take_all(&mut self) -> BTreeMap<DpRank, Vec<KvEvent>> {
        (self.blocks, self.due) = (0, None);
        mem::take(&mut self.ranks)
    }
}
