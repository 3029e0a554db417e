//! Clears and sweeps of suspect blocks are done in steps, and other sources' events come between.
//! How those turn out then depends on the moment; what a finished sweep promises does not.

use crate::live::Live;
use crate::subject::{Piece, RankSizes, Subject};
use kvasir_index::SourceId;
use kvasir_tests::script::{Action, Script, ScriptRng, Step};
use rand::{Rng, SeedableRng};

const SEEDS: u64 = 2_000;
/// Calls after which a sweep counts as endless.
const CALLS_MAX: usize = 20_000;

struct Play<'a> {
    live: Live,
    script: &'a Script,
    sources: Vec<Option<SourceId>>,
}

impl Play<'_> {
    fn step(&mut self, step: &Step) -> Result<(), String> {
        match &step.action {
            Action::AddSource { source } if self.sources[*source].is_none() => {
                let added = self.live.add_source(&self.script.sources[*source])?;
                self.sources[*source] = Some(added);
            }
            Action::Event { source, rank, event } => {
                if let Some(source) = self.sources[*source] {
                    self.live.apply(source, *rank, event)?;
                }
            }
            Action::MarkSuspect { source } => {
                if let Some(source) = self.sources[*source] {
                    self.live.mark_suspect(source);
                }
            }
            _ => {}
        }
        self.live.validate()
    }

    /// Carries out the steps of other sources, a piece of the sweep after each, then the rest.
    fn between(
        &mut self,
        steps: &[Step],
        swept: usize,
        mut piece: impl FnMut(&mut Live) -> Result<Piece, String>,
    ) -> Result<(), String> {
        let of_others = |step: &&Step| match step.action {
            Action::Event { source, .. } | Action::MarkSuspect { source } => source != swept,
            _ => false,
        };
        let mut steps = steps.iter().filter(of_others);
        for _ in 0..CALLS_MAX {
            if piece(&mut self.live)?.done {
                return Ok(());
            }
            self.live.validate()?;
            if let Some(step) = steps.next() {
                self.step(step)?;
            }
        }
        Err("the sweep never ends".into())
    }

    /// Names that a source still has, over all ranks.
    fn records_of(&mut self, source: usize) -> Result<usize, String> {
        let worker = &self.script.sources[source].worker;
        let text = |refusal: crate::subject::Refusal| refusal.to_string();
        let mut scan = self.live.begin_dump(worker, None).map_err(text)?;
        let mut records = Vec::new();
        while self.live.read_dump(&mut scan, 10, &mut records).map_err(text)? {}
        self.live.cancel_dump(scan);
        let mine = records.iter().filter(|((_, by, _), _)| Some(*by) == self.sources[source]);
        Ok(mine.count())
    }
}

fn play(seed: u64) -> Result<(), String> {
    let script = Script::generate(seed);
    let mut rng = ScriptRng::seed_from_u64(!seed);
    let mut play = Play {
        live: Live::new(script.limits),
        script: &script,
        sources: vec![None; script.sources.len()],
    };
    let (before, meanwhile) = script.steps.split_at(script.steps.len() / 2);
    before.iter().try_for_each(|step| play.step(step))?;
    let present = (0..play.sources.len()).filter(|&source| play.sources[source].is_some());
    let present: Vec<usize> = present.collect();
    let swept = present[rng.random_range(0..present.len())];
    let source = play.sources[swept].expect("present");
    let budget = rng.random_range(1..4);
    if rng.random_bool(0.5) {
        play.live.mark_suspect(source);
        play.between(meanwhile, swept, |live| live.drop_suspects(source, budget))?;
    } else {
        play.between(meanwhile, swept, |live| live.clear(source, None, budget))?;
    }
    let left = play.records_of(swept)?;
    if left > 0 {
        return Err(format!("{left} records left of the source that was swept"));
    }
    // A source of which nothing is left can be removed at once.
    play.live.remove_source(source)?;
    for source in play.sources.iter().flatten().filter(|&&other| other != source) {
        while !play.live.clear(*source, None, 100)?.done {}
        play.live.remove_source(*source)?;
    }
    play.live.validate()?;
    if play.live.ranks() != RankSizes::new() || play.live.sizes().leftovers.values().any(|n| *n > 0)
    {
        return Err("something is left when all is gone".into());
    }
    Ok(())
}

#[test]
fn a_sweep_in_steps_ends_whatever_comes_between() {
    for seed in 0..SEEDS {
        if let Err(message) = play(seed) {
            panic!("seed {seed}: {message}\n{}", Script::generate(seed));
        }
    }
}
