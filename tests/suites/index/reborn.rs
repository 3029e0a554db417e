//! An index that lives on in images: now and then one is taken, and now and then the index is thrown
//! away and made again from what was kept. Nobody who asks may notice.

use crate::live::{Live, limits, text};
use crate::shedding::Shedding;
use crate::subject::{DumpedRecord, DumpedTail, Piece, RankSizes, Refusal, Sizes, Subject};
use kvasir_index::{ChangeLimits, DumpScan, Index, Limits, Restore, Restored, Shed, SourceId};
use kvasir_proto::types::{BlockCounts, DpRank, KvEvent, WorkerId};
use kvasir_tests::image_store::{Loss, StoredImages};
use kvasir_tests::oracle::{Found, Question, Roles};
use kvasir_tests::script::{ScriptLimits, ScriptRng, SourceSpec};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};

/// Steps after which a cut or a restore counts as endless.
const STEPS_MAX: usize = 1_000_000;
/// Indexes that are checked in the middle of a restore are at most this large.
const CHECKED_BLOCKS_MAX: u64 = 1_000;

/// What was tried, so that a test can tell that it tried something.
#[derive(Debug, Default, Clone, Copy)]
pub struct Tried {
    pub partial_images: u64,
    pub whole_images: u64,
    pub abandoned: u64,
    pub holes: u64,
    pub indexes: u64,
    pub workers: u64,
    pub blocks: u64,
    pub parked: u64,
}

impl Tried {
    fn merge(&mut self, other: Self) {
        self.partial_images += other.partial_images;
        self.whole_images += other.whole_images;
        self.abandoned += other.abandoned;
        self.holes += other.holes;
        self.indexes += other.indexes;
        self.workers += other.workers;
        self.blocks += other.blocks;
        self.parked += other.parked;
    }

    /// Fails unless each of it was tried more often than that.
    pub fn assert_above(&self, least: u64) {
        let Self { partial_images, whole_images, abandoned, holes, .. } = *self;
        let Self { indexes, workers, blocks, parked, .. } = *self;
        for (what, count) in [
            ("images of changes", partial_images),
            ("whole images", whole_images),
            ("abandoned", abandoned),
            ("holes", holes),
            ("indexes", indexes),
            ("workers", workers),
            ("blocks", blocks),
            ("parked", parked),
        ] {
            assert!(count > least, "{what}: {count}");
        }
    }
}

pub struct Reborn {
    live: Live,
    limits: Limits,
    /// Sources by a number that outlives the index.
    sources: Vec<Option<(WorkerId, String, SourceId)>>,
    pub kept: BTreeMap<WorkerId, StoredImages>,
    scans: usize,
    rng: ScriptRng,
    roles: Roles,
    /// Of 100 calls, before how many an image is taken and a restore is done.
    images_percent: u32,
    restores_percent: u32,
    loss: Loss,
    tried: Tried,
    total: Arc<Mutex<Tried>>,
}

impl Drop for Reborn {
    fn drop(&mut self) {
        self.total.lock().expect("not poisoned").merge(self.tried);
    }
}

impl Reborn {
    pub fn new(script: ScriptLimits, loss: Loss, total: &Arc<Mutex<Tried>>) -> Self {
        let limits = Limits { changes: Some(ChangeLimits::default()), ..limits(script) };
        Self {
            live: Live::with(limits),
            limits,
            sources: Vec::new(),
            kept: BTreeMap::new(),
            scans: 0,
            rng: ScriptRng::seed_from_u64(0),
            roles: Roles::default(),
            images_percent: 0,
            restores_percent: 0,
            loss,
            tried: Tried::default(),
            total: Arc::clone(total),
        }
    }

    pub const fn index(&mut self) -> &mut Index {
        self.live.index()
    }

    /// What happens between two calls is decided by what was called so far.
    fn decide_by(&mut self, what: &impl std::fmt::Debug) {
        let mut hasher = DefaultHasher::new();
        format!("{what:?}").hash(&mut hasher);
        let is_first = self.images_percent == 0;
        self.rng = ScriptRng::seed_from_u64(hasher.finish() ^ self.rng.random::<u64>());
        if is_first {
            self.images_percent = [5, 20, 60][self.rng.random_range(0..3)];
            self.restores_percent = [2, 8, 30][self.rng.random_range(0..3)];
            if self.rng.random_bool(0.3) {
                let few = |rng: &mut ScriptRng| rng.random_range(0..4);
                let pages_max = few(&mut self.rng);
                let names_max = few(&mut self.rng);
                self.limits.changes = Some(ChangeLimits { pages_max, names_max });
                self.begin_again();
            }
        }
    }

    /// An empty index. What workers are is registered before their blocks come.
    fn begin_again(&mut self) {
        self.live = Live::with(self.limits);
        self.live.set_roles(&self.roles);
    }

    fn called(&mut self, what: &impl std::fmt::Debug) -> Result<(), String> {
        self.decide_by(what);
        if self.rng.random_ratio(self.images_percent, 100) {
            self.take_images(true)?;
        }
        if self.scans == 0 && self.rng.random_ratio(self.restores_percent, 100) {
            self.begin_anew()?;
        }
        Ok(())
    }

