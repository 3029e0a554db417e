use super::registrar::RegisteredRegion;
use super::{AccessError, BlockSetLayout, LimitReached, Quarantined, SetEnd};
use crate::identity::SlotId;
use kvasir_proto::types::WorkerId;
use rustc_hash::FxHashMap;
use std::sync::OnceLock;
use std::task::Waker;

/// What is done with blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Their bytes are read: by any number at a time.
    Read,
    /// Their bytes are written: by one, while nobody reads.
    Write,
}

/// Whose a set is.
#[derive(Debug)]
pub(super) enum Owner {
    /// This process: the set is exported.
    Here,
    /// A peer: the set is imported.
    Peer(WorkerId),
}

/// What all handles of a set share, and what does not change.
#[derive(Debug)]
pub(super) struct Set {
    /// Differs for all sets that a registry ever had.
    pub(super) number: u64,
    pub(super) owner: Owner,
    pub(super) layout: BlockSetLayout,
    /// Set once, under the registry's lock.
    pub(super) end: OnceLock<SetEnd>,
}

impl Set {
    pub(super) fn new(number: u64, owner: Owner, layout: BlockSetLayout) -> Self {
        Self { number, owner, layout, end: OnceLock::new() }
    }

    pub(super) fn is_live(&self) -> bool {
        self.end.get().is_none()
    }

    /// Refuses a set that has ended.
    pub(super) fn check_live(&self) -> Result<(), SetEnd> {
        self.end.get().map_or(Ok(()), |end| Err(*end))
    }

    /// Refuses blocks that the set does not have, or that are named twice.
    pub(super) fn check_blocks(&self, blocks: &[SlotId]) -> Result<(), AccessError> {
        let count = self.layout.num_blocks();
        if let Some(&block) = blocks.iter().find(|block| block.0 >= count) {
            return Err(AccessError::OutOfRange { block, count });
        }
        let mut sorted = blocks.to_vec();
        sorted.sort_unstable();
        let twice = sorted.windows(2).find_map(|pair| match pair {
            [first, second] if first == second => Some(*first),
            _ => None,
        });
        twice.map_or(Ok(()), |block| Err(AccessError::Duplicate { block }))
    }
}

/// How a block is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// By so many readers, at least one.
    Readers(u32),
    Writer,
}

/// What happens to a set: there is one until it has ended and its transfers have stopped.
#[derive(Debug, Default)]
pub(super) struct Activity {
    pub(super) transfers: u32,
    used: FxHashMap<SlotId, Use>,
    /// The memory of a set that is exported.
    pub(super) regions: Vec<RegisteredRegion>,
    /// Who waits for the end of its quarantine, at most [`WAKERS_MAX`].
    pub(super) wakers: Vec<Waker>,
}

/// Tasks that wait for one set. With more, all are woken, and those that still wait ask again.
const WAKERS_MAX: usize = 64;

impl Activity {
    pub(super) fn new(regions: Vec<RegisteredRegion>) -> Self {
        Self { regions, ..Self::default() }
    }

    /// Wakes a task when the quarantine ends, or before.
    pub(super) fn wake_later(&mut self, waker: &Waker, released: &mut Released) {
        if self.wakers.iter().any(|other| other.will_wake(waker)) {
            return;
        }
        if self.wakers.len() >= WAKERS_MAX {
            released.wakers.append(&mut self.wakers);
        }
        self.wakers.push(waker.clone());
    }

    /// Takes all of `blocks`, which differ, or none.
    pub(super) fn take(&mut self, blocks: &[SlotId], access: Access) -> Result<(), AccessError> {
        let is_busy = |block: &&SlotId| match (self.used.get(block), access) {
            (None, _) => false,
            (Some(Use::Readers(count)), Access::Read) => *count == u32::MAX,
            (Some(_), _) => true,
        };
        if let Some(&block) = blocks.iter().find(is_busy) {
            return Err(AccessError::Busy { block });
        }
        for &block in blocks {
            match access {
                Access::Write => drop(self.used.insert(block, Use::Writer)),
                Access::Read => {
                    let used = self.used.entry(block).or_insert(Use::Readers(0));
                    if let Use::Readers(count) = used {
                        *count += 1;
                    }
                }
            }
        }
        Ok(())
    }

    /// Gives back what was taken.
    pub(super) fn give_back(&mut self, blocks: &[SlotId]) {
        for block in blocks {
            match self.used.get_mut(block) {
                Some(Use::Readers(count)) if *count > 1 => *count -= 1,
                Some(_) => drop(self.used.remove(block)),
                None => debug_assert!(false, "it was taken"),
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_unused(&self) -> bool {
        self.used.is_empty()
    }
}

/// What is done once the registry's lock is free: backends and wakers may call the registry again.
#[derive(Debug, Default)]
#[must_use]
pub(super) struct Released {
    pub(super) regions: Vec<RegisteredRegion>,
    pub(super) wakers: Vec<Waker>,
}

impl Released {
    pub(super) fn finish(self) {
        // Deregistered first: who is woken may register the same memory.
        drop(self.regions);
        for waker in self.wakers {
            waker.wake();
        }
    }
}

/// Refuses one more where there are `count`.
pub(super) const fn below(
    limit: &'static str,
    count: usize,
    max: usize,
) -> Result<(), LimitReached> {
    if count < max {
        return Ok(());
    }
    Err(LimitReached { limit, max: max as u64 })
}

/// What keeps an id from being used.
pub(super) fn quarantined(set: &Set, activity: Option<&Activity>) -> Quarantined {
    let transfers = activity.map_or(0, |activity| activity.transfers);
    Quarantined { set: set.layout.id(), transfers }
}
