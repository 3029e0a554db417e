//! Cases worked out by hand. The oracle must give these answers, not only agree with the index.

use crate::double::{Double, Fault};
use crate::live::Live;
use crate::subject::Subject;
use kvasir_proto::types::{
    BlockCounts, BlockName, CopyMode, DpRank, KvEvent, LocalHash, StoredBlock, Tier, TierSet,
    WorkerId,
};
use kvasir_tests::oracle::{Question, QuestionKey};
use kvasir_tests::script::{ScriptLimits, SourceSpec};

const LIMITS: ScriptLimits =
    ScriptLimits { chain_blocks_max: 100, rank_parked_max: 100, dirty_names_max: 100 };
const DEVICE: TierSet = TierSet::EMPTY.with(Tier::Device);
const HOST: TierSet = TierSet::EMPTY.with(Tier::Host);

/// What an event is to come to: how many block operations end how.
#[derive(Clone, Copy, Default)]
struct Comes {
    applied: u64,
    noop: u64,
    rejected: u64,
    conflict: u64,
}

const fn applied(applied: u64) -> Comes {
    Comes { applied, noop: 0, rejected: 0, conflict: 0 }
}

const fn noop(noop: u64) -> Comes {
    Comes { applied: 0, noop, rejected: 0, conflict: 0 }
}

/// One index and the sources added to it.
struct Stage<S: Subject> {
    subject: S,
    sources: Vec<S::Source>,
}

/// A stage whose index does not matter.
trait Index {
    /// Source `source`: `event` for rank `rank`.
    fn tell(&mut self, source: usize, rank: DpRank, event: KvEvent, comes: Comes);
    fn clear(&mut self, source: usize);
    fn mark_suspect(&mut self, source: usize);
    fn drop_suspects(&mut self, source: usize);
    fn parked(&self) -> u64;
    fn answer(&mut self, key: QuestionKey, tiers: TierSet) -> Vec<(String, DpRank, u32, [u32; 3])>;
}

impl<S: Subject> Index for Stage<S> {
    fn tell(&mut self, source: usize, rank: DpRank, event: KvEvent, comes: Comes) {
        let counts = self.subject.apply(self.sources[source], rank, &event).expect("known");
        let Comes { applied, noop, rejected, conflict } = comes;
        let expected = BlockCounts { applied, noop, rejected, conflict, shed: 0 };
        assert_eq!(counts, expected, "{event:?}");
        self.subject.validate().expect("sound");
    }

    fn clear(&mut self, source: usize) {
        while !self.subject.clear(self.sources[source], None, 1).expect("known").done {}
    }

    fn mark_suspect(&mut self, source: usize) {
        self.subject.mark_suspect(self.sources[source]);
    }

    fn drop_suspects(&mut self, source: usize) {
        while !self.subject.drop_suspects(self.sources[source], 1).expect("known").done {}
    }

    fn parked(&self) -> u64 {
        self.subject.sizes().stats.parked
    }

    fn answer(&mut self, key: QuestionKey, tiers: TierSet) -> Vec<(String, DpRank, u32, [u32; 3])> {
        let question = Question { key, tiers, workers: None, minimum_overlap: 1, shared: false };
        let found = self.subject.find(&question).expect("sound");
        let lines = found.into_iter();
        lines.map(|at| (at.worker.to_string(), at.rank, at.blocks, at.by_tier)).collect()
    }
}

fn stage<S: Subject>(mut subject: S, sources: &[(&str, CopyMode)]) -> Stage<S> {
    let mut added = Vec::new();
    for (number, &(worker, copy_mode)) in sources.iter().enumerate() {
        let worker = WorkerId::new(worker).expect("a short name");
        let spec = SourceSpec { worker, name: format!("s{number}"), rank: 0, copy_mode };
        added.push(subject.add_source(&spec).expect("new"));
    }
    Stage { subject, sources: added }
}

/// Plays a case on the oracle and on the index.
fn on_both(limits: ScriptLimits, sources: &[(&str, CopyMode)], case: impl Fn(&mut dyn Index)) {
    case(&mut stage(Double::new(limits, Fault::None), sources));
    case(&mut stage(Live::new(limits), sources));
}

/// Blocks in device memory; parent 0 is the root.
fn stored(parent: u64, blocks: &[(u64, u64)]) -> KvEvent {
    stored_in(Tier::Device, parent, blocks)
}

