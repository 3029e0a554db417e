//! Images and restores: an index that is thrown away and made again from what was kept of it goes on as
//! if nothing had happened.

use crate::driver::{report, run_seeds};
use crate::live::{Live, limits};
use crate::reborn::{Reborn, Tried, restore};
use crate::seeds;
use crate::shedding::{self, Play};
use crate::subject::Subject;
use kvasir_index::{ChangeLimits, Index, Limits, Query, QueryKey, Scratch, SourceId, WorkerImage};
use kvasir_proto::types::{
    BlockName, CopyMode, Cursor, Fingerprint, Incarnation, KvEvent, LocalHash, NameChange,
    NameMeaning, SourceState, SourceStatus, StoredBlock, Tier, TierSet, WorkerId,
};
use kvasir_tests::image_store::{Loss, StoredImages};
use kvasir_tests::script::{Script, ScriptRng};
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Seeds in the ordinary test command.
const SEEDS: u64 = 4_000;
const LARGE_SEEDS: u64 = 1;
/// Seeds within which each fault of a store must show.
const FAULT_SEEDS: u64 = 4_000;
const SHED_SEEDS: u64 = 2_000;

/// However often images are taken, in steps of any size, given up, and the index or one worker of it
/// made again from them: every outcome, answer, dump and size is the reference's.
#[test]
fn an_index_survives_in_images() {
    let seeds = seeds(SEEDS);
    let total = Arc::new(Mutex::new(Tried::default()));
    let make = |limits| Reborn::new(limits, Loss::Nothing, &total);
    match run_seeds(seeds.clone(), Script::generate, make) {
        Ok(seen) => println!("seeds {seeds:?}: {seen:?}"),
        Err((seed, failure)) => panic!("{}", report(&Script::generate(seed), &failure, make)),
    }
    let total = *total.lock().expect("not poisoned");
    println!("{total:?}");
    // Whoever chooses seeds knows what for.
    if seeds == (0..SEEDS) {
        total.assert_above(SEEDS / 4);
    }
}

/// The same where tables grow, split and shrink.
#[test]
fn large_indexes_live_on_too() {
    let total = Arc::new(Mutex::new(Tried::default()));
    let make = |limits| Reborn::new(limits, Loss::Nothing, &total);
    match run_seeds(0..LARGE_SEEDS, Script::generate_large, make) {
        Ok(seen) => println!("{seen:?} {:?}", total.lock().expect("not poisoned")),
        Err((seed, failure)) => panic!("{}", report(&Script::generate_large(seed), &failure, make)),
    }
}

/// The suite can fail: a store that loses one kind of what it is given is noticed.
#[test]
fn every_part_of_an_image_matters() {
    let total = Arc::new(Mutex::new(Tried::default()));
    for loss in Loss::ALL {
        let make = |limits| Reborn::new(limits, loss, &total);
        let outcome = run_seeds(0..FAULT_SEEDS, Script::generate, make);
        let (seed, failure) = outcome.err().unwrap_or_else(|| panic!("{loss:?} was not noticed"));
        println!("{loss:?}: seed {seed}, {}", failure.message.lines().next().unwrap_or(""));
    }
}

/// Where blocks are shed for the byte budget, a restore only takes from answers, and what it takes is
/// said.
#[test]
fn what_was_shed_stays_shed() {
    let total = Arc::new(Mutex::new(Tried::default()));
    let mut all = shedding::Tried::default();
    for seed in 0..SHED_SEEDS {
        let script = Script::generate(seed);
        match shed_and_live_on(&script, &total) {
            Ok(tried) => all.merge(&tried),
            Err(message) => panic!("seed {seed}: {message}\n{script}"),
        }
    }
    println!("seeds 0..{SHED_SEEDS}: {all:?} {:?}", total.lock().expect("not poisoned"));
    all.assert_above(SHED_SEEDS / 10);
}

fn shed_and_live_on(script: &Script, total: &Arc<Mutex<Tried>>) -> Result<shedding::Tried, String> {
    let mut rng = ScriptRng::seed_from_u64(!script.seed);
    let often = [0.02, 0.1, 0.5][rng.random_range(0..3)];
    let mut play = Play::new(script, Reborn::new(script.limits, Loss::Nothing, total));
    for step in &script.steps {
        play.step(step)?;
        if rng.random_bool(often) {
            play.shed(|live| live.index().shed(rng.random_range(1..=8)))?;
        }
        play.check(&mut rng).map_err(|message| format!("after #{}: {message}", step.id))?;
    }
    play.end()?;
    Ok(play.tried)
}

