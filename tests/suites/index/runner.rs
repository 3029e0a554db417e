//! Runs a script on a subject and on the oracle, and compares them after every step.

use crate::ask::questions;
use crate::dumps::Dump;
use crate::subject::{Piece, RankSizes, Subject};
use kvasir_proto::types::{DpRank, KvEvent};
use kvasir_tests::oracle::{Oracle, OracleLimits, Question, SourceNo};
use kvasir_tests::script::{Action, DUMP_SLOTS, Family, Script, ScriptRng, Step};
use rand::{Rng, SeedableRng};
use std::fmt::Debug;

/// Calls of a bounded operation after which it counts as endless.
pub const CALLS_MAX: usize = 100_000;

/// Comparing costs a look at everything, so large states are compared at every so many steps.
const LARGE_COMPARED_EVERY: u64 = 256;

/// A difference, or a broken invariant.
#[derive(Debug)]
pub struct Failure {
    /// Index of the step in the script; none after the last.
    pub step: Option<usize>,
    pub message: String,
}

/// What a run has seen, so that a test can tell that the streams reach what they should.
#[derive(Debug, Default, Clone, Copy)]
pub struct Seen {
    pub steps: u64,
    pub questions: u64,
    pub hits: u64,
    pub longest_hit: u32,
    pub conflicts: u64,
    pub rejected: u64,
    pub parked_most: u64,
    pub dumps_finished: u64,
    pub dumps_aborted: u64,
    pub dump_tail_records: u64,
    /// Blocks of answers that only pools hold.
    pub pool_blocks: u64,
}

impl Seen {
    pub fn merge(&mut self, other: Self) {
        self.steps += other.steps;
        self.questions += other.questions;
        self.hits += other.hits;
        self.longest_hit = self.longest_hit.max(other.longest_hit);
        self.conflicts += other.conflicts;
        self.rejected += other.rejected;
        self.parked_most = self.parked_most.max(other.parked_most);
        self.dumps_finished += other.dumps_finished;
        self.dumps_aborted += other.dumps_aborted;
        self.dump_tail_records += other.dump_tail_records;
        self.pool_blocks += other.pool_blocks;
    }
}

/// A script on its way through both.
pub struct Run<'a, S: Subject> {
    pub script: &'a Script,
    pub subject: S,
    pub oracle: Oracle,
    pub sources: Vec<Option<(S::Source, SourceNo)>>,
    pub dumps: [Option<Dump<S>>; DUMP_SLOTS],
    pub seen: Seen,
}

/// Runs a script; the first difference ends it.
pub fn run<S: Subject>(script: &Script, make: impl Fn() -> S) -> Result<Seen, Failure> {
    let mut run = Run::new(script, make());
    for (index, step) in script.steps.iter().enumerate() {
        let compared =
            script.family != Family::Large || step.id.is_multiple_of(LARGE_COMPARED_EVERY);
        if let Some(roles) = script.roles(step.id) {
            run.subject.set_roles(&roles);
            run.oracle.set_roles(roles);
        }
        let outcome = run.step(step);
        let outcome = outcome.and_then(|()| if compared { run.compare(step.id) } else { Ok(()) });
        outcome.map_err(|message| Failure { step: Some(index), message })?;
    }
    let empty_bytes = make().sizes().bytes;
    run.end(empty_bytes).map_err(|message| Failure { step: None, message })?;
    Ok(run.seen)
}

pub fn same<T: PartialEq + Debug>(what: &str, subject: &T, oracle: &T) -> Result<(), String> {
    if subject == oracle {
        return Ok(());
    }
    Err(format!("{what}:\n  subject {subject:?}\n  oracle  {oracle:?}"))
}

