//! Tests placements against a reference: one map of paths per rank, with every block stored separately.

use super::*;
use crate::table::mix;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

fn worker(number: u64, rank: u32) -> WorkerKey {
    WorkerKey { worker: WorkerId::new(&format!("w{number}")).expect("a valid id"), rank }
}

fn locals(numbers: &[u64]) -> Vec<LocalHash> {
    numbers.iter().copied().map(LocalHash).collect()
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn record(
    placements: &mut Placements,
    worker: WorkerKey,
    prompt: &[u64],
    now: u64,
    ttl: u64,
) -> Recorded {
    let mut recording = placements.begin(worker, seconds(now), seconds(ttl));
    placements.record(&mut recording, &locals(prompt)).expect("nothing in between")
}

fn find(placements: &Placements, prompt: &[u64], now: u64) -> Vec<(String, u32)> {
    let mut scratch = PlacedScratch::default();
    placements.find(&locals(prompt), seconds(now), &mut scratch);
    let mut found: Vec<_> =
        scratch.matches().iter().map(|at| (at.worker.to_string(), at.blocks)).collect();
    found.sort();
    found
}

fn expected(found: &[(&str, u32)]) -> Vec<(String, u32)> {
    found.iter().map(|&(worker, blocks)| (worker.to_owned(), blocks)).collect()
}

#[test]
fn a_block_counts_until_its_last_placement_ends() {
    let mut placements = Placements::default();
    record(&mut placements, worker(1, 0), &[1, 2, 3], 0, 10);
    let second = record(&mut placements, worker(1, 0), &[1, 2, 4], 5, 10);
    assert_eq!(second, Recorded { added: 1, refreshed: 2 });
    record(&mut placements, worker(2, 7), &[1], 5, 1);
    assert_eq!(find(&placements, &[1, 2, 3], 5), expected(&[("w1#0", 3), ("w2#7", 1)]));
    assert_eq!(find(&placements, &[1, 2, 3], 9), expected(&[("w1#0", 3)]));
    // Expired at exactly 10 s, whether dropped or not.
    assert_eq!(find(&placements, &[1, 2, 3], 10), expected(&[("w1#0", 2)]));
    assert_eq!(placements.expire(seconds(10), 100), Dropped { blocks: 2, done: true });
    assert_eq!(find(&placements, &[1, 2, 4], 14), expected(&[("w1#0", 3)]));
    assert_eq!(placements.first_end(), Some(seconds(15)));
    placements.expire(seconds(15), 100);
    assert_eq!((placements.blocks(), placements.bytes()), (0, 0));
}

#[test]
fn a_shorter_time_to_live_shortens_nothing() {
    let mut placements = Placements::default();
    record(&mut placements, worker(1, 0), &[1, 2], 0, 100);
    record(&mut placements, worker(1, 0), &[1, 2, 3], 0, 10);
    assert_eq!(find(&placements, &[1, 2, 3], 50), expected(&[("w1#0", 2)]));
    placements.validate().expect("sound");
}

#[test]
fn a_new_worker_of_the_same_name_inherits_nothing() {
    let mut placements = Placements::default();
    record(&mut placements, worker(1, 0), &[1, 2, 3, 4], 0, 10);
    record(&mut placements, worker(1, 0), &[1, 2, 5], 0, 10);
    placements.remove_worker(&worker(1, 0).worker);
    assert_eq!(find(&placements, &[1, 2, 3, 4], 0), []);
    record(&mut placements, worker(1, 0), &[1], 0, 10);
    assert_eq!(find(&placements, &[1, 2, 3, 4], 0), expected(&[("w1#0", 1)]));
    let mut steps = 1;
    while !placements.sweep(1).done {
        placements.validate().expect("sound in mid-sweep");
        assert_eq!(find(&placements, &[1, 2, 3, 4], 0), expected(&[("w1#0", 1)]));
        steps += 1;
    }
    assert!(steps >= 5, "{steps} steps of one block each");
    assert_eq!(placements.blocks(), 1);
    placements.expire(seconds(10), 1);
    assert_eq!(placements.bytes(), 0);
}

#[test]
fn a_recording_whose_ground_went_is_cut() {
    let mut placements = Placements::default();
    let mut recording = placements.begin(worker(1, 0), seconds(0), seconds(10));
    placements.record(&mut recording, &locals(&[1, 2])).expect("nothing in between");
    placements.prune(1, 100);
    let cut = placements.record(&mut recording, &locals(&[3]));
    assert_eq!(cut, Err(RecordingCut));
    assert_eq!(find(&placements, &[1, 2, 3], 0), expected(&[("w1#0", 1)]));
    placements.validate().expect("sound");
}

#[test]
fn a_block_costs_some_tens_of_bytes() {
    let mut placements = Placements::default();
    for prompt in 0..256 {
        let prompt: Vec<_> = (0..256).map(|at| prompt << 32 | at).collect();
        record(&mut placements, worker(1, 0), &prompt, 0, 10);
    }
    let bytes = placements.bytes() / placements.blocks();
    assert!((40..=64).contains(&bytes), "{bytes} bytes a block");
    let alone = placements.bytes();
    for number in 2..=9 {
        for prompt in 0..256 {
            let prompt: Vec<_> = (0..256).map(|at| prompt << 32 | at).collect();
            record(&mut placements, worker(number, 0), &prompt, 0, 10);
        }
    }
    let bytes = (placements.bytes() - alone) / (8 * 256 * 256);
    assert!(bytes <= 16, "{bytes} bytes a further holder");
}

/// Blocks of one rank: for each, its end and the recording that set it.
type Blocks = BTreeMap<Vec<u64>, (u64, u64)>;

#[derive(Default)]
struct Reference {
    ranks: BTreeMap<WorkerKey, Blocks>,
    begun: u64,
}

impl Reference {
    fn blocks(&self) -> usize {
        self.ranks.values().map(BTreeMap::len).sum()
    }

    fn record(&mut self, worker: WorkerKey, prompt: &[u64], end: u64) -> Recorded {
        self.begun += 1;
        self.extend(worker, prompt, 0, (end, self.begun))
    }

    /// Records the blocks of a prompt after the first `present` ones.
    fn extend(
        &mut self,
        worker: WorkerKey,
        prompt: &[u64],
        present: usize,
        new: (u64, u64),
    ) -> Recorded {
        let mut recorded = Recorded::default();
        let blocks = self.ranks.entry(worker).or_default();
        for length in present + 1..=prompt.len() {
            match blocks.entry(prompt[..length].to_vec()) {
                Entry::Vacant(at) => {
                    at.insert(new);
                    recorded.added += 1;
                }
                Entry::Occupied(mut at) => {
                    at.insert(new.max(*at.get()));
                    recorded.refreshed += 1;
                }
            }
        }
        recorded
    }

    fn find(&self, prompt: &[u64], now: u64) -> Vec<(String, u32)> {
        let mut found = Vec::new();
        for (worker, blocks) in &self.ranks {
            let live =
                |length: &usize| blocks.get(&prompt[..*length]).is_some_and(|&(end, _)| end > now);
            let length = (1..=prompt.len()).take_while(live).count();
            if length > 0 {
                let length = u32::try_from(length).expect("short");
                found.push((worker.to_string(), length));
            }
        }
        found.sort();
        found
    }

    fn expire(&mut self, now: u64) -> usize {
        let before = self.blocks();
        for blocks in self.ranks.values_mut() {
            blocks.retain(|_, (end, _)| *end > now);
        }
        before - self.blocks()
    }

    fn prune(&mut self, target: usize) {
        let mut order = Vec::new();
        for (worker, blocks) in &self.ranks {
            for (path, &key) in blocks {
                order.push((key, usize::MAX - path.len(), worker.clone(), path.clone()));
            }
        }
        order.sort();
        let excess = order.len().saturating_sub(target);
        for (_, _, worker, path) in order.into_iter().take(excess) {
            self.ranks.get_mut(&worker).expect("there").remove(&path);
        }
    }

    fn remove(&mut self, worker: &WorkerId) {
        self.ranks.retain(|at, _| at.worker != *worker);
    }
}

/// Pseudo-random numbers of one seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0) % limit
    }

    fn size(&mut self, limit: usize) -> usize {
        usize::try_from(self.below(limit as u64)).expect("small")
    }

    /// A prompt of few different blocks, so that prompts share prefixes and repeat hashes.
    fn prompt(&mut self, kinds: u64) -> Vec<u64> {
        let length = self.size(12) + 1;
        (0..length).map(|_| self.below(kinds)).collect()
    }

    fn worker(&mut self) -> WorkerKey {
        let rank = u32::try_from(self.below(2)).expect("small");
        worker(self.below(4), rank)
    }
}