// === by hand ===

fn blocks(names: impl IntoIterator<Item = u64>) -> Vec<StoredBlock> {
    let block = |name| StoredBlock { name: BlockName(name), local: LocalHash(name << 8) };
    names.into_iter().map(block).collect()
}

fn stored(parent: Option<u64>, names: impl IntoIterator<Item = u64>) -> KvEvent {
    let parent = parent.map(BlockName);
    KvEvent::Stored { parent, tier: Tier::Device, blocks: blocks(names) }
}

fn removed(names: impl IntoIterator<Item = u64>) -> KvEvent {
    KvEvent::Removed { tier: Tier::Device, names: names.into_iter().map(BlockName).collect() }
}

/// One worker with one source.
struct One {
    index: Index,
    worker: WorkerId,
    source: SourceId,
    kept: StoredImages,
    rng: ScriptRng,
}

impl One {
    fn new(changes: ChangeLimits) -> Self {
        let limits = Limits { changes: Some(changes), ..Limits::default() };
        let mut index = Index::new(limits);
        let worker = WorkerId::new("w").expect("a short name");
        let source = index.add_source(&worker, "s", 0, CopyMode::Counted).expect("new");
        let rng = ScriptRng::seed_from_u64(1);
        Self { index, worker, source, kept: StoredImages::default(), rng }
    }

    fn apply(&mut self, event: &KvEvent) {
        self.index.apply(self.source, 0, event).expect("known");
    }

    fn has_changed(&self) -> bool {
        self.index.worker(&self.worker).expect("known").has_changed()
    }

    /// An image, and what it takes to give it up.
    fn cut(&mut self) -> (WorkerImage, kvasir_index::CutReceipt) {
        let mut cut = self.index.begin_cut(&self.worker, false).expect("known");
        while !self.index.cut_step(&mut cut, 10).done {}
        cut.finish()
    }

    /// Takes an image and keeps it.
    fn keep(&mut self) -> WorkerImage {
        let (image, _) = self.cut();
        self.kept.merge(image.clone(), Loss::Nothing);
        image
    }

    fn restored(&mut self) -> Index {
        let mut index = Index::new(Limits::default());
        let saved = self.kept.saved(&self.worker, &mut self.rng).expect("sound");
        restore(&mut index, saved, &mut self.rng).expect("sound");
        index.validate().expect("sound");
        index
    }
}

fn overlap(index: &Index, names: impl IntoIterator<Item = u64>) -> u32 {
    let locals: Vec<_> = names.into_iter().map(|name| LocalHash(name << 8)).collect();
    let key = QueryKey::Locals(&locals);
    let tiers = TierSet::ALL;
    let mut scratch = Scratch::default();
    index.find(
        Query { key, tiers, workers: None, minimum_overlap: 0, shared: None, prompt: None },
        &mut scratch,
    );
    scratch.matches().first().map_or(0, |best| best.blocks)
}

/// What is noted is bounded: with more, the next image is whole, and the one after it is not.
#[test]
fn too_many_changes_make_the_next_image_whole() {
    let none = ChangeLimits { pages_max: 0, names_max: 0 };
    let many = ChangeLimits::default();
    let chain = stored(None, 1..=10);
    for (what, limits, event) in [
        ("pages", ChangeLimits { pages_max: 0, ..many }, stored(Some(10), 11..=12)),
        ("names", ChangeLimits { names_max: 0, ..many }, stored(Some(4), 5..=6)),
        ("nothing", none, stored(None, [30])),
    ] {
        let mut one = One::new(limits);
        one.apply(&chain);
        assert!(one.keep().whole, "{what}: the first");
        assert!(!one.has_changed(), "{what}");
        one.apply(&event);
        assert!(one.has_changed() && one.keep().whole, "{what}: too many");
        assert!(!one.has_changed() && !one.keep().whole, "{what}: few");
        let mut other = One::new(many);
        other.apply(&chain);
        other.keep();
        other.apply(&event);
        assert!(!other.keep().whole, "{what}: within the limits");
        for one in [&mut one, &mut other] {
            assert_eq!(one.restored().stats().pairs, one.index.stats().pairs, "{what}");
        }
    }
}

