//! A differential test: on small random fleets, every index must answer like a naive map.
//!
//! Chains branch anywhere and are shared by any workers. A block is removed only if no block of the same worker follows
//! it: all indexes promise to be exact in this case.

use crate::indexes::{Ask, Chain, Crtc, Index, Kvasir, Locked, Positional, Sharded};
use crate::random::{Random, mix};
use crate::workload::{Content, Script, Span};
use anyhow::{Result, ensure};
use clap::Args;
use std::collections::BTreeSet;
use std::ops::Range;

const WORKERS_MAX: usize = 70;
const CHAINS_MAX: usize = 12;
const CHAIN_BLOCKS_MAX: usize = 40;
const STAGES: usize = 12;
/// Number of changes in one stage.
const CHANGES: usize = 10;
const EVENT_BLOCKS_MAX: usize = 20;
const QUESTIONS: usize = 20;

/// Options of the test.
#[derive(Debug, Args)]
pub(crate) struct Agree {
    /// Number of random fleets.
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// First seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Applies every script to every index. Returns the number of correct answers.
pub(crate) fn agree(check: &Agree) -> Result<usize> {
    let mut answers = 0;
    for seed in check.seed..check.seed + check.seeds {
        let story = Story::new(seed);
        answers += follow::<Kvasir>(&story)? + follow::<Locked>(&story)?;
        answers += follow::<Sharded<2>>(&story)? + follow::<Sharded<4>>(&story)?;
        answers += follow::<Chain>(&story)? + follow::<Crtc>(&story)?;
        answers += follow::<Positional>(&story)?;
    }
    Ok(answers)
}

/// (worker, leading blocks), sorted by worker.
type Scores = Vec<(u32, u32)>;

/// Changes, then queries with their answers.
struct Stage {
    operations: Range<usize>,
    questions: Vec<(Vec<u64>, Scores)>,
    pairs: usize,
}

struct Story {
    seed: u64,
    workers: usize,
    content: Content,
    script: Script,
    stages: Vec<Stage>,
}

fn follow<I: Index>(story: &Story) -> Result<usize> {
    let mut index = I::new(story.workers);
    let mut batch = I::Batch::default();
    let mut answer = Default::default();
    let mut answers = 0;
    for (number, stage) in story.stages.iter().enumerate() {
        let part = &story.script.operations()[stage.operations.clone()];
        I::prepare(&story.content, &story.script, part, &mut batch);
        index.apply(&mut batch);
        let place = format!("{}, seed {}, stage {number}", I::NAME, story.seed);
        ensure!(index.pairs() == stage.pairs, "{place}: {} pairs", index.pairs());
        for (locals, truth) in &stage.questions {
            let query: Vec<_> = locals.iter().map(|&local| I::Asked::hash(local)).collect();
            for (call, name) in I::Asked::CALLS.iter().enumerate() {
                index.asked().ask(call, &query, &mut answer);
                let mut scores = index.asked().scores(call, &answer);
                scores.sort_unstable();
                ensure!(scores == *truth, "{place}, {name}: {scores:?}, expected {truth:?}");
                answers += 1;
            }
        }
    }
    Ok(answers)
}

/// Blocks of the workers while a script is generated.
struct Fleet {
    parents: Vec<Option<u32>>,
    /// Ends of chains.
    leaves: Vec<u32>,
    held: Vec<BTreeSet<u32>>,
}

impl Story {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let workers = 1 + random.below(WORKERS_MAX);
        let mut content = Content::new(seed, 0);
        let mut fleet =
            Fleet { parents: Vec::new(), leaves: Vec::new(), held: vec![BTreeSet::new(); workers] };
        for _ in 0..1 + random.below(CHAINS_MAX) {
            fleet.grow(&mut content, &mut random);
        }
        let mut script = Script::default();
        let mut stages = Vec::new();
        for _ in 0..STAGES {
            let begin = script.operations().len();
            for _ in 0..CHANGES {
                let worker = random.below(workers);
                match random.below(5) {
                    0 | 1 => fleet.remove(worker, &mut script, &mut random),
                    _ => fleet.store(worker, &mut script, &mut random),
                }
            }
            let questions = (0..QUESTIONS).map(|_| fleet.question(&content, &mut random)).collect();
            let pairs = fleet.held.iter().map(BTreeSet::len).sum();
            let operations = begin..script.operations().len();
            stages.push(Stage { operations, questions, pairs });
        }
        Self { seed, workers, content, script, stages }
    }
}