impl<'a, S: Subject> Run<'a, S> {
    fn new(script: &'a Script, subject: S) -> Self {
        let limits = OracleLimits {
            chain_blocks_max: script.limits.chain_blocks_max,
            rank_parked_max: script.limits.rank_parked_max,
        };
        Self {
            script,
            subject,
            oracle: Oracle::new(limits),
            sources: vec![None; script.sources.len()],
            dumps: [const { None }; DUMP_SLOTS],
            seen: Seen::default(),
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        self.seen.steps += 1;
        match &step.action {
            Action::AddSource { source } => self.add_source(*source),
            Action::RemoveSource { source, budget } => self.remove_source(*source, *budget),
            Action::Event { source, rank, event } => self.event(*source, *rank, event),
            Action::Clear { source, rank, budget } => self.clear(*source, *rank, *budget, step.id),
            Action::MarkSuspect { source } => {
                if let Some((subject, oracle)) = self.sources[*source] {
                    self.subject.mark_suspect(subject);
                    self.oracle.mark_suspect(oracle);
                }
                Ok(())
            }
            Action::DropSuspects { source, budget } => {
                self.drop_suspects(*source, *budget, step.id)
            }
            Action::BeginDump { slot, source, rank } => self.begin_dump(*slot, *source, *rank),
            Action::ReadDump { slot, records_max } => self.read_dump(*slot, *records_max),
            Action::FinishDump { slot, records_max } => self.finish_dump(*slot, *records_max),
            Action::CancelDump { slot } => {
                if let Some(dump) = self.dumps[*slot].take() {
                    self.subject.cancel_dump(dump.scan);
                }
                Ok(())
            }
        }
    }

    fn add_source(&mut self, source: usize) -> Result<(), String> {
        let spec = &self.script.sources[source];
        let added = self.subject.add_source(spec);
        if self.sources[source].is_some() {
            return match added {
                Err(_) => Ok(()),
                Ok(_) => Err("a source was added twice".into()),
            };
        }
        let ranks = self.oracle.rank_count(&spec.worker);
        let number = self.oracle.add_source(&spec.worker, spec.rank, spec.copy_mode);
        self.sources[source] = Some((added?, number));
        self.excuse_new_rank(source, ranks);
        Ok(())
    }

    fn remove_source(&mut self, source: usize, budget: usize) -> Result<(), String> {
        let Some((subject, oracle)) = self.sources[source] else {
            return Ok(());
        };
        if self.oracle.holds_anything(oracle) && self.subject.remove_source(subject).is_ok() {
            return Err("a source that holds blocks was removed".into());
        }
        self.clear(source, None, budget, 0)?;
        self.subject.remove_source(subject)?;
        self.oracle.remove_source(oracle);
        self.sources[source] = None;
        Ok(())
    }

    fn event(&mut self, source: usize, rank: DpRank, event: &KvEvent) -> Result<(), String> {
        let Some((subject, oracle)) = self.sources[source] else {
            return Ok(());
        };
        self.touch(source, rank, event, |run| {
            let expected = run.oracle.apply(oracle, rank, event);
            run.seen.conflicts += expected.conflict;
            run.seen.rejected += expected.rejected;
            let counts = run.subject.apply(subject, rank, event)?;
            same("outcome of the event", &counts, &expected)
        })
    }

    fn clear(
        &mut self,
        source: usize,
        rank: Option<DpRank>,
        budget: usize,
        step: u64,
    ) -> Result<(), String> {
        let Some((subject, oracle)) = self.sources[source] else {
            return Ok(());
        };
        self.excuse_dumps(source, "a clear");
        let dropped = self.oracle.clear_source(oracle, rank);
        self.in_pieces(source, step, dropped, |index| index.clear(subject, rank, budget))
    }

    fn drop_suspects(&mut self, source: usize, budget: usize, step: u64) -> Result<(), String> {
        let Some((subject, oracle)) = self.sources[source] else {
            return Ok(());
        };
        self.excuse_dumps(source, "suspects were dropped");
        let dropped = self.oracle.drop_suspects(oracle);
        self.in_pieces(source, step, dropped, |index| index.drop_suspects(subject, budget))
    }

    /// Repeats a bounded operation until it is done. In between, the index must be sound, and
    /// other workers' answers must not change.
    fn in_pieces(
        &mut self,
        source: usize,
        step: u64,
        dropped: bool,
        mut piece: impl FnMut(&mut S) -> Result<Piece, String>,
    ) -> Result<(), String> {
        let worker = &self.script.sources[source].worker;
        let others: Vec<_> = self.oracle.workers().filter(|id| *id != worker).cloned().collect();
        let mut removed = 0;
        for call in 0..CALLS_MAX {
            let Piece { removed: now, done } = piece(&mut self.subject)?;
            removed += now;
            if done {
                return same("whether anything was dropped", &(removed > 0), &dropped);
            }
            if call < 3 {
                self.subject.validate()?;
                for mut question in self.questions(step) {
                    question.workers = Some(others.clone());
                    // What it holds may be others', too, if it is a pool.
                    question.shared = false;
                    self.ask(&question)?;
                }
            }
        }
        Err("a bounded operation never ends".into())
    }

    fn questions(&self, step: u64) -> Vec<Question> {
        let seed = self.script.seed.wrapping_mul(1_000_003).wrapping_add(step);
        questions(&self.oracle, &mut ScriptRng::seed_from_u64(seed))
    }

    fn ask(&mut self, question: &Question) -> Result<(), String> {
        let expected = self.oracle.find(question);
        let best = expected.first().map_or(0, |found| found.blocks);
        self.seen.questions += 1;
        self.seen.pool_blocks += expected.iter().map(|at| u64::from(at.pool_blocks)).sum::<u64>();
        self.seen.hits += u64::from(best > 0);
        self.seen.longest_hit = self.seen.longest_hit.max(best);
        let answer = self.subject.find(question)?;
        if answer == expected {
            return Ok(());
        }
        let text = format!("answer to {question:?}");
        if answer.len() > 4 && answer.len() == expected.len() {
            let mut pairs = answer.iter().zip(&expected).enumerate();
            let (line, (mine, theirs)) = pairs.find(|(_, (a, b))| a != b).expect("they differ");
            return same(&format!("{text}, line {line}"), mine, theirs);
        }
        same(&text, &answer, &expected)
    }

    /// Everything that must hold after every step. Sizes cost the oracle a look at all it holds, so
    /// large states have them compared at every fourth step.
    fn compare(&mut self, step: u64) -> Result<(), String> {
        self.subject.validate()?;
        for question in self.questions(step) {
            self.ask(&question)?;
        }
        if self.script.family == Family::Chaos || step.is_multiple_of(4) {
            self.compare_sizes()?;
        }
        Ok(())
    }

    fn compare_sizes(&mut self) -> Result<(), String> {
        let stats = self.subject.expected_stats(&self.oracle);
        self.seen.parked_most = self.seen.parked_most.max(stats.parked);
        same("sizes", &self.subject.sizes().stats, &stats)?;
        let ranks: RankSizes = self
            .oracle
            .workers()
            .flat_map(|worker| {
                let ranks = self.oracle.ranks(worker).into_iter();
                ranks.map(move |(rank, sizes)| ((worker.clone(), rank), sizes))
            })
            .collect();
        same("placed and parked by rank", &self.subject.ranks(), &ranks)
    }

    /// What must hold after the last step: dumps are equal, and nothing stays of what is removed.
    fn end(&mut self, empty_bytes: u64) -> Result<(), String> {
        for dump in self.dumps.iter_mut().filter_map(Option::take) {
            self.subject.cancel_dump(dump.scan);
        }
        self.compare_sizes()?;
        let workers: Vec<_> = self.oracle.workers().cloned().collect();
        let mut rng = ScriptRng::seed_from_u64(self.script.seed);
        for worker in &workers {
            self.quiet_dump(worker, rng.random_range(1..100))?;
        }
        for source in 0..self.sources.len() {
            self.remove_source(source, rng.random_range(1..100))?;
            self.subject.validate()?;
        }
        let sizes = self.subject.sizes();
        same("sizes when all is gone", &sizes.stats, &self.oracle.stats())?;
        if sizes.leftovers.values().any(|&count| count > 0) {
            return Err(format!("left over when all is gone: {:?}", sizes.leftovers));
        }
        let slack = 64 << 10;
        if sizes.bytes > empty_bytes + slack {
            return Err(format!("{} bytes when all is gone, {empty_bytes} new", sizes.bytes));
        }
        Ok(())
    }
}
