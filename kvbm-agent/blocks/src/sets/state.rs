use super::registrar::RegisteredRegion;
use super::{AccessError, BlockSetLayout, LimitReached, Quarantined, SetEnd};
use crate::identity::SlotId;
use kvasir_proto::types::WorkerId;
use rustc_hash::FxHashMap;
use std::sync::OnceLock;
use std::task::Waker;

/// Kind of access to blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Shared: any number of readers at a time.
    Read,
    /// Exclusive: one writer, no readers.
    Write,
}

/// The owner of a set.
#[derive(Debug)]
pub(super) enum Owner {
    /// This process: the set is exported.
    Here,
    /// A peer: the set is imported.
    Peer(WorkerId),
}

/// The immutable part of a set, shared by its handles.
#[derive(Debug)]
pub(super) struct Set {
    /// Unique among all sets that a registry ever had.
    pub(super) number: u64,
    pub(super) owner: Owner,
    pub(super) layout: BlockSetLayout,
    /// Set at most once, under the registry's lock.
    pub(super) end: OnceLock<SetEnd>,
}

impl Set {
    pub(super) fn new(number: u64, owner: Owner, layout: BlockSetLayout) -> Self {
        Self { number, owner, layout, end: OnceLock::new() }
    }

    pub(super) fn is_live(&self) -> bool {
        self.end.get().is_none()
    }

    /// Returns an error if the set has ended.
    pub(super) fn check_live(&self) -> Result<(), SetEnd> {
        self.end.get().map_or(Ok(()), |end| Err(*end))
    }

    /// Refuses blocks that the set does not have, and duplicates.
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

/// How a block is used at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Number of readers, at least one.
    Readers(u32),
    Writer,
}

/// Use of a set: blocks, transfers, registered memory. It exists until the set has ended and its transfers have
/// stopped.
#[derive(Debug, Default)]
pub(super) struct Activity {
    pub(super) transfers: u32,
    used: FxHashMap<SlotId, Use>,
    /// Registered memory of an exported set.
    pub(super) regions: Vec<RegisteredRegion>,
    /// Tasks that wait for the end of the quarantine, at most [`WAKERS_MAX`].
    pub(super) wakers: Vec<Waker>,
}

/// Maximum tasks waiting for one set. If more wait, all are woken and poll again.
const WAKERS_MAX: usize = 64;

impl Activity {
    pub(super) fn new(regions: Vec<RegisteredRegion>) -> Self {
        Self { regions, ..Self::default() }
    }

    /// Registers a waker for the end of the quarantine. At [`WAKERS_MAX`] wakers, the earlier ones are woken now.
    pub(super) fn wake_later(&mut self, waker: &Waker, released: &mut Released) {
        if self.wakers.iter().any(|other| other.will_wake(waker)) {
            return;
        }
        if self.wakers.len() >= WAKERS_MAX {
            released.wakers.append(&mut self.wakers);
        }
        self.wakers.push(waker.clone());
    }

    /// Takes all `blocks`, which are distinct. Fails, and takes no block, if one is in use: several transfers may read
    /// a block, only one may write it.
    pub(super) fn acquire_blocks(
        &mut self,
        blocks: &[SlotId],
        access: Access,
    ) -> Result<(), AccessError> {
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

    /// Releases blocks that a transfer has taken.
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

/// Work to do after the registry's lock is released: backends and wakers may call the registry again.
#[derive(Debug, Default)]
#[must_use]
pub(super) struct Released {
    pub(super) regions: Vec<RegisteredRegion>,
    pub(super) wakers: Vec<Waker>,
}

impl Released {
    pub(super) fn finish(self) {
        // Deregister first: a woken task may register the same memory.
        drop(self.regions);
        for waker in self.wakers {
            waker.wake();
        }
    }
}

/// Refuses one more entry if `count` entries already reach the limit.
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

/// The error for an id that is still quarantined.
pub(super) fn quarantined(set: &Set, activity: Option<&Activity>) -> Quarantined {
    let transfers = activity.map_or(0, |activity| activity.transfers);
    Quarantined { set: set.layout.id(), transfers }
}
