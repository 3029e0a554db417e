//! Expected contents of a store, as plain maps, and workers whose n-th state is reproducible from a seed.

use indexer_server::partitions::RegisteredBy;
use indexer_server::snapshot::{Change, SnapshotConfig, SnapshotStore, StoreError, WorkerState};
use kvasir_index::{
    HoleImage, MeaningImage, NameImage, PAGE_SLOTS, PageImage, Position, RankImage, RunImage,
    SourceId, SourceImage, WorkerImage,
};
use kvasir_proto::convert::WorkerAddress;
use kvasir_proto::types::{
    BlockName, CopyMode, Cursor, DpRank, Incarnation, LocalHash, NameMeaning, PartitionKey,
    SourceStatus, StoredBlock, Tier, TierSet, WorkerId,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::path::Path;

/// Small, so that complete images are written in several parts.
const BATCH_BYTES: usize = 4 << 10;
pub(crate) const REGISTRATION: &[u8] = b"as registered";

pub(crate) fn config(folder: &Path) -> SnapshotConfig {
    let mut config = SnapshotConfig::new(folder.to_owned());
    config.batch_bytes_max = BATCH_BYTES;
    config
}

pub(crate) fn open(folder: &Path) -> SnapshotStore {
    let opened = SnapshotStore::open(&config(folder)).expect("a store");
    assert_eq!((&opened.set_aside, &opened.read_only), (&None, &None));
    opened.store
}

pub(crate) fn address(worker: u64) -> WorkerAddress {
    WorkerAddress {
        partition: PartitionKey::new("model", if worker.is_multiple_of(2) { "" } else { "tenant" })
            .expect("names"),
        worker: WorkerId::new(&format!("worker-{worker}")).expect("a name"),
    }
}

/// Contents of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rank {
    head: RankImage,
    pages: BTreeMap<u32, PageImage>,
    names: BTreeMap<BlockName, NameImage>,
    holes: BTreeMap<u32, HoleImage>,
    meanings: BTreeMap<(SourceId, BlockName), MeaningImage>,
}

impl Rank {
    fn new(of: &RankImage) -> Self {
        let head = RankImage {
            pages: Vec::new(),
            names: Vec::new(),
            holes: Vec::new(),
            meanings: Vec::new(),
            ..of.clone()
        };
        let pages = BTreeMap::new();
        let names = BTreeMap::new();
        let holes = BTreeMap::new();
        Self { head, pages, names, holes, meanings: BTreeMap::new() }
    }
}

/// Contents of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Model {
    sources: Vec<SourceImage>,
    ranks: BTreeMap<DpRank, Rank>,
}

impl Model {
    pub(crate) fn apply(&mut self, image: &WorkerImage) {
        if image.whole {
            self.ranks.clear();
        }
        self.sources.clone_from(&image.sources);
        for changed in &image.ranks {
            let rank = self.ranks.entry(changed.rank).or_insert_with(|| Rank::new(changed));
            rank.head = Rank::new(changed).head;
            for page in &changed.pages {
                if page.runs.is_empty() {
                    rank.pages.remove(&page.page);
                } else {
                    rank.pages.insert(page.page, page.clone());
                }
            }
            for name in &changed.names {
                if name.copies.is_empty() {
                    rank.names.remove(&name.name);
                } else {
                    rank.names.insert(name.name, name.clone());
                }
            }
            for at in &changed.meanings {
                if at.meaning.is_some() {
                    rank.meanings.insert((at.source, at.name), *at);
                } else {
                    rank.meanings.remove(&(at.source, at.name));
                }
            }
            rank.holes.extend(changed.holes.iter().map(|hole| (hole.position.slot, *hole)));
        }
    }

    /// The complete worker, as an image.
    pub(crate) fn whole(&self, worker: &WorkerId) -> WorkerImage {
        let ranks = self.ranks.values().map(|rank| RankImage {
            pages: rank.pages.values().cloned().collect(),
            names: rank.names.values().cloned().collect(),
            holes: rank.holes.values().copied().collect(),
            meanings: rank.meanings.values().copied().collect(),
            ..rank.head.clone()
        });
        WorkerImage {
            worker: worker.clone(),
            whole: true,
            sources: self.sources.clone(),
            ranks: ranks.collect(),
        }
    }

    pub(crate) fn blocks(&self) -> u64 {
        let runs =
            self.ranks.values().flat_map(|rank| rank.pages.values()).flat_map(|page| &page.runs);
        runs.map(|run| run.blocks.len() as u64).sum()
    }

    /// Number of the state, equal to the cursor of the first source.
    pub(crate) fn number(&self) -> u64 {
        self.sources[0].status.applied.expect("a cursor").sequence
    }

    /// Reads a worker from the store.
    pub(crate) fn read(
        store: &SnapshotStore,
        address: &WorkerAddress,
    ) -> Result<Option<Self>, StoreError> {
        let Some(restored) = store.read(address)? else {
            return Ok(None);
        };
        assert_eq!(&restored.worker.address, address);
        assert_eq!(restored.worker.registration, REGISTRATION);
        assert_eq!(restored.worker.registered_by, RegisteredBy::Configuration);
        let mut image = WorkerImage {
            worker: address.worker.clone(),
            whole: false,
            sources: restored.worker.sources,
            ranks: restored.worker.ranks,
        };
        let mut model = Self::default();
        model.apply(&image);
        for piece in restored.pieces {
            image.ranks = vec![piece?];
            model.apply(&image);
        }
        assert_eq!(model.blocks(), restored.worker.held_blocks, "{address}");
        Ok(Some(model))
    }
}

