use super::registrar::RegisteredRegion;
use super::state::{Access, Activity, Owner, Released, Set, below, quarantined};
use super::{AccessError, BlockSetDescription, BlockSetId, BlockSetLayout, BlockSetLimits};
use super::{BlockSetStats, ExportError, Fence, ImportError, LimitReached, SetEnd};
use crate::identity::SlotId;
use kvasir_proto::types::WorkerId;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

/// State of one id of an owner.
#[derive(Debug)]
struct KnownId {
    /// The lowest accepted fence (fencing token).
    floor: Fence,
    /// The live or quarantined set with this id.
    current: Option<Arc<Set>>,
}

/// An owner's incarnation and its ids.
#[derive(Debug)]
struct Peer {
    epoch: u64,
    ids: BTreeMap<BlockSetId, KnownId>,
}

/// The registry's state, protected by its one lock.
#[derive(Debug)]
pub(super) struct Book {
    limits: BlockSetLimits,
    epoch: u64,
    exports: BTreeMap<BlockSetId, Arc<Set>>,
    peers: BTreeMap<WorkerId, Peer>,
    /// Use of each live or quarantined set, by set number.
    activities: FxHashMap<u64, Activity>,
    last_export: u64,
    last_number: u64,
    transfers: usize,
    imported_blocks: u64,
    counters: BlockSetStats,
}

impl Book {
    pub(super) fn new(epoch: u64, limits: BlockSetLimits) -> Self {
        Self {
            limits,
            epoch,
            exports: BTreeMap::new(),
            peers: BTreeMap::new(),
            activities: FxHashMap::default(),
            last_export: 0,
            last_number: 0,
            transfers: 0,
            imported_blocks: 0,
            counters: BlockSetStats::default(),
        }
    }

    // --- exports

    /// Checks that a set with this id may be exported.
    pub(super) fn check_export(&self, id: BlockSetId) -> Result<(), ExportError> {
        if let Some(set) = self.exports.get(&id) {
            if set.is_live() {
                return Err(ExportError::Exported(id));
            }
            return Err(quarantined(set, self.activities.get(&set.number)).into());
        }
        Ok(below("exports_max", self.exports.len(), self.limits.exports_max)?)
    }

    /// Exports a set, and takes its `regions`. If the export is refused, `regions` is unchanged.
    pub(super) fn export(
        &mut self,
        description: BlockSetDescription,
        regions: &mut Vec<RegisteredRegion>,
    ) -> Result<Arc<Set>, ExportError> {
        let id = description.id;
        self.check_export(id)?;
        let fence = Fence { epoch: self.epoch, export: self.last_export + 1 };
        let layout = BlockSetLayout::new(description, fence)?;
        self.last_export = fence.export;
        let set = self.create_set(Owner::Here, layout, std::mem::take(regions));
        self.exports.insert(id, Arc::clone(&set));
        Ok(set)
    }

    /// Returns the exported set with this id and fence. Fails if the id is unknown, has another fence, or its set has
    /// ended.
    pub(super) fn exported(&self, id: BlockSetId, fence: Fence) -> Result<Arc<Set>, AccessError> {
        let set = self.exports.get(&id).ok_or(AccessError::Unknown(id))?;
        let exported = set.layout.fence();
        if exported != fence {
            return Err(AccessError::Fenced { stated: fence, exported });
        }
        set.check_live()?;
        Ok(Arc::clone(set))
    }

    // --- imports