fn stored_in(tier: Tier, parent: u64, blocks: &[(u64, u64)]) -> KvEvent {
    let parent = (parent > 0).then_some(BlockName(parent));
    let block = |&(name, local)| StoredBlock { name: BlockName(name), local: LocalHash(local) };
    KvEvent::Stored { parent, tier, blocks: blocks.iter().map(block).collect() }
}

fn names(tier: Tier, names: &[u64]) -> KvEvent {
    KvEvent::StoredNames { tier, names: names.iter().map(|&name| BlockName(name)).collect() }
}

fn removed(names: &[u64]) -> KvEvent {
    let names = names.iter().map(|&name| BlockName(name)).collect();
    KvEvent::Removed { tier: Tier::Device, names }
}

/// (worker, blocks) of every rank that has the first block, best first.
fn locals(index: &mut dyn Index, locals: &[u64]) -> Vec<(String, u32)> {
    let key = QuestionKey::Locals(locals.iter().map(|&local| LocalHash(local)).collect());
    let lines = index.answer(key, TierSet::ALL).into_iter();
    lines.map(|(worker, _, blocks, _)| (worker, blocks)).collect()
}

fn by_names(index: &mut dyn Index, names: &[u64]) -> Vec<(String, u32)> {
    let key = QuestionKey::Names(names.iter().map(|&name| BlockName(name)).collect());
    let lines = index.answer(key, TierSet::ALL).into_iter();
    lines.map(|(worker, _, blocks, _)| (worker, blocks)).collect()
}

fn expect(answer: Vec<(String, u32)>, expected: &[(&str, u32)]) {
    let answer: Vec<_> = answer.iter().map(|(worker, blocks)| (worker.as_str(), *blocks)).collect();
    assert_eq!(answer, expected);
}

const A_AND_B: [(&str, CopyMode); 2] = [("a", CopyMode::Set), ("b", CopyMode::Set)];
const A: [(&str, CopyMode); 1] = [("a", CopyMode::Set)];
const COUNTED: [(&str, CopyMode); 1] = [("a", CopyMode::Counted)];

#[test]
fn one_name_is_two_things_on_two_workers() {
    on_both(LIMITS, &A_AND_B, |index| {
        index.tell(0, 0, stored(0, &[(5, 10)]), applied(1));
        index.tell(1, 0, stored(0, &[(5, 20)]), applied(1));
        index.tell(1, 0, stored(5, &[(6, 21)]), applied(1));
        expect(locals(index, &[10, 21]), &[("a", 1)]);
        expect(locals(index, &[20, 21]), &[("b", 2)]);
        expect(by_names(index, &[5, 6]), &[("b", 2), ("a", 1)]);
        index.tell(0, 0, removed(&[5]), applied(1));
        expect(locals(index, &[10]), &[]);
        expect(locals(index, &[20]), &[("b", 1)]);
    });
}

#[test]
fn a_name_of_another_workers_block_says_nothing() {
    on_both(LIMITS, &A_AND_B, |index| {
        index.tell(0, 0, stored(0, &[(7, 70)]), applied(1));
        index.tell(1, 0, removed(&[7]), noop(1));
        index.tell(1, 0, stored(7, &[(8, 80)]), applied(1));
        index.tell(1, 0, names(Tier::Device, &[7]), applied(1));
        assert_eq!(index.parked(), 2);
        expect(locals(index, &[70, 80]), &[("a", 1)]);
        expect(by_names(index, &[7]), &[("a", 1)]);
    });
}

#[test]
fn a_position_is_held_while_any_name_for_it_is() {
    on_both(LIMITS, &A, |index| {
        index.tell(0, 0, stored(0, &[(1, 10), (2, 20)]), applied(2));
        index.tell(0, 0, stored(0, &[(3, 10)]), applied(1));
        index.tell(0, 0, removed(&[1]), applied(1));
        expect(locals(index, &[10, 20]), &[("a", 2)]);
        expect(by_names(index, &[1, 2]), &[]);
        expect(by_names(index, &[3, 2]), &[("a", 2)]);
        index.tell(0, 0, removed(&[3]), applied(1));
        expect(locals(index, &[10, 20]), &[]);
    });
}