    fn workers(&mut self) -> Vec<WorkerId> {
        self.live.index().workers().map(|worker| worker.id().clone()).collect()
    }

    /// Takes an image of each worker that has changed.
    pub fn take_images(&mut self, may_fail: bool) -> Result<(), String> {
        let workers = self.workers();
        self.kept.retain(|worker, _| workers.contains(worker));
        for worker in workers {
            let view = self.live.index().worker(&worker).expect("known");
            if !view.has_changed() && self.rng.random_bool(0.9) {
                continue;
            }
            while !self.take_image(&worker, may_fail)? {}
        }
        Ok(())
    }

    /// Takes an image, or begins one and gives it up; true if it was kept.
    fn take_image(&mut self, worker: &WorkerId, may_fail: bool) -> Result<bool, String> {
        let index = self.live.index();
        let changed = index.worker(worker).expect("known").has_changed();
        let ask_whole = self.rng.random_bool(0.1);
        let mut cut = index.begin_cut(worker, ask_whole).map_err(text)?;
        let fails = may_fail && self.rng.random_bool(0.2);
        let budget = [1, 7, 1_000][self.rng.random_range(0..3)];
        let mut steps = 0;
        loop {
            let step = index.cut_step(&mut cut, budget);
            steps += 1;
            if step.read > budget + 64 {
                return Err(format!("{step:?} of a budget of {budget}"));
            }
            if step.done || (fails && self.rng.random_bool(0.2)) {
                break;
            }
            if steps > STEPS_MAX {
                return Err("a cut never ends".into());
            }
        }
        let (image, receipt) = cut.finish();
        if fails {
            index.abandon_cut(receipt);
            self.tried.abandoned += 1;
            let view = index.worker(worker).expect("known");
            return if view.has_changed() { Ok(false) } else { Err("a cut was lost".into()) };
        }
        if index.worker(worker).expect("known").has_changed() && self.limits.changes.is_some() {
            return Err(format!("{worker} has changed since its image"));
        }
        let mut ranks = image.ranks.iter();
        let says = ranks.any(|at| !(at.pages.is_empty() && at.names.is_empty()));
        if !changed && !image.whole && says {
            return Err(format!("{worker} has not changed, and its image says {image:?}"));
        }
        let kept = self.kept.entry(worker.clone());
        if matches!(kept, std::collections::btree_map::Entry::Vacant(_)) && !image.whole {
            return Err(format!("the first image of {worker} is not whole"));
        }
        *(if image.whole {
            &mut self.tried.whole_images
        } else {
            &mut self.tried.partial_images
        }) += 1;
        self.tried.holes += image.ranks.iter().map(|rank| rank.holes.len() as u64).sum::<u64>();
        kept.or_default().merge(image, self.loss);
        Ok(true)
    }

    /// Throws the index away, or one worker of it, and makes it again from images.
    fn begin_anew(&mut self) -> Result<(), String> {
        self.take_images(false)?;
        let suspect = |kept: &StoredImages| kept.sources.iter().any(|source| source.suspect);
        if self.kept.values().any(suspect) {
            // Then all is suspect, which others would notice: tried apart from this.
            return Ok(());
        }
        let mut workers = self.workers();
        workers.shuffle(&mut self.rng);
        if self.rng.random_bool(0.5) {
            self.begin_again();
            self.tried.indexes += 1;
        } else {
            workers.truncate(1);
            for worker in &workers {
                self.remove(worker)?;
            }
        }
        for worker in &workers {
            self.restore(worker)?;
        }
        self.live.validate()?;
        let known: BTreeMap<_, _> = self
            .live
            .index()
            .workers()
            .flat_map(|worker| {
                let id = worker.id().clone();
                worker.sources().map(move |(at, name, _)| ((id.clone(), name.to_owned()), at))
            })
            .collect();
        for (worker, name, id) in self.sources.iter_mut().flatten() {
            let found = known.get(&(worker.clone(), name.clone()));
            *id = *found.ok_or_else(|| format!("{worker}/{name} is not restored"))?;
        }
        Ok(())
    }

    fn remove(&mut self, worker: &WorkerId) -> Result<(), String> {
        let index = self.live.index();
        let sources = index.worker(worker).expect("known").sources();
        let sources: Vec<_> = sources.map(|(id, ..)| id).collect();
        for source in sources {
            while !index.clear_source(source, None, 100).map_err(text)?.done {}
            index.remove_source(source).map_err(text)?;
        }
        Ok(())
    }

    fn restore(&mut self, worker: &WorkerId) -> Result<(), String> {
        let saved = self.kept[worker].saved(worker, &mut self.rng)?;
        let restored = restore(self.live.index(), saved, &mut self.rng)?;
        let Restored { placed, parked, unplaced, dropped, shed } = restored;
        if unplaced + dropped + shed > 0 {
            return Err(format!("{restored:?} of {:?}", self.kept[worker]));
        }
        self.tried.workers += 1;
        self.tried.blocks += placed;
        self.tried.parked += parked;
        Ok(())
    }

