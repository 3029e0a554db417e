//! Collects small batches of each rank into larger ones. Pure: time is an argument.

use super::config::BatchingConfig;
use kvasir_proto::types::{DpRank, KvEvent};
use std::collections::BTreeMap;
use std::mem;
use tokio::time::Instant;

/// Events that wait to be published, in order for each rank. A block that is stored and removed meanwhile is published
/// as both, because only the reader knows how copies count.
#[derive(Debug)]
pub(super) struct Waiting {
    config: BatchingConfig,
    ranks: BTreeMap<DpRank, Vec<KvEvent>>,
    /// Number of waiting block operations.
    blocks: usize,
    /// Latest time to publish all waiting events; `None` if there are none.
    due: Option<Instant>,
}

impl Waiting {
    pub(super) const fn new(config: BatchingConfig) -> Self {
        Self { config, ranks: BTreeMap::new(), blocks: 0, due: None }
    }

    /// Number of waiting block operations.
    pub(super) const fn blocks(&self) -> usize {
        self.blocks
    }

    /// Latest time to publish the waiting events; `None` if there are none.
    pub(super) const fn due_at(&self) -> Option<Instant> {
        self.due
    }

    /// Adds events of a rank, which are due after the interval. A clear, or a full batch, makes all waiting events due
    /// immediately.
    pub(super) fn add(&mut self, rank: DpRank, events: Vec<KvEvent>, now: Instant) {
        if events.is_empty() {
            return;
        }
        self.blocks += events.iter().map(KvEvent::operations).sum::<usize>();
        let at_once = self.blocks >= self.config.blocks_max || events.contains(&KvEvent::Cleared);
        self.ranks.entry(rank).or_default().extend(events);
        let due = self.due.unwrap_or(now + self.config.interval);
        self.due = Some(if at_once { now } else { due });
        debug_assert!(due <= now + self.config.interval, "nothing waits longer");
    }

    /// Takes the events that are due, by rank.
    pub(super) fn take_due(&mut self, now: Instant) -> BTreeMap<DpRank, Vec<KvEvent>> {
        if self.due.is_some_and(|due| due <= now) { self.take_all() } else { BTreeMap::new() }
    }

    /// Takes all waiting events, by rank.
    pub(super) fn take_all(&mut self) -> BTreeMap<DpRank, Vec<KvEvent>> {
        debug_assert_eq!(self.due.is_none(), self.ranks.is_empty(), "what waits has a time");
        (self.blocks, self.due) = (0, None);
        mem::take(&mut self.ranks)
    }
}
