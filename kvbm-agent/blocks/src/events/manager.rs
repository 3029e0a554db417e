use super::{BlockEvent, Change, Image, Registration};
use crate::identity::BlockIdentity;
use crate::planted::{Planted, is_planted};
use crate::tier::{BlockTier, BlockTiers};
use kvasir_proto::types::SequenceHash;
use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use thiserror::Error;

/// Why a registration can't be published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PublishError {
    /// The block is registered in this tier, by another pool with the same events.
    #[error("the block is registered in this tier already")]
    AlreadyRegistered,
    /// Its sequence hash names another block in some tier: one of the two hashes is wrong, or they collide.
    #[error("the sequence hash names another block")]
    Conflict,
}

/// Events were lost: take an [`Image`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("events did not fit into the queue; take an image")]
pub struct Overflowed;

/// Counters and gauges of an [`EventManager`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EventStats {
    /// Registrations ever published.
    pub registers: u64,
    /// Registrations that ended.
    pub removes: u64,
    /// Times that the queue overflowed.
    pub overflows: u64,
    /// Events that no reader got, because an image replaced them.
    pub dropped_events: u64,
    /// Events that wait to be read.
    pub queued_events: u64,
    /// Blocks that are registered in some tier.
    pub held_blocks: u64,
}

/// A block that is registered in at least one tier.
#[derive(Debug)]
struct HeldIn {
    identity: BlockIdentity,
    tiers: BlockTiers,
}

#[derive(Debug)]
struct Book {
    held: FxHashMap<SequenceHash, HeldIn>,
    queue: VecDeque<BlockEvent>,
    queue_events_max: usize,
    last_number: u64,
    is_overflowed: bool,
    waker: Option<Waker>,
    stats: EventStats,
}

/// Knows every registration of a worker's tiers, and queues what changes for one reader.
#[derive(Debug)]
pub struct EventManager {
    book: Mutex<Book>,
}

impl EventManager {
    /// One with room for `queue_events_max` unread events, at least one.
    #[must_use]
    pub fn new(queue_events_max: usize) -> Arc<Self> {
        let queue_events_max = queue_events_max.max(1);
        let book = Book {
            held: FxHashMap::default(),
            queue: VecDeque::new(),
            queue_events_max,
            last_number: 0,
            is_overflowed: false,
            waker: None,
            stats: EventStats::default(),
        };
        Arc::new(Self { book: Mutex::new(book) })
    }

    /// Moves at most `max` events to the end of `events`, in order.
    ///
    /// # Errors
    /// [`Overflowed`] if some were lost, until [`EventManager::image`] is called.
    pub fn read(&self, max: usize, events: &mut Vec<BlockEvent>) -> Result<(), Overflowed> {
        let mut book = self.book.lock();
        if book.is_overflowed {
            return Err(Overflowed);
        }
        let count = book.queue.len().min(max);
        events.extend(book.queue.drain(..count));
        Ok(())
    }

    /// Whether there is something to read; if not, `waker` is woken by the next event. It replaces an earlier waker.
    pub fn poll(&self, waker: &Waker) -> bool {
        let mut book = self.book.lock();
        let is_ready = book.is_overflowed || !book.queue.is_empty();
        book.waker = (!is_ready).then(|| waker.clone());
        is_ready
    }

    /// Everything that is registered now. Unread events are in it, so they are dropped; the next event has the number
    /// after the watermark.
    #[must_use]
    pub fn image(&self) -> Image {
        let mut book = self.book.lock();
        book.stats.dropped_events += book.queue.len() as u64;
        book.queue.clear();
        book.is_overflowed = false;
        Self::image_of(book)
    }

    /// The same for a further reader: the queue stays as it is, and events up to the watermark may still be in it.
    #[must_use]
    pub fn registrations(&self) -> Image {
        Self::image_of(self.book.lock())
    }

    /// Sorts after the lock is given back.
    fn image_of(book: MutexGuard<'_, Book>) -> Image {
        let watermark = book.last_number;
        let mut held: Vec<_> = book.held.values().map(|at| (at.identity, at.tiers)).collect();
        drop(book);
        held.sort_unstable_by_key(|(identity, _)| (identity.position, identity.sequence));
        let of = |(identity, tiers): (BlockIdentity, BlockTiers)| {
            tiers.iter().map(move |tier| Registration { tier, identity })
        };
        Image { watermark, registrations: held.into_iter().flat_map(of).collect() }
    }

    /// The tiers in which a block is registered.
    #[must_use]
    pub fn tiers(&self, sequence: SequenceHash) -> BlockTiers {
        self.book.lock().held.get(&sequence).map_or(BlockTiers::EMPTY, |held| held.tiers)
    }

    /// For each block of a prompt, in order, the tiers in which it is registered. Read under one lock.
    #[must_use]
    pub fn tiers_of(&self, sequences: &[SequenceHash]) -> Vec<BlockTiers> {
        let book = self.book.lock();
        let tiers = |at: &SequenceHash| book.held.get(at).map_or(BlockTiers::EMPTY, |at| at.tiers);
        sequences.iter().map(tiers).collect()
    }

    /// Whether a block is registered in a tier.
    #[must_use]
    pub fn holds(&self, sequence: SequenceHash, tier: BlockTier) -> bool {
        self.tiers(sequence).contains(tier)
    }

    /// Counters and gauges.
    #[must_use]
    pub fn stats(&self) -> EventStats {
        let book = self.book.lock();
        let queued_events = book.queue.len() as u64;
        let held_blocks = book.held.len() as u64;
        EventStats { queued_events, held_blocks, ..book.stats }
    }

    pub(super) fn begin(&self, registration: Registration) -> Result<(), PublishError> {
        let mut book = self.book.lock();
        let Registration { tier, identity } = registration;
        let new = || HeldIn { identity, tiers: BlockTiers::EMPTY };
        let held = book.held.entry(identity.sequence).or_insert_with(new);
        if held.identity != identity {
            return Err(PublishError::Conflict);
        }
        if held.tiers.contains(tier) {
            return Err(PublishError::AlreadyRegistered);
        }
        held.tiers = held.tiers.with(tier);
        book.stats.registers += 1;
        book.push(Change::Register, registration);
        if is_planted(Planted::RegisterTwice) {
            book.push(Change::Register, registration);
        }
        Ok(())
    }

    pub(super) fn end(&self, registration: Registration) {
        let mut book = self.book.lock();
        let sequence = registration.identity.sequence;
        if let Some(held) = book.held.get_mut(&sequence) {
            debug_assert!(held.tiers.contains(registration.tier), "it was registered");
            held.tiers = held.tiers.without(registration.tier);
            if held.tiers.is_empty() {
                book.held.remove(&sequence);
            }
        }
        book.stats.removes += 1;
        if !is_planted(Planted::ForgetRemove) {
            book.push(Change::Remove, registration);
        }
    }
}

impl Book {
    fn push(&mut self, change: Change, registration: Registration) {
        self.last_number += 1;
        if self.is_overflowed {
            self.stats.dropped_events += 1;
            return;
        }
        if self.queue.len() >= self.queue_events_max {
            if is_planted(Planted::SilentOverflow) {
                return;
            }
            // Nobody can use the rest without what is lost.
            self.stats.dropped_events += self.queue.len() as u64 + 1;
            self.stats.overflows += 1;
            self.is_overflowed = true;
            self.queue.clear();
        } else {
            self.queue.push_back(BlockEvent { number: self.last_number, change, registration });
        }
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}