/// A recording that continues while other actions happen.
struct Open {
    recording: Recording,
    worker: WorkerKey,
    prompt: Vec<u64>,
    key: (u64, u64),
}

struct Run {
    dice: Dice,
    kinds: u64,
    now: u64,
    /// Whether model and reference have dropped the same blocks, not only given the same answers.
    level: bool,
    placements: Placements,
    reference: Reference,
    open: Option<Open>,
    /// Number of recordings that continued, and that were cut.
    outcomes: [u64; 2],
}

impl Run {
    fn step(&mut self) {
        let Self { dice, kinds, now, placements, reference, .. } = self;
        match dice.below(16) {
            0..=6 => {
                let worker = dice.worker();
                let prompt = dice.prompt(*kinds);
                let ttl = dice.below(20);
                let mut recording = placements.begin(worker.clone(), seconds(*now), seconds(ttl));
                let mut recorded = Recorded::default();
                for piece in prompt.chunks(dice.size(6) + 1) {
                    let piece = placements.record(&mut recording, &locals(piece));
                    let Recorded { added, refreshed } = piece.expect("nothing in between");
                    recorded.added += added;
                    recorded.refreshed += refreshed;
                }
                let end = *now + ttl;
                let expected = reference.record(worker, &prompt, end);
                assert_eq!(recorded.added + recorded.refreshed, prompt.len());
                if self.level {
                    assert_eq!(recorded, expected);
                }
            }
            7..=9 => *now += dice.below(4),
            10 | 11 => {
                // In slices of any size, with or without a remainder for later.
                let budget = dice.size(8) + 1;
                let mut step = placements.expire(seconds(*now), budget);
                assert!(step.blocks <= budget);
                while !step.done && dice.below(4) > 0 {
                    step = placements.expire(seconds(*now), budget);
                }
                self.level = step.done;
                if step.done {
                    reference.expire(*now);
                }
            }
            12 => {
                // The same blocks are dropped only if the same blocks exist.
                while !placements.expire(seconds(*now), 3).done {}
                reference.expire(*now);
                self.level = true;
                while !placements.sweep(3).done {}
                let target = dice.size(placements.blocks() + 1);
                reference.prune(target);
                let budget = dice.size(8) + 1;
                while !placements.prune(target, budget).done {}
                assert!(placements.blocks() <= target);
            }
            13 => {
                let WorkerKey { worker, .. } = dice.worker();
                placements.remove_worker(&worker);
                reference.remove(&worker);
            }
            14 => {
                let budget = dice.size(8) + 1;
                assert!(placements.sweep(budget).blocks <= budget);
            }
            _ => self.go_on(),
        }
        let prompt = self.dice.prompt(self.kinds);
        assert_eq!(
            find(&self.placements, &prompt, self.now),
            self.reference.find(&prompt, self.now)
        );
    }