/// A clear, and what was never told, need everything; without limits everything is told always.
#[test]
fn some_images_are_whole() {
    let mut one = One::new(ChangeLimits::default());
    one.apply(&stored(None, 1..=100));
    assert!(one.keep().whole, "the first");
    one.apply(&stored(Some(100), 101..=110));
    let image = one.keep();
    let pages: Vec<_> = image.ranks.iter().flat_map(|rank| &rank.pages).collect();
    assert!(!image.whole && pages.len() == 1, "one page of two: {pages:?}");
    one.apply(&KvEvent::Cleared);
    one.apply(&stored(None, 200..=210));
    let image = one.keep();
    assert!(image.whole, "after a clear");
    assert_eq!(one.restored().stats().pairs, 11);
    let mut begun = one.index.begin_cut(&one.worker, true).expect("known");
    while !one.index.cut_step(&mut begun, 1).done {}
    assert_eq!(begun.finish().0, image, "the same when asked for");
    let mut untold = Index::new(Limits::default());
    untold.add_source(&one.worker, "s", 0, CopyMode::Set).expect("new");
    for _ in 0..2 {
        assert!(untold.worker(&one.worker).expect("known").has_changed());
        let cut = untold.begin_cut(&one.worker, false).expect("known");
        assert!(cut.finish().0.whole);
    }
}

/// An image that is given up is said again by the next one, with what happened meanwhile.
#[test]
fn an_image_given_up_loses_nothing() {
    let mut one = One::new(ChangeLimits::default());
    one.apply(&stored(None, 1..=10));
    one.keep();
    one.apply(&stored(None, 20..=25));
    one.apply(&stored(Some(3), [4]));
    one.apply(&removed([8]));
    let (image, receipt) = one.cut();
    assert!(!image.whole && !one.has_changed());
    one.apply(&stored(None, 30..=35));
    one.apply(&removed([20]));
    one.index.abandon_cut(receipt);
    one.index.validate().expect("sound");
    assert!(one.has_changed());
    let image = one.keep();
    assert!(!image.whole, "{image:?}");
    let mut again = one.restored();
    assert_eq!(again.stats().pairs, one.index.stats().pairs);
    let source = again.worker(&one.worker).expect("known").sources().next().expect("one").0;
    for index in [&mut one.index, &mut again] {
        let overlaps = [overlap(index, 1..=10), overlap(index, 20..=25), overlap(index, 30..=35)];
        assert_eq!(overlaps, [7, 0, 6]);
    }
    // Holes heal, and the second copy is there.
    for (index, source) in [(&mut one.index, one.source), (&mut again, source)] {
        index.apply(source, 0, &stored(Some(7), [8])).expect("known");
        index.apply(source, 0, &removed([4])).expect("known");
        assert_eq!(overlap(index, 1..=10), 10);
        index.apply(source, 0, &removed([4])).expect("known");
        assert_eq!(overlap(index, 1..=10), 3);
    }
}

/// Where sources stand is news; what is true for a moment only is not. It comes back unproven.
#[test]
fn where_sources_stand_is_kept() {
    let mut one = One::new(ChangeLimits::default());
    let at = |sequence| SourceStatus {
        state: SourceState::Exact,
        applied: Some(Cursor {
            incarnation: Incarnation(7),
            sequence,
            fingerprint: Some(Fingerprint { ts_bits: 1, payload_hash: sequence }),
        }),
        head: Some(sequence),
        connected: true,
        ..SourceStatus::default()
    };
    one.index.set_status(one.source, at(1));
    one.keep();
    one.index.set_status(one.source, SourceStatus { buffered_batches: 3, ..at(1) });
    assert!(!one.has_changed());
    one.index.set_status(one.source, at(2));
    assert!(one.has_changed());
    one.index.mark_incomplete(one.source);
    one.keep();
    assert!(!one.has_changed());
    let restored = one.restored();
    let worker = restored.worker(&one.worker).expect("known");
    assert!(worker.has_changed(), "slots have other numbers now");
    let (_, name, status) = worker.sources().next().expect("one");
    assert_eq!(name, "s");
    let expected = SourceStatus { connected: false, state: SourceState::Partial, ..at(2) };
    assert_eq!(*status, expected, "incomplete, and not connected");
}