    /// Imports an owner's set. A newer set fences older ones, even if it is refused itself. Returns the known set if it
    /// has the same layout.
    pub(super) fn import(
        &mut self,
        owner: &WorkerId,
        layout: BlockSetLayout,
        released: &mut Released,
    ) -> Result<Arc<Set>, ImportError> {
        let id = layout.id();
        let fence = layout.fence();
        self.enter_epoch(owner, fence, released)?;
        match self.known(owner, id) {
            Some(known) if fence < known.floor => {
                let floor = known.floor;
                self.counters.imports_fenced += 1;
                return Err(ImportError::Fenced { stated: fence, floor });
            }
            Some(KnownId { current: Some(set), .. }) if set.is_live() => {
                if set.layout == layout {
                    return Ok(Arc::clone(set));
                }
                if set.layout.fence() == fence {
                    return Err(ImportError::Conflict(id));
                }
                let older = Arc::clone(set);
                self.end_set(&older, SetEnd::Fenced { by: fence }, released);
            }
            _ => {}
        }
        self.raise_floor(owner, id, fence)?;
        self.check_quarantine(owner, &layout)?;
        let blocks = u64::from(layout.num_blocks());
        let max = self.limits.imported_blocks_max;
        if blocks > max.saturating_sub(self.imported_blocks) {
            return Err(LimitReached { limit: "imported_blocks_max", max }.into());
        }
        self.imported_blocks += blocks;
        let set = self.create_set(Owner::Peer(owner.clone()), layout, Vec::new());
        if let Some(known) = self.known_mut(owner, id) {
            known.current = Some(Arc::clone(&set));
        }
        Ok(set)
    }

    /// The owner's live set with this id.
    pub(super) fn imported(&self, owner: &WorkerId, id: BlockSetId) -> Option<Arc<Set>> {
        let set = self.known(owner, id)?.current.as_ref()?;
        set.is_live().then(|| Arc::clone(set))
    }

    /// Withdraws the owner's set with this fence, and all older sets with the same id. Returns immediately for a fence
    /// of another incarnation: its sets have ended already.
    pub(super) fn withdraw(
        &mut self,
        owner: &WorkerId,
        id: BlockSetId,
        fence: Fence,
        released: &mut Released,
    ) {
        // No set of another incarnation is live: an older incarnation has ended, a newer one was not imported yet.
        if self.peers.get(owner).is_none_or(|peer| peer.epoch != fence.epoch) {
            return;
        }
        let floor = Fence { export: fence.export.saturating_add(1), ..fence };
        // If there is no room for the id, the set can't be imported in this incarnation anyway.
        if self.raise_floor(owner, id, floor).is_err() {
            return;
        }
        let current = self.known(owner, id).and_then(|known| known.current.as_ref());
        let current = current.filter(|set| set.layout.fence() <= fence);
        if let Some(set) = current.map(Arc::clone) {
            self.end_set(&set, SetEnd::Withdrawn, released);
        }
    }

    /// Ends the sets of a disconnected owner. Its fences remain.
    pub(super) fn disconnect(&mut self, owner: &WorkerId, released: &mut Released) {
        for set in self.current_of(owner) {
            self.end_set(&set, SetEnd::OwnerGone, released);
        }
    }

    /// Removes an owner's fences, unless one of its sets is live or quarantined. Returns whether it removed them.
    pub(super) fn forget(&mut self, owner: &WorkerId) -> bool {
        let is_idle = self.current_of(owner).is_empty();
        if is_idle {
            self.peers.remove(owner);
        }
        is_idle
    }

    // --- common to exports and imports

    /// Takes all `blocks` of a set for reading or writing. Fails, and takes no block, if the set has ended or a block
    /// is in use.
    pub(super) fn acquire_blocks(
        &mut self,
        set: &Set,
        blocks: &[SlotId],
        access: Access,
    ) -> Result<(), AccessError> {
        set.check_live()?;
        // A live set always has an activity.
        self.activities.get_mut(&set.number).map_or(Ok(()), |at| at.acquire_blocks(blocks, access))
    }

    pub(super) fn give_back(&mut self, set: &Set, blocks: &[SlotId]) {
        // The activity is gone if the set has ended and its transfers have stopped.
        if let Some(activity) = self.activities.get_mut(&set.number) {
            activity.give_back(blocks);
        }
    }

    /// Counts one more transfer of a set. Fails if the set has ended, or at a limit of transfers.
    pub(super) fn begin_transfer(&mut self, set: &Set) -> Result<(), AccessError> {
        set.check_live()?;
        below("transfers_max", self.transfers, self.limits.transfers_max)?;
        if let Some(activity) = self.activities.get_mut(&set.number) {
            below("transfers_max", activity.transfers as usize, u32::MAX as usize)?;
            activity.transfers += 1;
            self.transfers += 1;
        }
        Ok(())
    }