/// A hash covers its prefix: a store that gives a held name other content is a copy of the block that is held.
#[test]
fn what_a_held_name_means_stays() {
    on_both(LIMITS, &A, |index| {
        index.tell(0, 0, stored(0, &[(1, 10), (2, 20), (3, 30)]), applied(3));
        let contradiction = Comes { applied: 1, conflict: 1, ..Comes::default() };
        index.tell(0, 0, stored(0, &[(2, 99), (5, 50)]), contradiction);
        expect(locals(index, &[10, 20, 30]), &[("a", 3)]);
        expect(locals(index, &[99]), &[]);
        // What follows the name stands behind the block that it means.
        expect(locals(index, &[10, 20, 50]), &[("a", 3)]);
    });
}

#[test]
fn a_hole_heals() {
    on_both(LIMITS, &A, |index| {
        index.tell(0, 0, stored(0, &[(1, 10), (2, 20), (3, 30)]), applied(3));
        index.tell(0, 0, removed(&[1]), applied(1));
        expect(locals(index, &[10, 20, 30]), &[]);
        assert_eq!(index.parked(), 0);
        index.tell(0, 0, stored(0, &[(1, 10)]), applied(1));
        expect(locals(index, &[10, 20, 30]), &[("a", 3)]);
    });
}

#[test]
fn a_parked_chain_is_placed_when_its_parent_comes() {
    on_both(LIMITS, &A, |index| {
        index.tell(0, 0, stored(3, &[(4, 40), (5, 50)]), applied(2));
        index.tell(0, 0, stored(2, &[(3, 30)]), applied(1));
        assert_eq!(index.parked(), 3);
        expect(locals(index, &[40, 50]), &[]);
        index.tell(0, 0, stored(0, &[(1, 10), (2, 20)]), applied(2));
        assert_eq!(index.parked(), 0);
        expect(locals(index, &[10, 20, 30, 40, 50]), &[("a", 5)]);
    });
}

#[test]
fn a_store_behind_a_lost_parent_goes_on_from_what_is_placed() {
    on_both(LIMITS, &A, |index| {
        index.tell(0, 0, stored(0, &[(1, 10), (2, 20)]), applied(2));
        index.tell(0, 0, removed(&[1]), applied(1));
        let again = Comes { applied: 1, noop: 1, ..Comes::default() };
        index.tell(0, 0, stored(1, &[(2, 20), (3, 30)]), again);
        assert_eq!(index.parked(), 0);
        index.tell(0, 0, stored(0, &[(1, 10)]), applied(1));
        expect(locals(index, &[10, 20, 30]), &[("a", 3)]);
    });
}

#[test]
fn names_without_tokens_are_held_and_get_their_tokens_later() {
    on_both(LIMITS, &A, |index| {
        index.tell(0, 0, names(Tier::Host, &[1]), applied(1));
        assert_eq!(index.parked(), 1);
        index.tell(0, 0, stored_in(Tier::Host, 0, &[(1, 10)]), applied(1));
        assert_eq!(index.parked(), 0);
        expect(locals(index, &[10]), &[("a", 1)]);
    });
}

#[test]
fn tiers_are_counted_apart() {
    on_both(LIMITS, &A, |index| {
        index.tell(0, 0, stored(0, &[(1, 10), (2, 20), (3, 30)]), applied(3));
        index.tell(0, 0, names(Tier::Host, &[2, 3]), applied(2));
        index.tell(0, 0, removed(&[3]), applied(1));
        let query = || QuestionKey::Locals([10, 20, 30].map(LocalHash).to_vec());
        let line = |blocks, by_tier| vec![("a".to_owned(), 0, blocks, by_tier)];
        assert_eq!(index.answer(query(), TierSet::ALL), line(3, [2, 2, 0]));
        assert_eq!(index.answer(query(), DEVICE), line(2, [2, 0, 0]));
        assert_eq!(index.answer(query(), HOST), []);
        assert_eq!(index.answer(query(), TierSet::EMPTY), []);
    });
}

