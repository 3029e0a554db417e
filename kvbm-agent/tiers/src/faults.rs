//! Fault injection for tests: storages that fail at random, reproducible by a seed. One [`Plan`] decides for all
//! storages.
//!
//! Faults must change bytes below the checksum. File faults are therefore injected by a [`FaultyMedium`]. Memory is
//! damaged in its slot, before it is read ([`FaultyStorage`], [`damage_host`]).

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

/// Granularity of incomplete reads and writes, as direct I/O requires.
const PAGE_BYTES: usize = 4096;

/// Kind of an injected fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A call moves only a part of its bytes, and the next call continues.
    Short,
    /// The file ends at this position.
    End,
    /// One bit is flipped.
    Flip,
    /// ENOSPC.
    Full,
    /// EIO, after a part of the bytes was moved.
    Io,
    /// The call is delayed.
    Delay,
    /// The transfer is cancelled before it begins.
    Cancel,
}

/// Faults per 1,000 calls, by kind.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rates {
    /// Incomplete calls.
    pub short: u32,
    /// Calls that reach the end of the file.
    pub end: u32,
    /// Calls that flip a bit.
    pub flip: u32,
    /// Writes to a full disk.
    pub full: u32,
    /// Calls that fail with EIO.
    pub io: u32,
    /// Delayed transfers.
    pub delay: u32,
    /// Cancelled transfers.
    pub cancel: u32,
    /// Maximum delay.
    pub delay_max: Duration,
}

/// Selects the calls that fail, by a seed, and counts them.
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
    /// Creates a plan. The same seed injects the same faults into the same calls.
    #[must_use]
    pub fn new(seed: u64, rates: Rates) -> Arc<Self> {
        let state = State { random: seed, is_over: false, injected: BTreeMap::new() };
        Arc::new(Self { rates, state: Mutex::new(state) })
    }

    /// Stops injecting faults.
    pub fn end(&self) {
        self.state.lock().is_over = true;
    }

    /// Number of injected faults, by kind.
    #[must_use]
    pub fn injected(&self) -> BTreeMap<Fault, u64> {
        self.state.lock().injected.clone()
    }

    /// A random number below `limit`, or 0.
    fn below(&self, limit: u64) -> u64 {
        self.state.lock().next().checked_rem(limit).unwrap_or_default()
    }

    /// Draws one of the possible faults, each with its rate in thousandths, and counts it. Returns `None` if the call
    /// stays correct.
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
    /// Next random number (`SplitMix64`).
    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

/// A file whose calls fail according to a plan.
#[derive(Debug)]
pub struct FaultyMedium {
    inner: Box<dyn Medium>,
    plan: Arc<Plan>,
}

impl FaultyMedium {
    /// Wraps a file.
    #[must_use]
    pub fn new(inner: Box<dyn Medium>, plan: Arc<Plan>) -> Self {
        Self { inner, plan }
    }

    /// Length of an incomplete call of `bytes` bytes: at least one page, and fewer than all pages if there are several.
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

/// The system's EIO error.
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
                // Writes the correct buffer, which is aligned, and then damages the bytes in the file.
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
    /// Flips a bit in the page at `offset`.
    fn damage(&self, offset: u64) -> io::Result<()> {
        let mut page = kvasir_memory::AlignedBuffer::new(PAGE_BYTES, PAGE_BYTES)
            .map_err(|error| io::Error::other(error.to_string()))?;
        let start = offset - offset % 4096;
        let there = self.inner.read_at(&mut page, start)?;
        self.flip(page.get_mut(..there).unwrap_or_default());
        self.inner.write_at(page.get(..there).unwrap_or_default(), start).map(drop)
    }
}

/// Kind of a storage call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    /// Store a block.
    Store,
    /// Load a block.
    Load,
    /// Erase a block.
    Erase,
}

/// Callbacks around the calls of a [`HookedStorage`].
pub trait Hook: Send + Sync {
    /// Runs before a call. It may wait, change the storage's content, or fail. The call uses the returned cancellation
    /// token.
    ///
    /// # Errors
    /// The call fails with this error.
    fn before(&self, call: Call, place: Place, cancel: &Cancel) -> Result<Cancel, TransferError>;

    /// Runs after a block was loaded and verified.
    ///
    /// # Errors
    /// The call fails with this error.
    fn loaded(&self, _block: &Sealed, _target: &mut WriteSlot) -> Result<(), TransferError> {
        Ok(())
    }
}

/// A storage wrapped by a hook.
pub struct HookedStorage<H> {
    inner: Arc<dyn Storage>,
    hook: H,
}

impl<H> HookedStorage<H> {
    /// Wraps a storage.
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

/// Damages the data at a place of a storage, selected by a random number.
pub type Damage = Box<dyn Fn(Place, u64) + Send + Sync>;

/// A hook that makes calls fail, wait or be cancelled, according to a plan.
pub struct Planned {
    plan: Arc<Plan>,
    damage: Damage,
}

/// A storage whose transfers fail before they begin.
pub type FaultyStorage = HookedStorage<Planned>;

impl FaultyStorage {
    /// Wraps a storage. `damage` is called to flip a bit before a block is loaded.
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
    /// Injects a fault before a call, if one is drawn: fails, waits, damages the slot, or returns a cancelled token in
    /// place of `cancel`.
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

/// Returns a function that flips a bit of a slot in host memory. The function changes nothing if the slot is in use.
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
