use super::*;
use crate::identity::SlotId;
use crate::layout::{BlockLayout, LayerOrder, LayoutConfig, LayoutForm};
use kvasir_proto::types::WorkerId;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

/// Records registrations, and refuses the configured ones.
#[derive(Debug, Default)]
pub(super) struct Memory {
    regions: Mutex<BTreeMap<RegistrationKey, MemoryRegion>>,
    last_key: AtomicUsize,
    refused_address: Option<u64>,
}

impl Memory {
    pub(super) fn registered(&self) -> Vec<u64> {
        self.regions.lock().values().map(|region| region.range.address).collect()
    }
}

pub(super) fn registrar_of(memory: &Arc<Memory>) -> Arc<dyn Registrar> {
    let memory: Arc<Memory> = Arc::clone(memory);
    memory
}

impl Registrar for Memory {
    fn register(&self, region: &MemoryRegion) -> Result<RegistrationKey, RegistrarError> {
        if self.refused_address == Some(region.range.address) {
            return Err(RegistrarError { reason: "not pinned".to_owned() });
        }
        let key = RegistrationKey(self.last_key.fetch_add(1, Ordering::Relaxed) as u64);
        self.regions.lock().insert(key, *region);
        Ok(key)
    }

    fn deregister(&self, key: RegistrationKey) {
        assert!(self.regions.lock().remove(&key).is_some(), "it is registered once");
    }
}

/// A set of four blocks in two layers. Each layer has its own region, from `address` on.
pub(super) fn description(id: u64, address: u64) -> BlockSetDescription {
    let config = LayoutConfig {
        num_blocks: 4,
        num_layers: 2,
        outer_dim: 1,
        page_size: 2,
        inner_dim: 4,
        dtype_width_bytes: 2,
        alignment_bytes: 1,
        base_offset_bytes: 0,
    };
    let form = LayoutForm::LayerSeparate(LayerOrder::BlockContiguous);
    let bytes = form.layout(config).expect("a layout").allocation_bytes();
    let ranges = [0, bytes].map(|at| AddressRange { address: address + at, bytes });
    BlockSetDescription {
        id: BlockSetId(id),
        content: ContentId(1),
        tensor_parallel: TensorParallel::SINGLE,
        form,
        config,
        memory: SetMemory { kind: MemoryKind::Dram, device_id: 0, ranges: ranges.to_vec() },
    }
}

/// The bytes that an owner would send.
pub(super) fn sent(id: u64, address: u64, fence: Fence) -> SerializedBlockLayout {
    BlockSetLayout::new(description(id, address), fence).expect("a layout").serialize()
}

pub(super) fn owner(name: &str) -> WorkerId {
    WorkerId::new(name).expect("a name")
}

fn registry(limits: BlockSetLimits) -> BlockSetRegistry {
    BlockSetRegistry::new(1, limits)
}

const A: Fence = Fence { epoch: 1, export: 1 };
const B: Fence = Fence { epoch: 1, export: 2 };
const C: Fence = Fence { epoch: 2, export: 1 };
const BLOCKS: [SlotId; 2] = [SlotId(2), SlotId(0)];

#[test]
fn dropping_a_set_deregisters_its_memory() {
    let registry = registry(BlockSetLimits::DEFAULT);
    let memory = Arc::new(Memory::default());
    let registrar = registrar_of(&memory);
    let set = registry.export(description(5, 1_000), &registrar).expect("exported");
    assert_eq!(set.layout().fence(), A);
    assert_eq!(memory.registered(), [1_000, 1_064]);
    let twice = registry.export(description(5, 9_000), &registrar);
    assert_eq!(twice.expect_err("its id is in use"), ExportError::Exported(BlockSetId(5)));
    drop(set);
    assert_eq!(memory.registered(), []);
    let again = registry.export(description(5, 1_000), &registrar).expect("exported");
    assert_eq!(again.layout().fence(), B, "a peer can tell the two apart");
    registry.validate();
}

