//! Storages that fail by a seed, for tests. One [`Plan`] decides for all of them.
//!
//! Where a fault is put matters: what happens to bytes must happen below the checksum. So a file's faults are in a
//! [`FaultyMedium`]; memory is damaged in its slot, before it is read ([`FaultyStorage`], [`damage_host`]).

use crate::block::{NewBlock, Sealed};
use crate::cancel::Cancel;
use crate::disk::Medium;
use crate::error::TransferError;
use crate::host::HostStorage;
use crate::storage::{Place, Storage, StorageKind};
use kvasir_memory::{ReadSlot, WriteSlot};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The unit in which reads and writes are cut short: direct I/O needs it.
const PAGE_BYTES: usize = 4096;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A call moves a part of its bytes, and the next one goes on.
    Short,
    /// The file ends here.
    End,
    /// A bit is another one.
    Flip,
    /// ENOSPC.
    Full,
    /// EIO, after a part of the bytes was moved.
    Io,
    /// It takes long.
    Delay,
    /// It is cancelled before it begins.
    Cancel,
}

/// How many of 1,000 calls go wrong, and how.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rates {
    /// Calls that move a part.
    pub short: u32,
    /// Calls at which the file ends.
    pub end: u32,
    /// Calls that change a bit.
    pub flip: u32,
    /// Writes without room.
    pub full: u32,
    /// Calls that fail.
    pub io: u32,
    /// Transfers that take long.
    pub delay: u32,
    /// Transfers that are cancelled.
    pub cancel: u32,
    /// The longest delay.
    pub delay_max: Duration,
}

/// Decides by a seed which calls go wrong, and counts them.
#[derive(Debug)]
pub struct Plan {
    rates: Rates,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    random: u64,
    is_over: bool,
    injected: BTreeMap<Fault, u64>,
}

impl Plan {
    /// The same seed gives the same faults to the same calls.
    #[must_use]
    pub fn new(seed: u64, rates: Rates) -> Arc<Self> {
        let state = State { random: seed, is_over: false, injected: BTreeMap::new() };
        Arc::new(Self { rates, state: Mutex::new(state) })
    }

    /// No faults from now on.
    pub fn end(&self) {
        self.state.lock().is_over = true;
    }

    /// How often what went wrong.
    #[must_use]
    pub fn injected(&self) -> BTreeMap<Fault, u64> {
        self.state.lock().injected.clone()
    }

    /// A number below `limit`, or 0.
    fn below(&self, limit: u64) -> u64 {
        self.state.lock().next().checked_rem(limit).unwrap_or_default()
    }

    /// One of these faults, at its rate.
    fn pick(&self, possible: &[(Fault, u32)]) -> Option<Fault> {
        let mut state = self.state.lock();
        let drawn = state.next() % 1_000;
        let mut before = 0;
        let hit = possible.iter().find(|(_, rate)| {
            before += u64::from(*rate);
            drawn < before
        });
        let fault = hit.map(|(fault, _)| *fault).filter(|_| !state.is_over)?;
        *state.injected.entry(fault).or_default() += 1;
        Some(fault)
    }
}

impl State {
    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

/// A file whose calls go wrong.
#[derive(Debug)]
pub struct FaultyMedium {
    inner: Box<dyn Medium>,
    plan: Arc<Plan>,
}

impl FaultyMedium {
    /// Puts a plan before a file.
    #[must_use]
    pub fn new(inner: Box<dyn Medium>, plan: Arc<Plan>) -> Self {
        Self { inner, plan }
    }

    /// A part of `bytes`: some pages, but not all.
    fn part(&self, bytes: usize) -> usize {
        let pages = u64::try_from(bytes.div_ceil(PAGE_BYTES)).unwrap_or_default();
        let some = usize::try_from(self.plan.below(pages.saturating_sub(1)) + 1).unwrap_or(1);
        bytes.min(some * PAGE_BYTES)
    }

    fn flip(&self, bytes: &mut [u8]) {
        let bits = u64::try_from(bytes.len()).unwrap_or_default() * 8;
        let bit = self.plan.below(bits);
        let at = usize::try_from(bit / 8).unwrap_or_default();
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= 1 << (bit % 8);
        }
    }
}