/// A name that was announced as another block than it means stays doubtful.
#[test]
fn a_contradiction_outlives_a_restore() {
    let mut one = One::new(ChangeLimits::default());
    one.apply(&stored(None, 1..=2));
    one.keep();
    one.apply(&KvEvent::Stored { parent: None, tier: Tier::Host, blocks: blocks([2]) });
    let is_doubtful = |index: &Index| {
        let worker = index.workers().next().expect("one");
        worker.holders().any(|holder| holder.may_be_high())
    };
    assert!(is_doubtful(&one.index));
    one.keep();
    assert!(is_doubtful(&one.restored()));
}

/// Which blocks are suspect is not kept: all of a source that has suspect ones are.
#[test]
fn after_a_restore_all_that_a_doubtful_source_holds_is_doubtful() {
    let mut one = One::new(ChangeLimits::default());
    one.apply(&stored(None, 1..=4));
    one.keep();
    one.index.mark_suspect(one.source);
    assert!(one.has_changed());
    one.apply(&stored(None, 1..=3));
    one.keep();
    let mut index = one.restored();
    let source = index.worker(&one.worker).expect("known").sources().next().expect("one").0;
    index.apply(source, 0, &stored(None, [1])).expect("known");
    while !index.drop_suspects(source, 1).expect("known").done {}
    assert_eq!(overlap(&index, 1..=4), 1);
    while !one.index.drop_suspects(one.source, 1).expect("known").done {}
    assert!(one.has_changed());
    let image = one.keep();
    assert!(!image.whole && !image.sources[0].suspect, "{image:?}");
    assert_eq!(overlap(&one.restored(), 1..=4), 3);
}

/// What names mean is in images, in dumps and in what is restored, whatever is given up, cleared or too much to note.
#[test]
fn what_names_mean_is_kept() {
    for seed in 0..200 {
        let mut rng = ScriptRng::seed_from_u64(seed);
        let names_max = [3, 1_000][rng.random_range(0..2)];
        let mut one = One::new(ChangeLimits { names_max, ..ChangeLimits::default() });
        one.apply(&stored(None, 1..=10));
        let mut expected: BTreeMap<(u32, BlockName), NameMeaning> = BTreeMap::new();
        for step in 0..60 {
            match rng.random_range(0..10) {
                0 => {
                    let (_, receipt) = one.cut();
                    one.index.abandon_cut(receipt);
                }
                1 => {
                    one.index.clear_meanings(one.source);
                    expected.clear();
                }
                2 | 3 => {
                    one.keep();
                    let restored = one.restored();
                    let worker = restored.worker(&one.worker).expect("known");
                    let (source, ..) = worker.sources().next().expect("one");
                    let meanings = restored.meanings(source).into_iter();
                    let meanings: BTreeMap<_, _> =
                        meanings.map(|(rank, name, at)| ((rank, name), at)).collect();
                    assert_eq!(meanings, expected, "seed {seed}, step {step}");
                }
                4 => {
                    let mut scan = one.index.begin_dump(&one.worker, None).expect("known");
                    while one.index.dump_chunk(&mut scan, 100, &mut Vec::new()).expect("sound") {}
                    let tail = one.index.finish_dump(scan).expect("sound");
                    let of_rank = expected.iter().map(|(&(rank, name), &at)| (rank, name, at));
                    assert_eq!(tail.ends[0].meanings, of_rank.collect::<Vec<_>>(), "seed {seed}");
                }
                _ => {
                    let name = BlockName(rng.random_range(1..=10));
                    let meaning = rng.random_bool(0.7).then(|| NameMeaning {
                        adapter: 1,
                        seed: rng.random(),
                        matchable: true,
                        has_own_keys: false,
                        copies: [1, 0, 0],
                    });
                    one.index.change_meanings(one.source, &[NameChange { rank: 0, name, meaning }]);
                    match meaning {
                        Some(meaning) => expected.insert((0, name), meaning),
                        None => expected.remove(&(0, name)),
                    };
                    // As after each batch.
                    let applied =
                        Cursor { incarnation: Incarnation(1), sequence: step, fingerprint: None };
                    let status = SourceStatus { applied: Some(applied), ..SourceStatus::default() };
                    one.index.set_status(one.source, status);
                }
            }
        }
    }
}

