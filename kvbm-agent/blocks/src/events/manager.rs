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
    /// Another pool that uses the same [`EventManager`] has registered the block in this tier.
    #[error("another pool of this event manager has registered the block in this tier")]
    AlreadyRegistered,
    /// The sequence hash names a different block in some tier: one of the two hashes is wrong, or they collide.
    #[error("the sequence hash already names a different block")]
    Conflict,
}

/// Events were lost because the queue was full. The reader must take an [`Image`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("events did not fit into the queue; take an image")]
pub struct Overflowed;

/// Counters and gauges of an [`EventManager`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EventStats {
    /// Registrations published since the start.
    pub registers: u64,
    /// Registrations ended since the start.
    pub removes: u64,
    /// How often the queue overflowed.
    pub overflows: u64,
    /// Events that were never read, because an image replaced them.
    pub dropped_events: u64,
    /// Unread events in the queue.
    pub queued_events: u64,
    /// Blocks that are registered in at least one tier.
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

/// Records all registrations of a worker's tiers, and queues their changes for one reader.
#[derive(Debug)]
pub struct EventManager {
    book: Mutex<Book>,
}

impl EventManager {
    /// Creates a manager with room for `queue_events_max` unread events, at least one.
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

    /// Moves at most `max` unread events, in order, to the end of `events`.
    ///
    /// # Errors
    /// [`Overflowed`] if events were lost. The error is repeated until [`EventManager::image`] is called.
    pub fn read(&self, max: usize, events: &mut Vec<BlockEvent>) -> Result<(), Overflowed> {
        let mut book = self.book.lock();
        if book.is_overflowed {
            return Err(Overflowed);
        }
        let count = book.queue.len().min(max);
        events.extend(book.queue.drain(..count));
        Ok(())
    }

    /// Returns whether there are unread events or an overflow. If not, the next event wakes `waker`, which replaces an
    /// earlier waker.
    pub fn poll(&self, waker: &Waker) -> bool {
        let mut book = self.book.lock();
        let is_ready = book.is_overflowed || !book.queue.is_empty();
        book.waker = (!is_ready).then(|| waker.clone());
        is_ready
    }

    /// Returns all current registrations and clears the queue, because the image includes the unread events. The next
    /// event has the number after the watermark.
    #[must_use]
    pub fn image(&self) -> Image {
        let mut book = self.book.lock();
        book.stats.dropped_events += book.queue.len() as u64;
        book.queue.clear();
        book.is_overflowed = false;
        Self::image_of(book)
    }

    /// Returns all current registrations for an additional reader. The queue is not cleared: it may still contain
    /// events up to the watermark.
    #[must_use]
    pub fn registrations(&self) -> Image {
        Self::image_of(self.book.lock())
    }

    /// Returns all registrations in the order of their positions. Releases the lock before it sorts.
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

    /// Returns the tiers in which a block is registered.
    #[must_use]
    pub fn tiers(&self, sequence: SequenceHash) -> BlockTiers {
        self.book.lock().held.get(&sequence).map_or(BlockTiers::EMPTY, |held| held.tiers)
    }

    /// Returns the tiers of each block of a prompt, in order, read in one critical section.
    #[must_use]
    pub fn tiers_of(&self, sequences: &[SequenceHash]) -> Vec<BlockTiers> {
        let book = self.book.lock();
        let tiers = |at: &SequenceHash| book.held.get(at).map_or(BlockTiers::EMPTY, |at| at.tiers);
        sequences.iter().map(tiers).collect()
    }

    /// Returns whether a block is registered in a tier.
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

    /// Records that a block is in a tier, and queues the event. Fails if the tier already has the block, or if the
    /// hash has another identity.
    pub(super) fn add_registration(&self, registration: Registration) -> Result<(), PublishError> {
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

    /// Records that a block has left a tier, and queues the event.
    pub(super) fn remove_registration(&self, registration: Registration) {
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
    /// Queues an event. If the queue is full, drops all events: the reader must then read an image. Drops further
    /// events until the image is read.
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
            // After an overflow the remaining events are useless: the reader needs an image.
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