    /// Counts one transfer of a set less, and removes the set if it has ended and this was its last transfer.
    pub(super) fn end_transfer(&mut self, set: &Set, released: &mut Released) {
        self.transfers = self.transfers.saturating_sub(1);
        self.counters.transfers_ended_late += u64::from(!set.is_live());
        if let Some(activity) = self.activities.get_mut(&set.number) {
            debug_assert!(activity.transfers > 0, "one has begun");
            activity.transfers = activity.transfers.saturating_sub(1);
        }
        self.release(set, released);
    }

    /// Ends a set, unless it has already ended.
    pub(super) fn end_set(&mut self, set: &Set, end: SetEnd, released: &mut Released) {
        if set.end.set(end).is_ok() {
            self.release(set, released);
        }
    }

    /// Returns whether the id is usable, that is, not quarantined. The end of a quarantine wakes `waker`.
    pub(super) fn poll(
        &mut self,
        owner: Option<&WorkerId>,
        id: BlockSetId,
        waker: &Waker,
        released: &mut Released,
    ) -> bool {
        let set = match owner {
            None => self.exports.get(&id),
            Some(owner) => self.known(owner, id).and_then(|known| known.current.as_ref()),
        };
        let Some(number) = set.filter(|set| !set.is_live()).map(|set| set.number) else {
            return true;
        };
        if let Some(activity) = self.activities.get_mut(&number) {
            activity.wake_later(waker, released);
        }
        false
    }

    /// Figures of all sets. Ended sets count as quarantined until their transfers have ended.
    pub(super) fn stats(&self) -> BlockSetStats {
        let sets = self.exports.values().chain(self.peers.values().flat_map(Peer::current));
        let (live, ended): (Vec<_>, Vec<_>) = sets.partition(|set| set.is_live());
        let exports = live.iter().filter(|set| matches!(set.owner, Owner::Here)).count();
        BlockSetStats {
            exports: exports as u64,
            imports: (live.len() - exports) as u64,
            quarantined: ended.len() as u64,
            imported_blocks: self.imported_blocks,
            owners: self.peers.len() as u64,
            transfers: self.transfers as u64,
            ..self.counters
        }
    }

    // --- helpers

    /// Creates a set under the next number, with an activity that owns the regions.
    fn create_set(
        &mut self,
        owner: Owner,
        layout: BlockSetLayout,
        regions: Vec<RegisteredRegion>,
    ) -> Arc<Set> {
        self.last_number += 1;
        self.activities.insert(self.last_number, Activity::new(regions));
        Arc::new(Set::new(self.last_number, owner, layout))
    }

    /// Removes a set, and moves its regions and wakers to `released`. Returns immediately if the set is live or still
    /// has transfers.
    fn release(&mut self, set: &Set, released: &mut Released) {
        let is_over = |activity: &Activity| !set.is_live() && activity.transfers == 0;
        if !self.activities.get(&set.number).is_some_and(is_over) {
            return;
        }
        if let Some(activity) = self.activities.remove(&set.number) {
            released.regions.extend(activity.regions);
            released.wakers.extend(activity.wakers);
        }
        let id = set.layout.id();
        match &set.owner {
            Owner::Here => drop(self.exports.remove(&id)),
            Owner::Peer(owner) => {
                let blocks = u64::from(set.layout.num_blocks());
                self.imported_blocks = self.imported_blocks.saturating_sub(blocks);
                let Some(known) = self.known_mut(owner, id) else { return };
                known.current = None;
            }
        }
    }

