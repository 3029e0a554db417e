//! Fault injection by seeds: a loaded block is correct or an error, whatever fails below. `KVASIR_SEEDS=10000` runs
//! more seeds, `KVASIR_SEED=7` runs one.
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking"
)]

use kvasir_memory::{Arena, SlotLayout, StorageAllocator, SystemAllocator};
use kvasir_tiers::disk::DiskConfig;
use kvasir_tiers::faults::{Fault, FaultyMedium, FaultyStorage, Plan, Rates, damage_host};
use kvasir_tiers::{
    Cancel, DiskStorage, Fingerprint, HostStorage, Identity, NewBlock, Place, Sealed, Storage,
    TransferError,
};
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const BYTES: usize = 3 * 4096 - 7;
const SLOTS: u32 = 6;
const OPERATIONS: u32 = 60;

const RATES: Rates = Rates {
    short: 60,
    end: 20,
    flip: 40,
    full: 30,
    io: 30,
    delay: 20,
    cancel: 20,
    delay_max: Duration::from_micros(200),
};

fn arena(slots: u32) -> Arc<Arena> {
    let layout = SlotLayout::aligned(BYTES, 4096, slots).expect("a layout");
    let region = SystemAllocator.allocate(layout.bytes().expect("bytes"), 4096).expect("memory");
    Arena::new(region, layout).expect("an arena")
}

fn content(number: u32) -> Vec<u8> {
    (0_u32..).flat_map(|at| (at ^ number.wrapping_mul(0x9E37)).to_le_bytes()).take(BYTES).collect()
}

fn new_block(number: u32) -> NewBlock {
    let identity = Identity {
        sequence_hash: u64::from(number) << 32 | 0xBEEF,
        parent: None,
        local_hash: 1,
        position: number,
    };
    NewBlock { identity, bytes: BYTES, checksum: None }
}

/// A small pseudo-random generator.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(self.0 >> 40).expect("24 bits") % limit
    }
}

/// Expected state: the block in each slot, if the storage confirmed it.
#[derive(Default)]
struct Model {
    slots: BTreeMap<u32, (Sealed, u32)>,
    errors: BTreeSet<&'static str>,
}

fn kind(error: &TransferError) -> &'static str {
    match error {
        TransferError::Corrupt { .. } => "corrupt",
        TransferError::Short { .. } => "short",
        TransferError::Full(_) => "full",
        TransferError::Io(_) => "io",
        TransferError::Cancelled => "cancelled",
        other => panic!("not a fault of this test: {other}"),
    }
}

impl Model {
    fn step(
        &mut self,
        storage: &dyn Storage,
        memory: &Arc<Arena>,
        random: &mut Random,
        number: u32,
    ) {
        let slot = random.below(SLOTS);
        let cancel = Cancel::new();
        let place = Place::Slot(slot);
        match random.below(5) {
            0 | 1 => {
                self.slots.remove(&slot);
                let mut source = memory.write(0).expect("a free slot");
                source.write(0, &content(number)).expect("room");
                match storage.store(place, &new_block(number), &source.into_read(), &cancel) {
                    Ok(sealed) => drop(self.slots.insert(slot, (sealed, number))),
                    Err(error) => drop(self.errors.insert(kind(&error))),
                }
            }
            2 | 3 => {
                let Some((sealed, number)) = self.slots.get(&slot) else { return };
                let mut target = memory.write(1).expect("a free slot");
                match storage.load(place, sealed, &mut target, &cancel) {
                    Ok(()) => {
                        assert_eq!(target.as_slice(), Some(&*content(*number)), "wrong bytes")
                    }
                    Err(error) => drop(self.errors.insert(kind(&error))),
                }
            }
            _ => {
                let removed = self.slots.remove(&slot);
                let name = removed.map_or(0, |(sealed, _)| sealed.identity.sequence_hash);
                if let Err(error) = storage.erase(place, name, &cancel) {
                    self.errors.insert(kind(&error));
                }
            }
        }
    }
}

fn open(folder: &Path, plan: &Arc<Plan>) -> kvasir_tiers::disk::Opened {
    let config = DiskConfig {
        path: folder.join("tier"),
        block_bytes: BYTES,
        slots: SLOTS,
        fingerprint: Fingerprint([1; 32]),
        description: "faults".to_owned(),
        direct: true,
    };
    let through = |file| -> Box<dyn kvasir_tiers::disk::Medium> {
        Box::new(FaultyMedium::new(Box::new(file), Arc::clone(plan)))
    };
    DiskStorage::open_through(&config, 5, through).expect("a tier")
}

/// Runs one seed over both storages. Returns the injected faults and the errors that they caused.
fn run(seed: u64) -> (BTreeMap<Fault, u64>, BTreeSet<&'static str>) {
    let folder = tempfile::tempdir().expect("a folder");
    let plan = Plan::new(seed, RATES);
    let memory = arena(2);
    let mut random = Random(seed);

    let host = HostStorage::new(arena(SLOTS));
    let damage = damage_host(&host);
    let host = FaultyStorage::new(Arc::new(host), Arc::clone(&plan), damage);
    let mut on_host = Model::default();
    let disk = open(folder.path(), &plan).storage;
    let disk = FaultyStorage::new(Arc::new(disk), Arc::clone(&plan), Box::new(|_, _| ()));
    let mut on_disk = Model::default();
    for number in 0..OPERATIONS {
        on_host.step(&host, &memory, &mut random, number);
        on_disk.step(&disk, &memory, &mut random, number);
    }
    drop(disk);

    // After a restart without faults, every recovered block is correct or detected as wrong.
    plan.end();
    let opened = open(folder.path(), &plan);
    for found in &opened.blocks {
        let mut target = memory.write(1).expect("a free slot");
        let place = Place::Slot(found.slot);
        match opened.storage.load(place, &found.block, &mut target, &Cancel::new()) {
            Ok(()) => {
                let number = found.block.identity.position;
                assert_eq!(
                    target.as_slice(),
                    Some(&*content(number)),
                    "wrong bytes after a restart"
                );
            }
            Err(TransferError::Corrupt { .. }) => {}
            Err(other) => panic!("slot {}: {other}", found.slot),
        }
    }
    (plan.injected(), on_host.errors.into_iter().chain(on_disk.errors).collect())
}

#[test]
fn what_is_loaded_is_right_or_an_error() {
    let number = |name: &str| -> Option<u64> { env::var_os(name)?.to_str()?.parse().ok() };
    let seeds = match number("KVASIR_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("KVASIR_SEEDS").unwrap_or(200),
    };
    let is_all = seeds.end - seeds.start > 100;
    let (mut injected, mut errors) = (BTreeMap::<Fault, u64>::new(), BTreeSet::new());
    for seed in seeds {
        println!("KVASIR_SEED={seed}");
        let (faults, kinds) = run(seed);
        faults.into_iter().for_each(|(fault, count)| *injected.entry(fault).or_default() += count);
        errors.extend(kinds);
    }
    println!("{injected:?} {errors:?}");
    if is_all {
        assert_eq!(injected.len(), 7, "each fault was injected");
        let expected = ["cancelled", "corrupt", "full", "io", "short"];
        assert_eq!(errors.into_iter().collect::<Vec<_>>(), expected, "and each showed");
    }
}
