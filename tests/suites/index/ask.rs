//! Random questions about what an oracle holds.

use kvasir_proto::types::{BlockName, LocalHash, Tier, TierSet, WorkerId};
use kvasir_tests::oracle::{Oracle, Question, QuestionKey, Record};
use kvasir_tests::script::ScriptRng;
use rand::Rng;
use rand::seq::IteratorRandom;

/// Questions asked after each step.
const QUESTIONS: usize = 3;

/// Questions whose blocks follow what is held, with and without mistakes.
pub fn questions(oracle: &Oracle, rng: &mut ScriptRng) -> Vec<Question> {
    (0..QUESTIONS).map(|_| question(oracle, rng)).collect()
}

fn question(oracle: &Oracle, rng: &mut ScriptRng) -> Question {
    let by_names = rng.random_bool(0.3);
    let key = if by_names {
        QuestionKey::Names(names(oracle, rng))
    } else {
        QuestionKey::Locals(locals(oracle, rng))
    };
    let length = match &key {
        QuestionKey::Locals(locals) => locals.len(),
        QuestionKey::Names(names) => names.len(),
    };
    let tiers = match rng.random_range(0..6) {
        0..=2 => TierSet::ALL,
        3 => TierSet::EMPTY.with(Tier::Device),
        _ => Tier::ALL.into_iter().filter(|_| rng.random_bool(0.5)).collect(),
    };
    let minimum_overlap = match rng.random_range(0..4) {
        0 => 0,
        1 | 2 => 1,
        _ => rng.random_range(0..=length as u32 + 1),
    };
    let workers = rng.random_bool(0.3).then(|| filter(oracle, rng));
    let shared = rng.random_bool(0.5);
    Question { key, tiers, workers, minimum_overlap, shared }
}

fn filter(oracle: &Oracle, rng: &mut ScriptRng) -> Vec<WorkerId> {
    let mut workers: Vec<_> = oracle.workers().filter(|_| rng.random_bool(0.5)).cloned().collect();
    if rng.random_bool(0.3) {
        workers.push(WorkerId::new("nobody").expect("a short name"));
    }
    if let Some(twice) = workers.first().filter(|_| rng.random_bool(0.3)) {
        workers.push(twice.clone());
    }
    workers.reverse();
    workers
}

fn some_record<'a>(
    oracle: &'a Oracle,
    rng: &mut ScriptRng,
) -> Option<(&'a WorkerId, u32, BlockName, &'a Record)> {
    let worker = oracle.workers().choose(rng)?;
    let (rank, name, record) = oracle.records(worker).choose(rng)?;
    Some((worker, rank, name, record))
}

/// A path that some rank of some worker holds.
fn some_path(oracle: &Oracle, rng: &mut ScriptRng) -> Option<Vec<LocalHash>> {
    let worker = oracle.workers().choose(rng)?;
    oracle.records(worker).filter_map(|(.., record)| record.position.clone()).choose(rng)
}

fn locals(oracle: &Oracle, rng: &mut ScriptRng) -> Vec<LocalHash> {
    let mut locals = some_path(oracle, rng).unwrap_or_default();
    if rng.random_bool(0.4) {
        // On along another worker's path, or into nowhere.
        let other = some_path(oracle, rng).unwrap_or_default();
        locals.extend(other.iter().skip(locals.len()));
        locals.extend((0..rng.random_range(0..3)).map(|_| LocalHash(rng.random_range(1..=4))));
    }
    mutate(&mut locals, rng, |rng| LocalHash(rng.random_range(1..=5)));
    locals
}

fn names(oracle: &Oracle, rng: &mut ScriptRng) -> Vec<BlockName> {
    let Some((worker, rank, name, _)) = some_record(oracle, rng) else {
        return vec![BlockName(1)];
    };
    let find = |wanted| {
        oracle.records(worker).find(|&(r, n, _)| (r, n) == (rank, wanted)).map(|found| found.2)
    };
    let mut names = Vec::new();
    let mut next = Some(name);
    // Parent names may form a circle.
    while let Some(name) = next.filter(|name| !names.contains(name)) {
        names.push(name);
        next = find(name).and_then(|record| record.parent);
    }
    names.reverse();
    if rng.random_bool(0.3) {
        let more = oracle.records(worker).map(|(_, name, _)| name).choose_multiple(rng, 3);
        names.extend(more);
    }
    mutate(&mut names, rng, |rng| BlockName(rng.random_range(1..=9)));
    names
}

/// Sometimes cuts the list short or changes one element.
fn mutate<T>(list: &mut Vec<T>, rng: &mut ScriptRng, other: impl Fn(&mut ScriptRng) -> T) {
    if list.is_empty() {
        return;
    }
    match rng.random_range(0..6) {
        0 => list.truncate(rng.random_range(0..=list.len())),
        1 => {
            let index = rng.random_range(0..list.len());
            list[index] = other(rng);
        }
        _ => {}
    }
}