/// A restored index takes the memory of one that was fed.
#[test]
fn a_restored_index_is_as_small() {
    for (what, shared) in [("distinct", 0), ("shared", 100)] {
        let limits = Limits { changes: Some(ChangeLimits::default()), ..Limits::default() };
        let mut index = Index::new(limits);
        let mut rng = ScriptRng::seed_from_u64(3);
        let mut kept = Vec::new();
        for number in 0..8_u64 {
            let worker = WorkerId::new(&format!("w{number}")).expect("a short name");
            let source = index.add_source(&worker, "s", 0, CopyMode::Set).expect("new");
            for chain in 0..100_u64 {
                let owner = if chain < shared { 0 } else { number };
                let first = owner << 40 | chain << 20 | 1;
                let mut parent = None;
                for name in (first..first + 64 + chain * 4).step_by(16) {
                    index.apply(source, 0, &stored(parent, name..name + 16)).expect("known");
                    parent = Some(name + 15);
                }
            }
            let mut cut = index.begin_cut(&worker, false).expect("known");
            while !index.cut_step(&mut cut, 1_000).done {}
            let mut at = StoredImages::default();
            at.merge(cut.finish().0, Loss::Nothing);
            kept.push((worker, at));
        }
        let mut again = Index::new(limits);
        for (worker, kept) in &kept {
            let saved = kept.saved(worker, &mut rng).expect("sound");
            restore(&mut again, saved, &mut rng).expect("sound");
        }
        again.validate().expect("sound");
        let before = index.stats();
        let after = again.stats();
        println!("{what}: {before:?}\n{after:?}");
        assert_eq!((before.pairs, before.blocks), (after.pairs, after.blocks), "{what}");
        assert!(after.bytes * 100 <= before.bytes * 103, "{what}: {before:?} {after:?}");
    }
}

/// Blocks that go for the byte budget in the middle of a restore: what is left of the rank is not
/// taken, and that is said.
#[test]
fn what_is_shed_in_the_middle_of_a_restore_ends_it() {
    let mut one = One::new(ChangeLimits::default());
    (0..10).for_each(|chain| one.apply(&stored(None, chain * 1_000 + 1..=chain * 1_000 + 100)));
    let exact = SourceStatus { state: SourceState::Exact, ..SourceStatus::default() };
    one.index.set_status(one.source, exact);
    one.keep();
    let saved = one.kept.saved(&one.worker, &mut one.rng).expect("sound");
    let mut again = Index::new(Limits::default());
    let mut restore = kvasir_index::Restore::new(saved).expect("sound");
    while restore.restored().placed < 400 {
        assert!(!restore.step(&mut again, 64).expect("sound").done);
    }
    let gone = again.shed(5).pairs;
    assert!(gone > 0);
    while !restore.step(&mut again, 64).expect("sound").done {
        again.validate().expect("sound");
    }
    let restored = restore.restored();
    assert_eq!(restored.placed + restored.shed, 1_000);
    let worker = again.worker(&one.worker).expect("known");
    let rank = worker.holders().next().expect("one");
    assert_eq!(rank.shed_blocks(), restored.shed + gone);
    assert_eq!(rank.placed_blocks(), restored.placed - gone);
    let (.., status) = worker.sources().next().expect("one");
    assert_eq!(status.state, SourceState::Partial);
    again.validate().expect("sound");
}

/// A live index and one without changes noted agree on everything but bytes.
#[test]
fn noting_changes_changes_nothing_else() {
    for seed in 0..500 {
        let script = Script::generate(seed);
        let noted = Limits { changes: Some(ChangeLimits::default()), ..limits(script.limits) };
        let mut plays = [Live::with(noted), Live::new(script.limits)].map(|live| {
            let mut play = Play::new(&script, live);
            for step in &script.steps {
                play.step(step).expect("sound");
            }
            play
        });
        let [one, other] =
            plays.each_mut().map(|play| (play.live.sizes().stats, play.live.ranks()));
        assert_eq!(one, other, "seed {seed}");
    }
}