pub(crate) fn state<'a>(
    address: &'a WorkerAddress,
    image: &'a WorkerImage,
    model: &Model,
) -> Change<'a> {
    Change::Store(WorkerState {
        partition: &address.partition,
        image,
        registration: REGISTRATION,
        registered_by: RegisteredBy::Configuration,
        held_blocks: model.blocks(),
    })
}

fn tiers(random: &mut ChaCha8Rng) -> TierSet {
    let tiers: TierSet = Tier::ALL.into_iter().filter(|_tier| random.random()).collect();
    if tiers.is_empty() { TierSet::EMPTY.with(Tier::Device) } else { tiers }
}

fn page(random: &mut ChaCha8Rng, page: u32) -> PageImage {
    let mut runs = Vec::new();
    let mut at = random.random_range(0..=PAGE_SLOTS);
    while at < PAGE_SLOTS {
        let len = random.random_range(1..=PAGE_SLOTS - at);
        let block = |_at| StoredBlock {
            name: BlockName(random.random()),
            local: LocalHash(random.random()),
        };
        let blocks = (0..len).map(block).collect();
        let first = page * PAGE_SLOTS + at;
        let parent = if random.random() { first.checked_sub(1) } else { None };
        runs.push(RunImage { first, parent, tiers: tiers(random), blocks });
        at += len + random.random_range(0..8);
    }
    PageImage { page, runs }
}

/// A page out of 24, so that the same pages change again.
fn some_page(random: &mut ChaCha8Rng) -> PageImage {
    let at = random.random_range(0..24);
    page(random, at)
}

/// Pages that no change touches, so many that a worker takes several blocks of a table.
pub(crate) fn bulk(worker: u64, pages: u32) -> impl Iterator<Item = PageImage> {
    let mut random = ChaCha8Rng::seed_from_u64(worker);
    (1_000..1_000 + pages).map(move |at| page(&mut random, at))
}

fn position(random: &mut ChaCha8Rng) -> Position {
    let slot = random.random_range(0..64);
    Position { slot, parent: random.random::<bool>().then(|| random.random_range(0..64)) }
}

/// A name out of eight, so that the same names are added and removed again.
fn name(random: &mut ChaCha8Rng) -> NameImage {
    let copies = (0..random.random_range(0..3)).map(|source| (SourceId(source), [1, 0, 2]));
    NameImage {
        name: BlockName(random.random_range(0..8)),
        parent: random.random::<bool>().then(|| BlockName(random.random_range(0..8))),
        local: random.random::<bool>().then(|| LocalHash(random.random())),
        position: random.random::<bool>().then(|| position(random)),
        copies: copies.collect(),
    }
}

/// A meaning out of few names, so that some names are repeated.
fn meaning(random: &mut ChaCha8Rng) -> MeaningImage {
    let meaning = NameMeaning {
        adapter: random.random(),
        seed: random.random(),
        matchable: random.random(),
        has_own_keys: random.random(),
        copies: [random.random(), 1, 0],
    };
    MeaningImage {
        source: SourceId(random.random_range(0..2)),
        name: BlockName(random.random_range(0..6)),
        meaning: random.random_bool(0.7).then_some(meaning),
    }
}

fn rank(random: &mut ChaCha8Rng, rank: DpRank) -> RankImage {
    RankImage {
        rank,
        primary: random.random::<bool>().then_some(SourceId(0)),
        shed_blocks: random.random_range(0..3),
        short: (0..random.random_range(0..2)).map(SourceId).collect(),
        pages: (0..random.random_range(0..4)).map(|_at| some_page(random)).collect(),
        names: (0..random.random_range(0..4)).map(|_at| name(random)).collect(),
        holes: (0..random.random_range(0..3))
            .map(|_at| HoleImage {
                position: position(random),
                name: BlockName(random.random()),
                local: LocalHash(random.random()),
            })
            .collect(),
        meanings: (0..random.random_range(0..4)).map(|_at| meaning(random)).collect(),
    }
}

/// The changes from a worker's state `number - 1` to `number`.
pub(crate) fn change(worker: u64, number: u64) -> WorkerImage {
    let random = &mut ChaCha8Rng::seed_from_u64(worker << 32 | number);
    let sources = (0..2).map(|id| SourceImage {
        id: SourceId(id),
        name: format!("source-{id}").into(),
        copy_mode: CopyMode::Counted,
        status: SourceStatus {
            applied: Some(Cursor {
                incarnation: Incarnation(random.random()),
                sequence: number,
                fingerprint: None,
            }),
            ..SourceStatus::default()
        },
        incomplete: random.random(),
        suspect: random.random(),
        ranks: vec![0],
    });
    WorkerImage {
        worker: address(worker).worker,
        whole: false,
        sources: sources.collect(),
        ranks: [0, 5].map(|at| rank(random, at)).to_vec(),
    }
}