#[test]
fn a_set_that_is_refused_leaves_nothing_registered() {
    let registry = registry(BlockSetLimits { exports_max: 1, ..BlockSetLimits::DEFAULT });
    let memory = Arc::new(Memory { refused_address: Some(1_064), ..Memory::default() });
    let registrar = registrar_of(&memory);
    let refused = registry.export(description(5, 1_000), &registrar);
    assert!(matches!(refused.expect_err("a region is refused"), ExportError::Registrar(_)));
    assert_eq!(memory.registered(), []);
    let mut wrong = description(5, 2_000);
    wrong.memory.ranges.pop();
    let refused = registry.export(wrong, &registrar).expect_err("a region is missing");
    assert_eq!(refused, BlockSetError::Regions { stated: 1, needed: 2 }.into());
    let _one = registry.export(description(5, 2_000), &registrar).expect("exported");
    let refused = registry.export(description(6, 3_000), &registrar).expect_err("too many");
    assert_eq!(refused, LimitReached { limit: "exports_max", max: 1 }.into());
    assert_eq!(memory.registered(), [2_000, 2_064]);
    assert_eq!(registry.stats().exports, 1);
}

#[test]
fn memory_stays_registered_until_peers_have_stopped() {
    let registry = registry(BlockSetLimits::DEFAULT);
    let memory = Arc::new(Memory::default());
    let registrar = registrar_of(&memory);
    let set = registry.export(description(5, 1_000), &registrar).expect("exported");
    let id = BlockSetId(5);
    let first = registry.serve(id, A, &BLOCKS, Access::Read).expect("live");
    let second = registry.serve(id, A, &BLOCKS, Access::Read).expect("readers share");
    drop(set);
    assert_eq!(first.ended(), Some(SetEnd::Withdrawn));
    let refused = registry.serve(id, A, &BLOCKS, Access::Read).expect_err("withdrawn");
    assert_eq!(refused, SetEnd::Withdrawn.into());
    let refused = registry.export(description(5, 1_000), &registrar).expect_err("quarantined");
    assert_eq!(refused, Quarantined { set: id, transfers: 2 }.into());
    assert_eq!(first.finish(), Err(SetEnd::Withdrawn));
    assert_eq!(memory.registered(), [1_000, 1_064]);
    drop(second);
    assert_eq!(memory.registered(), []);
    assert_eq!(registry.stats().transfers_ended_late, 2);
    let refused = registry.serve(id, A, &BLOCKS, Access::Read).expect_err("gone");
    assert_eq!(refused, AccessError::Unknown(id));
    let _new = registry.export(description(5, 1_000), &registrar).expect("its id is free");
    let refused = registry.serve(id, A, &BLOCKS, Access::Read).expect_err("a newer one is there");
    assert_eq!(refused, AccessError::Fenced { stated: A, exported: B });
}

#[test]
fn what_is_exported_here_is_imported_there() {
    let here = registry(BlockSetLimits::DEFAULT);
    let there = registry(BlockSetLimits::DEFAULT);
    let registrar: Arc<dyn Registrar> = Arc::new(Memory::default());
    let set = here.export(description(5, 1_000), &registrar).expect("exported");
    let remote = there.import_remote_blockset(&owner("a"), &set.serialize()).expect("imported");
    assert_eq!(remote.layout(), set.layout());
    assert_eq!(remote.owner(), &owner("a"));
    let blocks = remote.get_remote_blocks(&BLOCKS).expect("live");
    assert_eq!(blocks.blocks(), BLOCKS);
    let transfer = blocks.begin_read().expect("live");
    let theirs: Vec<_> = transfer.descriptors().map(|at| at.range.address).collect();
    assert_eq!(theirs, [1_032, 1_096, 1_000, 1_064]);
    let served = here.serve(BlockSetId(5), transfer.fence(), transfer.blocks(), transfer.access());
    let ours: Vec<_> = served.expect("live").descriptors().map(|at| at.range.address).collect();
    assert_eq!(ours, theirs);
    assert_eq!(transfer.finish(), Ok(()));
    assert!(there.remote_blockset(&owner("b"), BlockSetId(5)).is_none());
}