impl Fleet {
    /// Adds a chain from the root or from any block.
    fn grow(&mut self, content: &mut Content, random: &mut Random) {
        let from = random.below(content.len() + 1);
        let parent = from.checked_sub(1).map(|block| block as u32);
        let span = content.add(parent, 1 + random.below(CHAIN_BLOCKS_MAX));
        let inside = (span.start..span.last()).map(Some);
        self.parents.extend([parent].into_iter().chain(inside));
        self.leaves.push(span.last());
    }

    /// Blocks from the root to the end of a random chain.
    fn path(&self, random: &mut Random) -> Vec<u32> {
        let mut at = Some(self.leaves[random.below(self.leaves.len())]);
        let mut path = Vec::new();
        while let Some(block) = at {
            path.push(block);
            at = self.parents[block as usize];
        }
        path.reverse();
        path
    }

    /// A worker stores the blocks it lacks of a path, up to a random depth, in several events.
    fn store(&mut self, worker: usize, script: &mut Script, random: &mut Random) {
        let path = self.path(random);
        let depth = 1 + random.below(path.len());
        let held = &mut self.held[worker];
        let mut at = path[..depth].iter().take_while(|block| held.contains(block)).count();
        while at < depth {
            let most = 1 + random.below(EVENT_BLOCKS_MAX);
            // The blocks of an event have consecutive numbers: it ends where a path leaves a chain.
            let run = path[at..depth].windows(2).take_while(|pair| pair[1] == pair[0] + 1).count();
            let len = most.min(run + 1);
            let blocks = Span { start: path[at], len: len as u32 };
            script.store(worker as u32, self.parents[path[at] as usize], blocks);
            held.extend(blocks.start..blocks.end());
            at += len;
        }
    }

    /// A worker removes some blocks that no block follows, one after the other, in one event.
    fn remove(&mut self, worker: usize, script: &mut Script, random: &mut Random) {
        let held = &mut self.held[worker];
        let mut gone = Vec::new();
        for _ in 0..1 + random.below(EVENT_BLOCKS_MAX) {
            let followed: BTreeSet<u32> =
                held.iter().filter_map(|&block| self.parents[block as usize]).collect();
            let ends: Vec<u32> = held.difference(&followed).copied().collect();
            if ends.is_empty() {
                break;
            }
            let block = ends[random.below(ends.len())];
            held.remove(&block);
            gone.push(block);
        }
        if !gone.is_empty() {
            script.remove(worker as u32, gone);
        }
    }

    /// A part of a path, perhaps followed by unknown blocks, and each worker's number of leading blocks.
    fn question(&self, content: &Content, random: &mut Random) -> (Vec<u64>, Scores) {
        let mut path = self.path(random);
        path.truncate(random.below(path.len() + 1));
        let local = |&block: &u32| content.locals(Span { start: block, len: 1 })[0];
        let mut locals: Vec<u64> = path.iter().map(local).collect();
        locals.extend((0..random.below(4)).map(|_| mix(random.next())));
        let leading = |held: &BTreeSet<u32>| {
            path.iter().take_while(|block| held.contains(block)).count() as u32
        };
        let scores = (0..).zip(self.held.iter().map(leading));
        (locals, scores.filter(|&(_, blocks)| blocks > 0).collect())
    }
}