#[test]
fn counted_copies_go_one_by_one_and_set_copies_at_once() {
    on_both(LIMITS, &COUNTED, |index| {
        index.tell(0, 0, stored(0, &[(1, 10)]), applied(1));
        index.tell(0, 0, stored(0, &[(1, 10)]), applied(1));
        index.tell(0, 0, removed(&[1]), applied(1));
        expect(locals(index, &[10]), &[("a", 1)]);
        index.tell(0, 0, removed(&[1, 1]), Comes { applied: 1, noop: 1, ..Comes::default() });
        expect(locals(index, &[10]), &[]);
    });
    on_both(LIMITS, &A, |index| {
        index.tell(0, 0, stored(0, &[(1, 10)]), applied(1));
        index.tell(0, 0, stored(0, &[(1, 10)]), noop(1));
        index.tell(0, 0, removed(&[1]), applied(1));
        expect(locals(index, &[10]), &[]);
    });
}

#[test]
fn a_clear_takes_the_copies_of_one_source() {
    let two = [("a", CopyMode::Set), ("a", CopyMode::Counted)];
    on_both(LIMITS, &two, |index| {
        index.tell(0, 0, stored(0, &[(1, 10), (2, 20)]), applied(2));
        index.tell(1, 0, stored(0, &[(1, 10)]), applied(1));
        index.clear(0);
        expect(locals(index, &[10, 20]), &[("a", 1)]);
        index.tell(1, 0, KvEvent::Cleared, applied(1));
        index.tell(1, 0, KvEvent::Cleared, noop(1));
        expect(locals(index, &[10, 20]), &[]);
    });
}

#[test]
fn ranks_are_holders_of_their_own() {
    on_both(LIMITS, &A, |index| {
        index.tell(0, 0, stored(0, &[(1, 10)]), applied(1));
        index.tell(0, 3, stored(0, &[(1, 10), (2, 20)]), applied(2));
        index.tell(0, 0, KvEvent::Cleared, applied(1));
        let key = QuestionKey::Locals(vec![LocalHash(10), LocalHash(20)]);
        assert_eq!(index.answer(key, TierSet::ALL), [("a".to_owned(), 3, 2, [2, 0, 0])]);
    });
}

#[test]
fn a_doubtful_block_stays_if_it_is_announced_again() {
    on_both(LIMITS, &COUNTED, |index| {
        index.tell(0, 0, stored(0, &[(1, 10), (2, 20)]), applied(2));
        index.tell(0, 0, stored(0, &[(1, 10)]), applied(1));
        index.mark_suspect(0);
        // One copy from now on, whatever was counted before.
        index.tell(0, 0, stored(0, &[(1, 10)]), applied(1));
        index.drop_suspects(0);
        expect(locals(index, &[10, 20]), &[("a", 1)]);
        index.tell(0, 0, removed(&[1, 2]), Comes { applied: 1, noop: 1, ..Comes::default() });
        expect(locals(index, &[10]), &[]);
    });
}

#[test]
fn chains_and_parked_names_are_bounded() {
    let limits = ScriptLimits { chain_blocks_max: 2, rank_parked_max: 1, dirty_names_max: 100 };
    on_both(limits, &A, |index| {
        let too_long = Comes { applied: 2, rejected: 2, ..Comes::default() };
        index.tell(0, 0, stored(0, &[(1, 10), (2, 20), (3, 30), (4, 40)]), too_long);
        let too_many = Comes { applied: 1, rejected: 1, ..Comes::default() };
        index.tell(0, 0, stored(8, &[(9, 90), (10, 100)]), too_many);
        assert_eq!(index.parked(), 1);
        // A parked name that would come to stand too deep stays parked.
        index.tell(0, 0, stored(1, &[(8, 80)]), applied(1));
        assert_eq!(index.parked(), 1);
        expect(locals(index, &[10, 80, 90]), &[("a", 2)]);
    });
}

#[test]
fn a_doubtful_block_that_another_source_announces_meanwhile_is_still_met() {
    let two = [("a", CopyMode::Set), ("a", CopyMode::Set)];
    let mut stage = stage(Live::new(LIMITS), &two);
    stage.tell(0, 0, stored(0, &[(1, 10), (2, 20), (3, 30)]), applied(3));
    stage.tell(1, 0, stored(0, &[(9, 70)]), applied(1));
    stage.mark_suspect(0);
    let one = stage.sources[0];
    let other = stage.sources[1];
    assert!(!stage.subject.drop_suspects(one, 1).expect("known").done);
    stage.subject.apply(other, 0, &names(Tier::Device, &[3])).expect("known");
    while !stage.subject.drop_suspects(one, 1).expect("known").done {}
    stage.subject.remove_source(one).expect("nothing is left of it");
}
