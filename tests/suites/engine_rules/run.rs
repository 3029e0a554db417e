//! Plays a script to an engine and to the subject, and compares their answers after every batch.

use crate::engine::Engine;
use crate::fault::Fault;
use crate::prompt::Prompt;
use crate::script::{Action, Script};
use crate::seen::Seen;
use crate::subject::{Standing, Subject};
use crate::wire::encode;
use kvasir_proto::types::{DpRank, Tier, TierSet};
use kvasir_tests::script::ScriptRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// Prompts that are asked for after each batch.
const QUESTIONS: usize = 5;

/// A difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Index of the action after which it showed.
    pub action: usize,
    pub message: String,
}

struct Run<'a> {
    script: &'a Script,
    engine: Engine,
    subject: Subject,
    rng: ScriptRng,
    seen: Seen,
}

/// Runs a script. The first difference ends the run.
pub fn run(script: &Script, fault: Fault) -> Result<Seen, Failure> {
    let mut run = Run {
        script,
        engine: Engine::new(script.setup),
        subject: Subject::new(script.setup, fault),
        rng: ScriptRng::seed_from_u64(0),
        seen: Seen::default(),
    };
    for (number, (id, action)) in script.actions.iter().enumerate() {
        run.rng = ScriptRng::seed_from_u64(!script.seed.wrapping_mul(1_000).wrapping_add(*id));
        run.step(action).map_err(|message| Failure { action: number, message })?;
    }
    let action = script.actions.len();
    run.subject.validate().map_err(|message| Failure { action, message })?;
    Ok(run.seen)
}

impl Run<'_> {
    fn step(&mut self, action: &Action) -> Result<(), String> {
        match action {
            Action::RestartIndex { is_lossy } => self.restart(*is_lossy)?,
            Action::RestartEngine => {
                self.engine.restart();
                self.subject.restart_engine();
            }
            _ => {
                let (rank, events) = self.engine.act(action);
                if events.is_empty() {
                    return Ok(());
                }
                self.seen.note_action(action, &events);
                self.subject.take(&encode(&self.script.setup, rank, &events));
            }
        }
        if self.rng.random_bool(0.1) {
            self.subject.take_image();
        }
        for rank in 0..self.script.setup.ranks {
            for _ in 0..QUESTIONS {
                if let Some(prompt) = self.script.prompts.choose(&mut self.rng) {
                    self.compare(rank, prompt)?;
                }
            }
        }
        Ok(())
    }

    /// Restarts the index: no answer that may be high becomes one that may not.
    fn restart(&mut self, is_lossy: bool) -> Result<(), String> {
        let ranks = 0..self.script.setup.ranks;
        let doubts = |subject: &Subject| {
            let is_high = |rank| subject.standing(rank).is_some_and(|at| at.may_be_high);
            ranks.clone().map(is_high).collect::<Vec<_>>()
        };
        let before = doubts(&self.subject);
        self.subject.restart(is_lossy);
        self.seen.restarts += 1;
        let after = doubts(&self.subject);
        if before.iter().zip(&after).any(|(before, after)| *before && !after) {
            return Err(format!("a restart ends the doubt: {before:?}, then {after:?}"));
        }
        Ok(())
    }

    /// Asks for a prompt, or for a similar one, in all tiers and in one.
    fn compare(&mut self, rank: DpRank, prompt: &Prompt) -> Result<(), String> {
        let mut prompt = prompt.clone();
        for _ in 0..self.rng.random_range(0..=2) {
            prompt = prompt.vary(&self.script.setup, &mut self.rng);
        }
        let one = *Tier::ALL.choose(&mut self.rng).expect("not empty");
        for tiers in [TierSet::ALL, TierSet::EMPTY.with(one)] {
            self.compare_in(rank, &prompt, tiers)?;
        }
        Ok(())
    }

    fn compare_in(&mut self, rank: DpRank, prompt: &Prompt, tiers: TierSet) -> Result<(), String> {
        let reusable = self.engine.reusable(rank, prompt);
        let is_in = |at: &TierSet| Tier::ALL.iter().any(|&t| at.contains(t) && tiers.contains(t));
        let expected = reusable.iter().take_while(|at| is_in(at)).count();
        let Some(standing) = self.subject.standing(rank) else {
            return if expected == 0 { Ok(()) } else { Err(format!("rank {rank} is not listed")) };
        };
        let by_hashes = self.rng.random_bool(0.5);
        let answer = self.subject.ask(prompt, rank, tiers, by_hashes);
        let blocks = answer.blocks as usize;
        self.seen.note_answer(prompt, &standing, blocks, expected);
        let text = |what: &str| {
            let reusable: Vec<String> = reusable.iter().map(tiers_text).collect();
            format!(
                "{what}: {blocks} blocks instead of {expected} at rank {rank}, in tiers {}\n\
                 {standing:?}, the engine has {reusable:?}\n{prompt:?}",
                tiers_text(&tiers)
            )
        };
        if !self.may_differ(&standing) && blocks > expected {
            return Err(text("too many"));
        }
        let is_complete = standing.is_exact() && self.script.setup.states_everything();
        if is_complete && blocks < expected {
            return Err(text("too few"));
        }
        let Some(by_tier) = answer.by_tier.filter(|_| !self.may_differ(&standing)) else {
            return Ok(());
        };
        for tier in Tier::ALL.into_iter().filter(|&tier| tiers.contains(tier)) {
            let has_tier = |at: &&TierSet| at.contains(tier);
            let most = reusable.iter().take(blocks).filter(has_tier).count();
            let found = by_tier[tier.index()] as usize;
            if found > most || (is_complete && found < most) {
                return Err(text(&format!("{found} instead of {most} in tier {tier:?}")));
            }
        }
        Ok(())
    }

    /// Whether the answer may be high: because it says so, or for the one reason that is known and not stated.
    fn may_differ(&self, standing: &Standing) -> bool {
        let may_keep_replaced = self.script.setup.may_keep_replaced() && !standing.is_exact();
        !standing.is_trusted() || may_keep_replaced
    }
}

fn tiers_text(tiers: &TierSet) -> String {
    let letters = Tier::ALL.into_iter().zip("ghd".chars());
    letters.filter(|(tier, _)| tiers.contains(*tier)).map(|(_, letter)| letter).collect()
}

/// The script without actions that the failure does not need.
pub fn shrink(script: &Script, failure: &Failure, fault: Fault) -> (Script, Failure) {
    let kind = |failure: &Failure| failure.message.split(':').next().map(str::to_owned);
    let mut small = script.clone();
    small.actions.truncate(failure.action + 1);
    let mut last = failure.clone();
    loop {
        let before = small.actions.len();
        for at in (0..small.actions.len()).rev() {
            let mut candidate = small.clone();
            candidate.actions.remove(at);
            if let Err(found) = run(&candidate, fault)
                && kind(&found) == kind(failure)
            {
                (small, last) = (candidate, found);
            }
        }
        if small.actions.len() == before {
            return (small, last);
        }
    }
}