    /// Begins the owner's incarnation if it is new, which ends all older sets. Fails for an older incarnation, or if
    /// there are too many owners.
    fn enter_epoch(
        &mut self,
        owner: &WorkerId,
        stated: Fence,
        released: &mut Released,
    ) -> Result<(), ImportError> {
        let epoch = stated.epoch;
        let Some(peer) = self.peers.get_mut(owner) else {
            below("owners_max", self.peers.len(), self.limits.owners_max)?;
            self.peers.insert(owner.clone(), Peer { epoch, ids: BTreeMap::new() });
            return Ok(());
        };
        if epoch < peer.epoch {
            let floor = Fence { epoch: peer.epoch, export: 0 };
            self.counters.imports_fenced += 1;
            return Err(ImportError::Fenced { stated, floor });
        }
        if epoch == peer.epoch {
            return Ok(());
        }
        peer.epoch = epoch;
        for set in self.current_of(owner) {
            self.end_set(&set, SetEnd::Fenced { by: stated }, released);
        }
        if let Some(peer) = self.peers.get_mut(owner) {
            // Quarantined sets keep their ids. Fences of the older incarnation do not apply to the new one.
            peer.ids.retain(|_, known| known.current.is_some());
            for known in peer.ids.values_mut() {
                known.floor = Fence { epoch, export: 0 };
            }
        }
        Ok(())
    }

    /// Records that sets of this owner and id with a lower fence are refused from now on. Fails if the owner has too
    /// many ids. An unknown owner is ignored.
    fn raise_floor(
        &mut self,
        owner: &WorkerId,
        id: BlockSetId,
        floor: Fence,
    ) -> Result<(), LimitReached> {
        let max = self.limits.owner_ids_max;
        let Some(peer) = self.peers.get_mut(owner) else { return Ok(()) };
        if let Some(known) = peer.ids.get_mut(&id) {
            known.floor = known.floor.max(floor);
            return Ok(());
        }
        below("owner_ids_max", peer.ids.len(), max)?;
        peer.ids.insert(id, KnownId { floor, current: None });
        Ok(())
    }

    /// Refuses a set that has its id or memory in common with an older set of the owner that is still in quarantine.
    fn check_quarantine(
        &self,
        owner: &WorkerId,
        layout: &BlockSetLayout,
    ) -> Result<(), ImportError> {
        let hinders = |set: &&Arc<Set>| {
            let is_same = set.layout.id() == layout.id();
            !set.is_live() && (is_same || set.layout.memory().overlaps(layout.memory()))
        };
        let mut current = self.peers.get(owner).into_iter().flat_map(Peer::current);
        current
            .find(hinders)
            .map_or(Ok(()), |set| Err(quarantined(set, self.activities.get(&set.number)).into()))
    }

    fn known(&self, owner: &WorkerId, id: BlockSetId) -> Option<&KnownId> {
        self.peers.get(owner)?.ids.get(&id)
    }

    fn known_mut(&mut self, owner: &WorkerId, id: BlockSetId) -> Option<&mut KnownId> {
        self.peers.get_mut(owner)?.ids.get_mut(&id)
    }

    fn current_of(&self, owner: &WorkerId) -> Vec<Arc<Set>> {
        self.peers.get(owner).into_iter().flat_map(Peer::current).map(Arc::clone).collect()
    }

    /// Checks the invariants.
    #[cfg(test)]
    pub(super) fn validate(&self) {
        let imports = self.peers.values().flat_map(Peer::current);
        let mut blocks = 0;
        let mut transfers = 0;
        let mut sets = 0;
        for set in self.exports.values().chain(imports) {
            let activity = self.activities.get(&set.number).expect("each set has an activity");
            assert!(set.is_live() || activity.transfers > 0, "quarantined for a reason: {set:?}");
            transfers += activity.transfers as usize;
            sets += 1;
            if matches!(set.owner, Owner::Peer(_)) {
                blocks += u64::from(set.layout.num_blocks());
            }
        }
        assert_eq!(self.activities.len(), sets, "each activity has a set");
        assert_eq!(self.transfers, transfers);
        assert_eq!(self.imported_blocks, blocks);
        for peer in self.peers.values() {
            assert!(peer.ids.len() <= self.limits.owner_ids_max);
            assert!(peer.ids.values().all(|known| known.floor.epoch == peer.epoch));
        }
    }

    /// Whether no block is in use.
    #[cfg(test)]
    pub(super) fn is_unused(&self) -> bool {
        self.activities.values().all(Activity::is_unused)
    }
}

impl Peer {
    fn current(&self) -> impl Iterator<Item = &Arc<Set>> {
        self.ids.values().filter_map(|known| known.current.as_ref())
    }
}
