use super::busy::BusyThresholds;
use super::decision::{Decision, Explanation, Reason, Removed, SelectError};
use super::mode::Mode;
use super::pick::{Choice, Eligible, Pick};
use super::question::{Candidate, Candidates, Constraints, Question, check_temperature};
use super::score::{PreferenceWeights, Scorer, SlowStart};
use crate::route::cost::CostConfig;
use crate::route::error::ConfigError;
use kvasir_proto::types::WorkerKey;
use std::collections::BTreeMap;

/// How ranks are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SelectConfig {
    /// The mode of requests that have none of their own.
    pub mode: Mode,
    /// What a cost consists of.
    pub cost: CostConfig,
    /// Randomness of mode `kv`, at least 0; 0, the default of document 004, takes the lowest score.
    pub temperature: f64,
    /// Who is too busy.
    pub busy: BusyThresholds,
    /// Who has just joined.
    pub slow_start: SlowStart,
    /// Who is preferred.
    pub preferences: PreferenceWeights,
}

/// Chooses ranks.
#[derive(Debug, Clone)]
pub struct Selector {
    config: SelectConfig,
    /// Whose turn it was.
    last: Option<WorkerKey>,
}

/// Says who can be chosen for one request.
struct Judge<'a> {
    /// None if there are none.
    constraints: Option<Constraints<'a>>,
    /// None if none is set.
    busy: Option<&'a BusyThresholds>,
    is_direct: bool,
    /// All who are allowed failed of late.
    is_ejection_ignored: bool,
}

// === impl SelectConfig ===

impl SelectConfig {
    /// Whether all settings can be used.
    ///
    /// # Errors
    /// If one is out of its bounds.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.cost.check()?;
        check_temperature(self.temperature)?;
        self.busy.check()?;
        self.slow_start.check()?;
        self.preferences.check()
    }
}

// === impl Selector ===

impl Selector {
    /// Nobody was chosen so far.
    #[must_use]
    pub fn new(config: SelectConfig) -> Self {
        debug_assert_eq!(config.check(), Ok(()), "the process refuses what cannot be used");
        Self { config, last: None }
    }

    /// Changes the busy thresholds from now on.
    ///
    /// # Errors
    /// If one is out of its bounds; then nothing changes.
    pub fn set_busy(&mut self, busy: BusyThresholds) -> Result<(), ConfigError> {
        busy.check()?;
        self.config.busy = busy;
        Ok(())
    }

    /// The settings in force.
    #[must_use]
    pub fn config(&self) -> &SelectConfig {
        &self.config
    }

    /// Whether overlap matters for a request. If not, no index needs to be asked: document 004 has none at weight 0.
    #[must_use]
    pub fn needs_overlap(&self, question: &Question<'_>) -> bool {
        let weight = question.overlap_score_weight.unwrap_or(self.config.cost.overlap_score_weight);
        question.mode.unwrap_or(self.config.mode) == Mode::Kv && weight > 0.0
    }

    /// Chooses one of the candidates, which are in the order of their keys. `draw` returns 64 random bits; modes without chance do not call it.
    ///
    /// # Errors
    /// If there is nobody to choose from, with the reason.
    pub fn select<C: Candidates>(
        &mut self,
        question: &Question<'_>,
        candidates: &C,
        draw: &mut dyn FnMut() -> u64,
    ) -> Result<Decision, SelectError> {
        debug_assert_eq!(question.check(), Ok(()), "the shell refuses what cannot be used");
        if candidates.count() == 0 {
            return Err(SelectError::NoWorkers);
        }
        let mode = question.mode.unwrap_or(self.config.mode);
        if mode == Mode::Direct && question.constraints.pin.is_none() {
            return Err(SelectError::NoTarget);
        }
        let mut judge = Judge::new(question, &self.config.busy, mode);
        let SelectConfig { cost, slow_start, preferences, .. } = self.config;
        let scorer = Scorer::new(question, cost, slow_start, preferences, mode);
        let (mut eligible, mut removed) = split(candidates, &judge, &scorer);
        if eligible.is_empty() && removed.keys().any(|what| *what == Removed::Ejected) {
            // Who failed of late may still be better than nobody. Busy workers are somebody: they will have room again.
            judge.is_ejection_ignored = !removed.keys().any(|what| what.is_busy());
            (eligible, removed) = split(candidates, &judge, &scorer);
        }
        let explanations =
            if question.explain { explain(candidates, &judge, &scorer) } else { Vec::new() };
        debug_assert_eq!(eligible.len() + removed.values().sum::<usize>(), candidates.count());
        let last = self.last.as_ref();
        let choice = Choice { candidates, eligible: &eligible, scorer: &scorer, last };
        let chosen = self.pick(question, &choice, mode, draw);
        let chosen = chosen.and_then(|(at, reason)| Some((at, candidates.at(at.number)?, reason)));
        let Some((Eligible { number, score }, chosen, reason)) = chosen else {
            return Err(if mode == Mode::Direct {
                SelectError::UnknownTarget
            } else if removed.keys().any(|what| what.is_busy()) {
                SelectError::AllBusy { removed, explanations }
            } else {
                SelectError::NoneAllowed { removed, explanations }
            });
        };
        let worker = chosen.key.clone();
        self.last = Some(worker.clone());
        Ok(Decision {
            candidate: number,
            worker,
            mode,
            reason,
            overlap: chosen.overlap.expecting(chosen.shared_blocks),
            cost: scorer.score(&chosen).cost,
            score,
            eligible: eligible.len(),
            removed,
            is_ejection_ignored: judge.is_ejection_ignored || judge.is_direct && chosen.is_ejected,
            explanations,
        })
    }

