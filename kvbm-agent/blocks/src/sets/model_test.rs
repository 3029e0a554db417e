use super::registry_test::{Memory, description, owner, registrar_of, sent};
use super::*;
use crate::identity::SlotId;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One operation on a registry.
#[derive(Debug, Clone)]
enum Step {
    Export(u64),
    /// Drops one of the exported sets.
    Withdraw(usize),
    /// A peer requests a block of the set with this id, with the newest fence or the previous one.
    Serve {
        id: u64,
        age: u64,
        block: u32,
        access: Access,
    },
    /// A peer sends a set: owner, id, fence.
    Import {
        peer: usize,
        id: u64,
        epoch: u64,
        export: u64,
    },
    PeerWithdraws {
        peer: usize,
        id: u64,
        epoch: u64,
        export: u64,
    },
    Disconnect(usize),
    Forget(usize),
    /// Takes a block of one of the sets that were imported before.
    Take {
        set: usize,
        block: u32,
        access: Access,
    },
    /// Begins a transfer with one of the handles.
    Begin(usize),
    DropHandle(usize),
    /// Ends one of the running transfers.
    Finish(usize),
}

fn access() -> impl Strategy<Value = Access> {
    prop_oneof![Just(Access::Read), Just(Access::Write)]
}

fn step() -> impl Strategy<Value = Step> {
    let any = 0_usize..8;
    let fence = || (0_usize..2, 1_u64..4, 1_u64..4, 1_u64..5);
    prop_oneof![
        3 => (1_u64..4).prop_map(Step::Export),
        2 => any.clone().prop_map(Step::Withdraw),
        3 => (1_u64..4, 0_u64..2, 0_u32..4, access())
            .prop_map(|(id, age, block, access)| Step::Serve { id, age, block, access }),
        5 => fence().prop_map(|(peer, id, epoch, export)| Step::Import { peer, id, epoch, export }),
        1 => fence()
            .prop_map(|(peer, id, epoch, export)| Step::PeerWithdraws { peer, id, epoch, export }),
        1 => (0_usize..2).prop_map(Step::Disconnect),
        1 => (0_usize..2).prop_map(Step::Forget),
        5 => (any.clone(), 0_u32..4, access())
            .prop_map(|(set, block, access)| Step::Take { set, block, access }),
        5 => any.clone().prop_map(Step::Begin),
        3 => any.clone().prop_map(Step::DropHandle),
        4 => any.prop_map(Step::Finish),
    ]
}

/// The model's state of a set. Sets are never removed from the model.
#[derive(Debug, Clone)]
struct SetModel {
    /// `None` for exported sets.
    peer: Option<usize>,
    id: u64,
    fence: Fence,
    is_live: bool,
    transfers: u32,
    /// Per block: number of readers, and whether it is being written.
    used: [(u32, bool); 4],
}

impl SetModel {
    fn is_quarantined(&self) -> bool {
        !self.is_live && self.transfers > 0
    }

    fn may_take(&self, block: u32, access: Access) -> bool {
        let (readers, is_written) = self.used[block as usize];
        self.is_live && !is_written && (access == Access::Read || readers == 0)
    }

    fn take(&mut self, block: u32, access: Access) {
        let used = &mut self.used[block as usize];
        match access {
            Access::Read => used.0 += 1,
            Access::Write => used.1 = true,
        }
    }
}

enum Handle {
    Read(RemoteBlocks),
    Write(RemoteBlocksMut),
}

/// A reference to a block of a set: it ends with the last one of its handle and its transfers.
struct Share {
    set: usize,
    block: u32,
    access: Access,
    holders: u32,
}

struct World {
    registry: BlockSetRegistry,
    memory: Arc<Memory>,
    registrar: Arc<dyn Registrar>,
    sets: Vec<SetModel>,
    shares: Vec<Share>,
    /// For each owner its epoch, and for each id the lowest accepted fence.
    epochs: [Option<u64>; 2],
    floors: BTreeMap<(usize, u64), Fence>,
    exported: Vec<(usize, BlockSet)>,
    imported: Vec<(usize, RemoteBlockSet)>,
    handles: Vec<(usize, Handle)>,
    transfers: Vec<(usize, TransferGuard)>,
}

fn peer_name(peer: usize) -> kvasir_proto::types::WorkerId {
    owner(["a", "b"][peer])
}

/// Sets with different ids have different memory, except that ids 1 and 2 overlap.
fn address(id: u64) -> u64 {
    match id {
        1 => 1_000,
        2 => 1_100,
        _ => 5_000,
    }
}

fn picked<T>(list: &[T], at: usize) -> Option<usize> {
    (!list.is_empty()).then(|| at % list.len())
}