/// EIO, as the system says it.
fn eio() -> io::Error {
    rustix::io::Errno::IO.into()
}

impl Medium for FaultyMedium {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let Rates { short, end, flip, io, .. } = self.plan.rates;
        let possible =
            [(Fault::Short, short), (Fault::End, end), (Fault::Flip, flip), (Fault::Io, io)];
        let part = self.part(into.len());
        match self.plan.pick(&possible) {
            Some(Fault::Short) => {
                self.inner.read_at(into.get_mut(..part).unwrap_or_default(), offset)
            }
            Some(Fault::End) => Ok(0),
            Some(Fault::Flip) => {
                let moved = self.inner.read_at(into, offset)?;
                self.flip(into.get_mut(..moved).unwrap_or_default());
                Ok(moved)
            }
            Some(_) => {
                self.inner.read_at(into.get_mut(..part).unwrap_or_default(), offset)?;
                Err(eio())
            }
            None => self.inner.read_at(into, offset),
        }
    }

    fn write_at(&self, from: &[u8], offset: u64) -> io::Result<usize> {
        let Rates { short, flip, full, io, .. } = self.plan.rates;
        let possible =
            [(Fault::Short, short), (Fault::Flip, flip), (Fault::Full, full), (Fault::Io, io)];
        let part = from.get(..self.part(from.len())).unwrap_or_default();
        match self.plan.pick(&possible) {
            Some(Fault::Short) => self.inner.write_at(part, offset),
            Some(Fault::Flip) => {
                // What was written is made wrong in place, so that its memory stays as it is aligned.
                let moved = self.inner.write_at(from, offset)?;
                let at = self.plan.below(u64::try_from(moved).unwrap_or_default());
                self.damage(offset + at - at % 512)?;
                Ok(moved)
            }
            Some(Fault::Full) => {
                self.inner.write_at(part, offset)?;
                Err(rustix::io::Errno::NOSPC.into())
            }
            Some(_) => {
                self.inner.write_at(part, offset)?;
                Err(eio())
            }
            None => self.inner.write_at(from, offset),
        }
    }
}

impl FaultyMedium {
    /// Flips a bit of the page in which `offset` lies.
    fn damage(&self, offset: u64) -> io::Result<()> {
        let mut page = kvasir_memory::AlignedBuffer::new(PAGE_BYTES, PAGE_BYTES)
            .map_err(|error| io::Error::other(error.to_string()))?;
        let start = offset - offset % 4096;
        let there = self.inner.read_at(&mut page, start)?;
        self.flip(page.get_mut(..there).unwrap_or_default());
        self.inner.write_at(page.get(..there).unwrap_or_default(), start).map(drop)
    }
}

/// What a storage is told to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    /// Store a block.
    Store,
    /// Load one.
    Load,
    /// Erase one.
    Erase,
}

/// What happens around the calls of a [`HookedStorage`].
pub trait Hook: Send + Sync {
    /// Before a call begins: it may take its time, change what the storage holds, or fail. The call looks at the wish that is
    /// returned.
    ///
    /// # Errors
    /// The call fails so.
    fn before(&self, call: Call, place: Place, cancel: &Cancel) -> Result<Cancel, TransferError>;

    /// After a block was loaded and checked.
    ///
    /// # Errors
    /// The call fails so.
    fn loaded(&self, _block: &Sealed, _target: &mut WriteSlot) -> Result<(), TransferError> {
        Ok(())
    }
}

/// A storage with something before it.
pub struct HookedStorage<H> {
    inner: Arc<dyn Storage>,
    hook: H,
}

impl<H> HookedStorage<H> {
    /// Puts a hook before a storage.
    #[must_use]
    pub fn hooked(inner: Arc<dyn Storage>, hook: H) -> Self {
        Self { inner, hook }
    }
}

impl<H> fmt::Debug for HookedStorage<H> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "hooked {:?}", self.inner)
    }
}