    fn pick<C: Candidates>(
        &self,
        question: &Question<'_>,
        choice: &Choice<'_, C>,
        mode: Mode,
        draw: &mut dyn FnMut() -> u64,
    ) -> Pick {
        let temperature = question.temperature.unwrap_or(self.config.temperature);
        match mode {
            Mode::Kv if temperature > 0.0 => choice.sampled(temperature, draw),
            Mode::Kv | Mode::LeastLoaded => choice.best(),
            Mode::RoundRobin => choice.turn(),
            Mode::Random => choice.any(draw),
            Mode::Direct => choice.best().map(|(chosen, _)| (chosen, Reason::Direct)),
            Mode::PowerOfTwo => choice.of_two(draw),
        }
    }
}

/// Who can be chosen, and how many were removed by what.
fn split<C: Candidates>(
    candidates: &C,
    judge: &Judge<'_>,
    scorer: &Scorer<'_>,
) -> (Vec<Eligible>, BTreeMap<Removed, usize>) {
    let (mut eligible, mut removed) = (Vec::with_capacity(candidates.count()), BTreeMap::new());
    for number in 0..candidates.count() {
        let Some(candidate) = candidates.at(number) else { continue };
        if let Some(what) = judge.verdict(&candidate) {
            *removed.entry(what).or_insert(0) += 1;
            continue;
        }
        eligible.push(Eligible { number, score: scorer.score(&candidate).value });
    }
    (eligible, removed)
}

fn explain<C: Candidates>(
    candidates: &C,
    judge: &Judge<'_>,
    scorer: &Scorer<'_>,
) -> Vec<Explanation> {
    let explain = |at: Candidate<'_>| {
        let score = scorer.score(&at);
        Explanation {
            worker: at.key.clone(),
            removed: judge.verdict(&at),
            overlap: at.overlap,
            trust: at.trust,
            shared_blocks: at.shared_blocks,
            load: at.load,
            cost: score.cost,
            preference: score.preference,
            slow_start: score.slow_start,
            score: score.value,
        }
    };
    (0..candidates.count()).filter_map(|number| candidates.at(number)).map(explain).collect()
}

// === impl Judge ===

impl<'a> Judge<'a> {
    fn new(question: &Question<'a>, busy: &'a BusyThresholds, mode: Mode) -> Self {
        let constraints = question.constraints;
        let busy = (*busy != BusyThresholds::default()).then_some(busy);
        let is_direct = mode == Mode::Direct;
        let constraints = (!constraints.is_none()).then_some(constraints);
        Self { constraints, busy, is_direct, is_ejection_ignored: false }
    }

    /// What removes a candidate; none if it can be chosen.
    #[inline(always)]
    fn verdict(&self, candidate: &Candidate<'_>) -> Option<Removed> {
        if self.is_direct {
            // No selection logic (document 004): whom the request names gets it, busy or not.
            let pin = self.constraints.and_then(|at| at.pin);
            let is_named = pin.is_some_and(|pin| pin.is(candidate.key));
            return (!is_named).then_some(Removed::NotPinned);
        }
        if let unmet @ Some(_) =
            self.constraints.as_ref().and_then(|at| at.unmet(candidate.key, candidate.profile))
        {
            return unmet;
        }
        if candidate.is_ejected && !self.is_ejection_ignored {
            return Some(Removed::Ejected);
        }
        self.busy?.exceeded(&candidate.load, candidate.profile)
    }
}