#[test]
fn handles_die_with_their_set() {
    type Ending = fn(&BlockSetRegistry);
    let end_by: [(Ending, SetEnd); 4] = [
        (|at| at.disconnect(&owner("a")), SetEnd::OwnerGone),
        (|at| at.withdraw(&owner("a"), BlockSetId(5), A), SetEnd::Withdrawn),
        (
            |at| drop(at.import_remote_blockset(&owner("a"), &sent(5, 1_000, B))),
            SetEnd::Fenced { by: B },
        ),
        (
            // A new incarnation fences all sets of the older one.
            |at| drop(at.import_remote_blockset(&owner("a"), &sent(6, 9_000, C))),
            SetEnd::Fenced { by: C },
        ),
    ];
    for (end, reason) in end_by {
        let registry = registry(BlockSetLimits::DEFAULT);
        let set = registry.import_remote_blockset(&owner("a"), &sent(5, 1_000, A)).expect("new");
        let read = set.get_remote_blocks(&BLOCKS).expect("live");
        let write = set.get_remote_blocks_mutable(&[SlotId(1)]).expect("live");
        assert_eq!(read.descriptors().expect("live").count(), 4);
        end(&registry);
        assert!(!set.is_live());
        let ended = AccessError::Ended(reason);
        assert_eq!(read.descriptors().err(), Some(ended));
        assert_eq!(read.layout().err(), Some(ended));
        assert_eq!(read.begin_read().err(), Some(ended));
        assert_eq!(write.descriptors().err(), Some(ended));
        assert_eq!(write.begin_write().err(), Some(ended));
        assert_eq!(set.get_remote_blocks(&BLOCKS).err(), Some(ended));
        assert_eq!(set.get_remote_blocks_mutable(&BLOCKS).err(), Some(ended));
        let alive = registry.remote_blockset(&owner("a"), BlockSetId(5));
        assert!(alive.is_none_or(|alive| alive.layout().fence() == B));
        registry.validate();
    }
}

#[test]
fn older_sets_are_fenced() {
    let registry = registry(BlockSetLimits::DEFAULT);
    let import = |id, fence| registry.import_remote_blockset(&owner("a"), &sent(id, 1_000, fence));
    let fenced = |stated, floor| Some(ImportError::Fenced { stated, floor });
    import(5, B).expect("new");
    assert_eq!(import(5, A).err(), fenced(A, B));
    import(6, A).expect("another id has its own order");
    import(5, B).expect("the same bytes again");
    let other = registry.import_remote_blockset(&owner("a"), &sent(5, 7_000, B));
    assert_eq!(other.err(), Some(ImportError::Conflict(BlockSetId(5))));
    import(7, C).expect("a new incarnation");
    assert_eq!(import(6, A).err(), fenced(A, Fence { epoch: 2, export: 0 }));
    assert_eq!(registry.stats().imports, 1);
    registry.withdraw(&owner("a"), BlockSetId(7), C);
    let floor = Fence { epoch: 2, export: 2 };
    assert_eq!(import(7, C).err(), fenced(C, floor), "bytes that come late bring nothing back");
    import(7, floor).expect("newer");
    registry.withdraw(&owner("a"), BlockSetId(7), C);
    registry.withdraw(&owner("a"), BlockSetId(7), B);
    assert_eq!(registry.stats().imports, 1, "of an older set, said late");
    assert_eq!(registry.stats().imports_fenced, 3);
    registry.validate();
}