impl<H: Hook> Storage for HookedStorage<H> {
    fn kind(&self) -> StorageKind {
        self.inner.kind()
    }

    fn block_bytes(&self) -> usize {
        self.inner.block_bytes()
    }

    fn slots(&self) -> Option<u32> {
        self.inner.slots()
    }

    fn store(
        &self,
        place: Place,
        block: &NewBlock,
        source: &ReadSlot,
        cancel: &Cancel,
    ) -> Result<Sealed, TransferError> {
        let cancel = self.hook.before(Call::Store, place, cancel)?;
        self.inner.store(place, block, source, &cancel)
    }

    fn load(
        &self,
        place: Place,
        block: &Sealed,
        target: &mut WriteSlot,
        cancel: &Cancel,
    ) -> Result<(), TransferError> {
        let cancel = self.hook.before(Call::Load, place, cancel)?;
        self.inner.load(place, block, target, &cancel)?;
        self.hook.loaded(block, target)
    }

    fn erase(
        &self,
        place: Place,
        sequence_hash: u64,
        cancel: &Cancel,
    ) -> Result<(), TransferError> {
        let cancel = self.hook.before(Call::Erase, place, cancel)?;
        self.inner.erase(place, sequence_hash, &cancel)
    }
}

/// Changes what a place of a storage holds, by a number that looks random.
pub type Damage = Box<dyn Fn(Place, u64) + Send + Sync>;

/// Makes calls fail, wait, or find themselves cancelled, as a plan says.
pub struct Planned {
    plan: Arc<Plan>,
    damage: Damage,
}

/// A storage whose transfers go wrong before they begin.
pub type FaultyStorage = HookedStorage<Planned>;

impl FaultyStorage {
    /// Puts a plan before a storage. `damage` is called for a flipped bit, before a block is loaded.
    #[must_use]
    pub fn new(inner: Arc<dyn Storage>, plan: Arc<Plan>, damage: Damage) -> Self {
        Self::hooked(inner, Planned { plan, damage })
    }
}

impl fmt::Debug for Planned {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.plan.fmt(to)
    }
}

impl Hook for Planned {
    fn before(&self, call: Call, place: Place, cancel: &Cancel) -> Result<Cancel, TransferError> {
        let Rates { flip, full, io, delay, cancel: stop, delay_max, .. } = self.plan.rates;
        let always = [(Fault::Io, io), (Fault::Delay, delay), (Fault::Cancel, stop)];
        let more: &[_] = match call {
            Call::Store => &[(Fault::Full, full)],
            Call::Load => &[(Fault::Flip, flip)],
            Call::Erase => &[],
        };
        match self.plan.pick(&[&always[..], more].concat()) {
            Some(Fault::Io) => return Err(eio().into()),
            Some(Fault::Full) => return Err(io::Error::from(rustix::io::Errno::NOSPC).into()),
            Some(Fault::Delay) => {
                let limit = u64::try_from(delay_max.as_micros()).unwrap_or(u64::MAX);
                cancel.wait(Duration::from_micros(self.plan.below(limit)));
            }
            Some(Fault::Cancel) => {
                let own = Cancel::new();
                own.cancel();
                return Ok(own);
            }
            Some(Fault::Flip) => (self.damage)(place, self.plan.below(u64::MAX)),
            Some(Fault::Short | Fault::End) | None => {}
        }
        Ok(cancel.clone())
    }
}

/// Flips a bit of a slot of host memory, if nobody holds it.
#[must_use]
pub fn damage_host(host: &HostStorage) -> Damage {
    let arena = Arc::clone(host.arena());
    Box::new(move |place, random| {
        let Ok(Ok(mut slot)) = place.slot().map(|slot| arena.write(slot)) else { return };
        let bytes = u64::try_from(slot.block_bytes()).unwrap_or(1).max(1);
        let at = usize::try_from(random / 8 % bytes).unwrap_or_default();
        if let Some(byte) = slot.as_mut_slice().and_then(|block| block.get_mut(at)) {
            *byte ^= 1 << (random % 8);
        }
    })
}