impl World {
    fn new() -> Self {
        let memory = Arc::new(Memory::default());
        Self {
            registry: BlockSetRegistry::new(1, BlockSetLimits::DEFAULT),
            registrar: registrar_of(&memory),
            memory,
            sets: Vec::new(),
            shares: Vec::new(),
            epochs: [None; 2],
            floors: BTreeMap::new(),
            exported: Vec::new(),
            imported: Vec::new(),
            handles: Vec::new(),
            transfers: Vec::new(),
        }
    }

    fn add(&mut self, peer: Option<usize>, id: u64, fence: Fence) -> usize {
        let used = [(0, false); 4];
        self.sets.push(SetModel { peer, id, fence, is_live: true, transfers: 0, used });
        self.sets.len() - 1
    }

    fn of(&self, peer: Option<usize>) -> impl Iterator<Item = &SetModel> {
        self.sets.iter().filter(move |set| set.peer == peer)
    }

    fn end(&mut self, is_ended: impl Fn(&SetModel) -> bool) {
        for set in self.sets.iter_mut().filter(|set| is_ended(set)) {
            set.is_live = false;
        }
    }

    fn release(&mut self, share: usize) {
        let Share { set, block, access, holders } = &mut self.shares[share];
        *holders -= 1;
        if *holders == 0 {
            let used = &mut self.sets[*set].used[*block as usize];
            match access {
                Access::Read => used.0 -= 1,
                Access::Write => used.1 = false,
            }
        }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Export(id) => self.export(id),
            Step::Withdraw(at) => {
                let Some(at) = picked(&self.exported, at) else { return };
                let (set, handle) = self.exported.remove(at);
                drop(handle);
                self.sets[set].is_live = false;
            }
            Step::Serve { id, age, block, access } => self.serve(id, age, block, access),
            Step::Import { peer, id, epoch, export } => {
                self.import(peer, id, Fence { epoch, export });
            }
            Step::PeerWithdraws { peer, id, epoch, export } => {
                self.peer_withdraws(peer, id, Fence { epoch, export });
            }
            Step::Disconnect(peer) => {
                self.registry.disconnect(&peer_name(peer));
                self.end(|set| set.peer == Some(peer));
            }
            Step::Forget(peer) => {
                let is_idle = self.of(Some(peer)).all(|set| !set.is_live && set.transfers == 0);
                assert_eq!(self.registry.forget(&peer_name(peer)), is_idle);
                if is_idle {
                    self.epochs[peer] = None;
                    self.floors.retain(|(of, _), _| *of != peer);
                }
            }
            Step::Take { set, block, access } => self.take(set, block, access),
            Step::Begin(at) => self.begin(at),
            Step::DropHandle(at) => {
                let Some(at) = picked(&self.handles, at) else { return };
                let (share, handle) = self.handles.remove(at);
                drop(handle);
                self.release(share);
            }
            Step::Finish(at) => self.finish(at),
        }
    }

    fn export(&mut self, id: u64) {
        let is_free = self.of(None).all(|set| set.id != id || !set.is_live && set.transfers == 0);
        let exported = self.registry.export(description(id, address(id)), &self.registrar);
        assert_eq!(exported.is_ok(), is_free, "{exported:?}");
        if let Ok(handle) = exported {
            let fence = handle.layout().fence();
            assert!(self.of(None).all(|set| set.fence < fence), "fences go up");
            let set = self.add(None, id, fence);
            self.exported.push((set, handle));
        }
    }

    fn serve(&mut self, id: u64, age: u64, block: u32, access: Access) {
        let newest = self.of(None).filter(|set| set.id == id).map(|set| set.fence.export).max();
        let export = newest.unwrap_or(1).saturating_sub(age);
        let fence = Fence { epoch: 1, export };
        let at = self.sets.iter().position(|set| {
            set.peer.is_none() && set.id == id && set.fence == fence && set.may_take(block, access)
        });
        let served = self.registry.serve(BlockSetId(id), fence, &[SlotId(block)], access);
        assert_eq!(served.is_ok(), at.is_some(), "{served:?}");
        if let (Ok(guard), Some(set)) = (served, at) {
            self.sets[set].take(block, access);
            self.sets[set].transfers += 1;
            self.shares.push(Share { set, block, access, holders: 1 });
            self.transfers.push((self.shares.len() - 1, guard));
        }
    }

    fn import(&mut self, peer: usize, id: u64, fence: Fence) {
        let bytes = sent(id, address(id), fence);
        let imported = self.registry.import_remote_blockset(&peer_name(peer), &bytes);
        if self.epochs[peer].is_none_or(|epoch| epoch < fence.epoch) {
            self.epochs[peer] = Some(fence.epoch);
            self.end(|set| set.peer == Some(peer));
            self.floors.retain(|(of, _), _| *of != peer);
        }
        let floor = Fence { epoch: self.epochs[peer].expect("it is set"), export: 0 };
        let floor = self.floors.get(&(peer, id)).copied().unwrap_or(floor);
        if fence < floor {
            let error = imported.expect_err("it is older");
            assert!(matches!(error, ImportError::Fenced { .. }), "{error}");
            return;
        }
        self.floors.insert((peer, id), fence);
        let is_it = |set: &SetModel| set.peer == Some(peer) && set.id == id && set.is_live;
        if let Some(at) = self.sets.iter().position(|set| is_it(set) && set.fence == fence) {
            self.imported.push((at, imported.expect("it is there")));
            return;
        }
        self.end(is_it);
        let hinders = |set: &SetModel| set.is_quarantined() && (set.id == id || set.id + id == 3);
        let is_quarantined = self.of(Some(peer)).any(hinders);
        match imported {
            Ok(handle) => {
                assert!(!is_quarantined, "{:?}", self.sets);
                let set = self.add(Some(peer), id, fence);
                self.imported.push((set, handle));
            }
            Err(error) => {
                assert!(matches!(error, ImportError::Quarantined(_)), "{error}");
                assert!(is_quarantined, "{:?}", self.sets);
            }
        }
    }

    fn peer_withdraws(&mut self, peer: usize, id: u64, fence: Fence) {
        self.registry.withdraw(&peer_name(peer), BlockSetId(id), fence);
        if self.epochs[peer] != Some(fence.epoch) {
            return;
        }
        let above = Fence { export: fence.export + 1, ..fence };
        let floor = self.floors.entry((peer, id)).or_insert(above);
        *floor = (*floor).max(above);
        self.end(|set| set.peer == Some(peer) && set.id == id && set.fence <= fence);
    }

    fn take(&mut self, at: usize, block: u32, access: Access) {
        let Some(at) = picked(&self.imported, at) else { return };
        let (set, handle) = &self.imported[at];
        let set = *set;
        let blocks = [SlotId(block)];
        let taken = match access {
            Access::Read => handle.get_remote_blocks(&blocks).map(Handle::Read),
            Access::Write => handle.get_remote_blocks_mutable(&blocks).map(Handle::Write),
        };
        assert_eq!(taken.is_ok(), self.sets[set].may_take(block, access));
        if let Ok(handle) = taken {
            self.sets[set].take(block, access);
            self.shares.push(Share { set, block, access, holders: 1 });
            self.handles.push((self.shares.len() - 1, handle));
        }
    }

    fn begin(&mut self, at: usize) {
        let Some(at) = picked(&self.handles, at) else { return };
        let (share, handle) = &self.handles[at];
        let share = *share;
        let set = self.shares[share].set;
        let begun = match handle {
            Handle::Read(blocks) => blocks.begin_read(),
            Handle::Write(blocks) => blocks.begin_write(),
        };
        assert_eq!(begun.is_ok(), self.sets[set].is_live);
        if let Ok(guard) = begun {
            assert_eq!(guard.fence(), self.sets[set].fence);
            self.sets[set].transfers += 1;
            self.shares[share].holders += 1;
            self.transfers.push((share, guard));
        }
    }

    fn finish(&mut self, at: usize) {
        let Some(at) = picked(&self.transfers, at) else { return };
        let (share, guard) = self.transfers.remove(at);
        let set = self.shares[share].set;
        assert_eq!(guard.finish().is_ok(), self.sets[set].is_live);
        self.sets[set].transfers -= 1;
        self.release(share);
    }

    fn check(&self) {
        self.registry.validate();
        let count =
            |is: &dyn Fn(&SetModel) -> bool| self.sets.iter().filter(|set| is(set)).count() as u64;
        let stats = self.registry.stats();
        assert_eq!(stats.exports, count(&|set| set.is_live && set.peer.is_none()));
        assert_eq!(stats.imports, count(&|set| set.is_live && set.peer.is_some()));
        assert_eq!(stats.quarantined, count(&SetModel::is_quarantined));
        assert_eq!(stats.transfers, self.transfers.len() as u64);
        // Memory is registered exactly while its set is live or quarantined.
        let mut expected: Vec<u64> = self
            .of(None)
            .filter(|set| set.is_live || set.is_quarantined())
            .flat_map(|set| [address(set.id), address(set.id) + 64])
            .collect();
        let mut registered = self.memory.registered();
        expected.sort_unstable();
        registered.sort_unstable();
        assert_eq!(registered, expected);
        for (set, handle) in &self.imported {
            assert_eq!(handle.is_live(), self.sets[*set].is_live);
        }
        for (share, guard) in &self.transfers {
            let set = self.shares[*share].set;
            assert_eq!(guard.ended().is_none(), self.sets[set].is_live);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    #[test]
    fn a_registry_equals_its_model(steps in proptest::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        for step in &steps {
            world.run(step);
            world.check();
        }
        while !world.transfers.is_empty() {
            world.finish(0);
        }
        world.handles.clear();
        prop_assert!(world.registry.is_unused());
        world.exported.clear();
        prop_assert_eq!(world.memory.registered(), []);
        let stats = world.registry.stats();
        prop_assert_eq!((stats.exports, stats.quarantined, stats.transfers), (0, 0, 0));
        world.registry.validate();
    }
}