#[test]
fn an_owner_that_is_back_in_the_same_incarnation_has_its_sets_again() {
    let registry = registry(BlockSetLimits::DEFAULT);
    let import = || registry.import_remote_blockset(&owner("a"), &sent(5, 1_000, B));
    let first = import().expect("new");
    registry.disconnect(&owner("a"));
    let second = import().expect("it is back");
    assert!(second.is_live() && !first.is_live());
    assert!(!registry.forget(&owner("a")), "a set is live");
    registry.disconnect(&owner("a"));
    let older = registry.import_remote_blockset(&owner("a"), &sent(5, 1_000, A));
    assert!(older.is_err(), "fences stay");
    assert!(registry.forget(&owner("a")));
    assert_eq!(registry.stats().owners, 0);
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn an_id_is_quarantined_until_its_transfers_have_stopped() {
    let registry = registry(BlockSetLimits::DEFAULT);
    let import = |id, address, fence| {
        registry.import_remote_blockset(&owner("a"), &sent(id, address, fence))
    };
    let old = import(5, 1_000, A).expect("new");
    let blocks = old.get_remote_blocks_mutable(&BLOCKS).expect("live");
    let transfer = blocks.begin_write().expect("live");
    let quarantined = Quarantined { set: BlockSetId(5), transfers: 1 };
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let released = || registry.poll_released(Some(&owner("a")), BlockSetId(5), &waker);
    assert!(released(), "a live set is in no quarantine");
    assert_eq!(import(5, 8_000, C).err(), Some(quarantined.into()));
    assert_eq!(transfer.ended(), Some(SetEnd::Fenced { by: C }), "it is fenced all the same");
    assert_eq!(
        import(5, 1_000, A).err().map(|error| matches!(error, ImportError::Fenced { .. })),
        Some(true)
    );
    assert_eq!(import(6, 1_050, C).err(), Some(quarantined.into()), "the same memory");
    import(7, 8_000, C).expect("other memory");
    assert!(!released());
    // A second waiting task does not replace the first one.
    let others = Arc::new(Count::default());
    let second = Waker::from(Arc::clone(&others));
    assert!(!registry.poll_released(Some(&owner("a")), BlockSetId(5), &second));
    assert!(!registry.forget(&owner("a")));
    drop(blocks);
    registry.validate();
    assert_eq!(count.0.load(Ordering::Relaxed), 0);
    assert_eq!(transfer.finish(), Err(SetEnd::Fenced { by: C }));
    assert_eq!(count.0.load(Ordering::Relaxed), 1);
    assert_eq!(others.0.load(Ordering::Relaxed), 1);
    assert!(released());
    import(6, 1_050, C).expect("it has stopped");
    let new = import(5, 1_000, C).expect("it has stopped");
    new.get_remote_blocks_mutable(&BLOCKS).expect("who wrote the old set is forgotten");
    assert!(registry.is_unused());
    registry.validate();
}

#[test]
fn one_writes_or_many_read() {
    let registry = registry(BlockSetLimits::DEFAULT);
    let set = registry.import_remote_blockset(&owner("a"), &sent(5, 1_000, A)).expect("new");
    let busy = |block| Some(AccessError::Busy { block: SlotId(block) });
    let first = set.get_remote_blocks(&BLOCKS).expect("free");
    let second = set.get_remote_blocks(&[SlotId(0)]).expect("readers share");
    assert_eq!(set.get_remote_blocks_mutable(&[SlotId(1), SlotId(2)]).err(), busy(2));
    let write = set.get_remote_blocks_mutable(&[SlotId(1)]).expect("nothing was taken");
    assert_eq!(set.get_remote_blocks(&[SlotId(1)]).err(), busy(1));
    let transfer = write.begin_write().expect("live");
    drop((write, first));
    assert_eq!(set.get_remote_blocks_mutable(&[SlotId(1)]).err(), busy(1), "the transfer has it");
    assert_eq!(set.get_remote_blocks_mutable(&[SlotId(0)]).err(), busy(0), "one reader is left");
    drop((transfer, second));
    set.get_remote_blocks_mutable(&[SlotId(0), SlotId(1), SlotId(2)]).expect("free");
    assert!(registry.is_unused());
    let duplicate = AccessError::Duplicate { block: SlotId(1) };
    assert_eq!(set.get_remote_blocks(&[SlotId(1), SlotId(0), SlotId(1)]).err(), Some(duplicate));
    let range = AccessError::OutOfRange { block: SlotId(4), count: 4 };
    assert_eq!(set.get_remote_blocks(&[SlotId(4)]).err(), Some(range));
}

#[test]
fn every_limit_is_kept_by_its_name() {
    let limits = BlockSetLimits {
        exports_max: 1,
        owners_max: 2,
        owner_ids_max: 2,
        imported_blocks_max: 11,
        handle_blocks_max: 2,
        transfers_max: 1,
    };
    let registry = registry(limits);
    let import = |name, id, fence| {
        registry.import_remote_blockset(&owner(name), &sent(id, 1_000 * id, fence))
    };
    let limit = |limit, max| LimitReached { limit, max };
    let set = import("a", 1, A).expect("4 blocks");
    import("b", 1, A).expect("8 blocks");
    assert_eq!(import("c", 1, A).err(), Some(limit("owners_max", 2).into()));
    assert_eq!(import("a", 2, A).err(), Some(limit("imported_blocks_max", 11).into()));
    registry.withdraw(&owner("b"), BlockSetId(1), A);
    import("a", 2, A).expect("8 blocks");
    assert_eq!(import("a", 3, A).err(), Some(limit("owner_ids_max", 2).into()));
    registry.disconnect(&owner("a"));
    assert_eq!(import("a", 3, A).err(), Some(limit("owner_ids_max", 2).into()), "fences count");
    drop(set);
    let set = import("a", 3, C).expect("a new incarnation has new ids");
    let three = [SlotId(0), SlotId(1), SlotId(2)];
    assert_eq!(set.get_remote_blocks(&three).err(), Some(limit("handle_blocks_max", 2).into()));
    let blocks = set.get_remote_blocks(&BLOCKS).expect("two");
    let _one = blocks.begin_read().expect("one");
    assert_eq!(blocks.begin_read().err(), Some(limit("transfers_max", 1).into()));
    assert!(registry.forget(&owner("b")));
    import("c", 1, A).expect("there is a place");
    registry.validate();
}