    /// Opens a recording, or continues the open one.
    fn go_on(&mut self) {
        let Self { dice, now, placements, reference, .. } = self;
        let mut open = self.open.take().unwrap_or_else(|| {
            let worker = dice.worker();
            let ttl = dice.below(20);
            let recording = placements.begin(worker.clone(), seconds(*now), seconds(ttl));
            reference.begun += 1;
            Open { recording, worker, prompt: Vec::new(), key: (*now + ttl, reference.begun) }
        });
        let piece = dice.prompt(self.kinds);
        let recorded = placements.record(&mut open.recording, &locals(&piece));
        self.outcomes[usize::from(recorded.is_err())] += 1;
        let Ok(recorded) = recorded else { return };
        let present = open.prompt.len();
        open.prompt.extend(&piece);
        let expected = reference.extend(open.worker.clone(), &open.prompt, present, open.key);
        assert_eq!(recorded.added + recorded.refreshed, piece.len());
        if self.level {
            assert_eq!(recorded, expected);
        }
        let found = find(placements, &open.prompt, *now);
        assert_eq!(found, reference.find(&open.prompt, *now));
        self.open = Some(open).filter(|open| open.prompt.len() < 40);
    }

    fn finish(&mut self) {
        while !self.placements.sweep(7).done {}
        while !self.placements.expire(seconds(self.now), 7).done {}
        self.reference.expire(self.now);
        assert_eq!(self.placements.blocks(), self.reference.blocks());
        self.placements.validate().expect("sound");
        // While blocks exist, the shortest time to live determines when the first ends.
        let first = self.reference.ranks.values().flat_map(BTreeMap::values).map(|(end, _)| *end);
        assert_eq!(self.placements.first_end(), first.min().map(seconds));
        while !self.placements.expire(seconds(self.now + 20), 7).done {}
        assert_eq!((self.placements.blocks(), self.placements.bytes()), (0, 0));
        self.placements.validate().expect("sound when empty");
    }
}

#[test]
fn equals_the_reference_after_any_history() {
    let mut outcomes = [0; 2];
    for seed in 0..4_000 {
        let mut dice = Dice(mix(seed));
        let kinds = dice.below(4) + 1;
        let placements = Placements::default();
        let reference = Reference::default();
        let mut run = Run {
            dice,
            kinds,
            now: 0,
            level: true,
            placements,
            reference,
            open: None,
            outcomes: [0; 2],
        };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for step in 0..120 {
                run.step();
                if step % 8 == 0 {
                    run.placements.validate().expect("sound");
                }
            }
            run.finish();
        }));
        assert!(outcome.is_ok(), "seed {seed}");
        outcomes = [outcomes[0] + run.outcomes[0], outcomes[1] + run.outcomes[1]];
    }
    assert!(outcomes.iter().all(|&count| count > 1_000), "{outcomes:?}");
}

#[test]
fn tables_that_grow_and_shrink_leave_nothing() {
    let mut dice = Dice(1);
    let mut placements = Placements::default();
    for turn in 0..3_000 {
        let prompt: Vec<_> = (0..dice.below(40)).map(|_| dice.below(8)).collect();
        let number = dice.below(300);
        record(&mut placements, worker(number, 0), &prompt, turn, dice.below(2_000));
        record(&mut placements, worker(number, 1), &[turn + 10], turn, 100);
        placements.expire(seconds(turn), 64);
    }
    placements.validate().expect("sound");
    assert!(placements.blocks() > 10_000);
    while !placements.prune(5_000, 999).done {}
    placements.validate().expect("sound");
    assert_eq!(placements.blocks(), 5_000);
    while !placements.expire(seconds(6_000), 999).done {}
    assert_eq!((placements.blocks(), placements.bytes()), (0, 0));
}