    fn id(&self, source: usize) -> Result<SourceId, String> {
        let known = self.sources.get(source).and_then(|at| at.as_ref());
        known.map(|at| at.2).ok_or_else(|| "removed".to_owned())
    }

    fn number(&self, id: SourceId) -> Option<usize> {
        self.sources.iter().position(|at| at.as_ref().is_some_and(|at| at.2 == id))
    }

    fn numbered(
        &self,
        records: Vec<DumpedRecord<SourceId>>,
    ) -> Result<Vec<DumpedRecord<usize>>, Refusal> {
        let numbered = records.into_iter().map(|((rank, source, name), held)| {
            self.number(source).map(|source| ((rank, source, name), held))
        });
        let all: Option<Vec<_>> = numbered.collect();
        all.ok_or_else(|| Refusal::Other("record of an unknown source".into()))
    }
}

/// Restores a worker in steps of any size.
pub fn restore(
    index: &mut Index,
    saved: kvasir_index::Saved,
    rng: &mut ScriptRng,
) -> Result<Restored, String> {
    let mut restore = Restore::new(saved).map_err(|error| error.to_string())?;
    let budget = [1, 7, 1_000][rng.random_range(0..3)];
    for _ in 0..STEPS_MAX {
        let step = restore.step(index, budget).map_err(text)?;
        if step.done {
            return Ok(restore.restored());
        }
        if index.stats().blocks < CHECKED_BLOCKS_MAX {
            index.validate()?;
        }
    }
    Err("a restore never ends".into())
}

impl Subject for Reborn {
    type Source = usize;
    type Scan = DumpScan;

    fn set_roles(&mut self, roles: &Roles) {
        self.roles = roles.clone();
        self.live.set_roles(roles);
    }

    fn add_source(&mut self, spec: &SourceSpec) -> Result<usize, String> {
        // Of this call errors may be expected, so nothing that can fail happens before.
        self.decide_by(spec);
        let id = self.live.add_source(spec)?;
        self.sources.push(Some((spec.worker.clone(), spec.name.clone(), id)));
        Ok(self.sources.len() - 1)
    }

    fn remove_source(&mut self, source: usize) -> Result<(), String> {
        self.called(&source)?;
        self.live.remove_source(self.id(source)?)?;
        self.sources[source] = None;
        Ok(())
    }

    fn apply(
        &mut self,
        source: usize,
        rank: DpRank,
        event: &KvEvent,
    ) -> Result<BlockCounts, String> {
        self.called(&(source, rank, event))?;
        self.live.apply(self.id(source)?, rank, event)
    }

    fn clear(
        &mut self,
        source: usize,
        rank: Option<DpRank>,
        budget: usize,
    ) -> Result<Piece, String> {
        self.called(&(source, rank, budget))?;
        self.live.clear(self.id(source)?, rank, budget)
    }

    fn mark_suspect(&mut self, source: usize) {
        if let Ok(id) = self.id(source) {
            self.live.mark_suspect(id);
        }
    }

    fn drop_suspects(&mut self, source: usize, budget: usize) -> Result<Piece, String> {
        self.called(&(source, budget))?;
        self.live.drop_suspects(self.id(source)?, budget)
    }

    fn find(&mut self, question: &Question) -> Result<Vec<Found>, String> {
        self.live.find(question)
    }

    fn begin_dump(&mut self, worker: &WorkerId, rank: Option<DpRank>) -> Result<DumpScan, Refusal> {
        let scan = self.live.begin_dump(worker, rank)?;
        self.scans += 1;
        Ok(scan)
    }

    fn read_dump(
        &mut self,
        scan: &mut DumpScan,
        records_max: usize,
        out: &mut Vec<DumpedRecord<usize>>,
    ) -> Result<bool, Refusal> {
        let mut records = Vec::new();
        let more = self.live.read_dump(scan, records_max, &mut records)?;
        out.extend(self.numbered(records)?);
        Ok(more)
    }

    fn finish_dump(&mut self, scan: DumpScan) -> Result<DumpedTail<usize>, Refusal> {
        self.scans -= 1;
        let DumpedTail { records, ends } = self.live.finish_dump(scan)?;
        let records = self.numbered(records)?;
        let number = |(id, name)| Some((self.number(id)?, name));
        let ends: Option<Vec<_>> = ends.into_iter().map(number).collect();
        let ends = ends.ok_or_else(|| Refusal::Other("end of an unknown source".into()))?;
        Ok(DumpedTail { records, ends })
    }

    fn cancel_dump(&mut self, scan: DumpScan) {
        self.scans -= 1;
        self.live.cancel_dump(scan);
    }

    fn sizes(&self) -> Sizes {
        self.live.sizes()
    }

    fn ranks(&self) -> RankSizes {
        self.live.ranks()
    }

    fn validate(&self) -> Result<(), String> {
        self.live.validate()
    }
}

impl Shedding for Reborn {
    fn each_index(&self, see: impl FnMut(&Index)) {
        self.live.each_index(see);
    }

    fn shed_some(&mut self, budget: usize) -> Shed {
        self.live.shed_some(budget)
    }
}
