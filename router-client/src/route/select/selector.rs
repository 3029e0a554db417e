use super::busy::BusyThresholds;
use super::decision::{Decision, Explanation, Reason, Removed, SelectError};
use super::filter::unmet;
use super::mode::Mode;
use super::pick::{Eligible, Pick, any, best, of_two, sampled, turn};
use super::question::{Candidate, Question, check_temperature};
use super::score::{PreferenceWeights, Score, SlowStart};
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
#[derive(Debug)]
pub struct Selector {
    config: SelectConfig,
    /// Whose turn it was.
    last: Option<WorkerKey>,
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

    /// Chooses one of the candidates. `draw` returns 64 random bits; modes without chance do not call it.
    ///
    /// # Errors
    /// If there is nobody to choose from, with the reason.
    pub fn select(
        &mut self,
        question: &Question<'_>,
        candidates: &[Candidate<'_>],
        draw: &mut dyn FnMut() -> u64,
    ) -> Result<Decision, SelectError> {
        debug_assert_eq!(question.check(), Ok(()), "the shell refuses what cannot be used");
        if candidates.is_empty() {
            return Err(SelectError::NoWorkers);
        }
        let mode = question.mode.unwrap_or(self.config.mode);
        let Verdicts { removed, is_ejection_ignored } = match mode {
            Mode::Direct => named(question, candidates)?,
            Mode::Kv | Mode::RoundRobin | Mode::Random | Mode::PowerOfTwo | Mode::LeastLoaded => {
                judge(question, candidates, &self.config.busy)
            }
        };
        let explanations = self.explain(question, candidates, &removed, mode);
        let eligible = self.eligible(question, candidates, &removed, mode);
        let removed = count(&removed);
        debug_assert_eq!(eligible.len() + removed.values().sum::<usize>(), candidates.len());
        let Some((chosen, reason)) = self.pick(question, &eligible, mode, draw) else {
            let is_busy = removed.keys().any(|what| what.is_busy());
            return Err(if is_busy {
                SelectError::AllBusy { removed, explanations }
            } else {
                SelectError::NoneAllowed { removed, explanations }
            });
        };
        let worker = chosen.key.clone();
        self.last = Some(worker.clone());
        Ok(Decision {
            candidate: chosen.candidate,
            worker,
            mode,
            reason,
            cost: chosen.score.cost,
            score: chosen.score.value,
            eligible: eligible.len(),
            removed,
            is_ejection_ignored,
            explanations,
        })
    }

    fn pick<'a>(
        &self,
        question: &Question<'_>,
        eligible: &[Eligible<'a>],
        mode: Mode,
        draw: &mut dyn FnMut() -> u64,
    ) -> Pick<'a> {
        let last = self.last.as_ref();
        let temperature = question.temperature.unwrap_or(self.config.temperature);
        match mode {
            Mode::Kv if temperature > 0.0 => sampled(eligible, temperature, draw),
            Mode::Kv | Mode::LeastLoaded => best(eligible, last),
            Mode::RoundRobin => turn(eligible, last),
            Mode::Random => any(eligible, draw),
            Mode::Direct => best(eligible, last).map(|(chosen, _)| (chosen, Reason::Direct)),
            Mode::PowerOfTwo => of_two(eligible, last, draw),
        }
    }

    fn score(&self, candidate: &Candidate<'_>, question: &Question<'_>, mode: Mode) -> Score {
        let mut config = self.config.cost;
        if let Some(weight) = question.overlap_score_weight {
            config.overlap_score_weight = weight;
        }
        let factors = (&self.config.slow_start, &self.config.preferences);
        Score::of(candidate, question, &config, factors, mode)
    }

    fn eligible<'a>(
        &self,
        question: &Question<'_>,
        candidates: &[Candidate<'a>],
        removed: &[Option<Removed>],
        mode: Mode,
    ) -> Vec<Eligible<'a>> {
        let left = candidates.iter().zip(removed).enumerate().filter(|(_, (_, at))| at.is_none());
        let eligible = left.map(|(candidate, (at, _))| {
            let score = self.score(at, question, mode);
            Eligible { candidate, key: at.key, requests: at.load.requests, score }
        });
        eligible.collect()
    }

    fn explain(
        &self,
        question: &Question<'_>,
        candidates: &[Candidate<'_>],
        removed: &[Option<Removed>],
        mode: Mode,
    ) -> Vec<Explanation> {
        if !question.explain {
            return Vec::new();
        }
        let explain = |(at, removed): (&Candidate<'_>, &Option<Removed>)| {
            let score = self.score(at, question, mode);
            Explanation {
                worker: at.key.clone(),
                removed: *removed,
                overlap: at.overlap,
                shared_blocks: at.shared_blocks,
                load: at.load,
                cost: score.cost,
                preference: score.preference,
                slow_start: score.slow_start,
                score: score.value,
            }
        };
        candidates.iter().zip(removed).map(explain).collect()
    }
}

/// What removed each candidate, in their order.
struct Verdicts {
    removed: Vec<Option<Removed>>,
    is_ejection_ignored: bool,
}

/// Mode `direct` has no selection logic (document 004): the named worker gets the request, busy or not.
fn named(question: &Question<'_>, candidates: &[Candidate<'_>]) -> Result<Verdicts, SelectError> {
    let Some(pin) = question.constraints.pin else { return Err(SelectError::NoTarget) };
    let verdict = |at: &Candidate<'_>| (!pin.is(at.key)).then_some(Removed::NotPinned);
    let removed: Vec<_> = candidates.iter().map(verdict).collect();
    if removed.iter().all(Option::is_some) {
        return Err(SelectError::UnknownTarget);
    }
    Ok(Verdicts { removed, is_ejection_ignored: false })
}

fn judge(question: &Question<'_>, candidates: &[Candidate<'_>], busy: &BusyThresholds) -> Verdicts {
    let unmet: Vec<_> = candidates.iter().map(|at| unmet(at, &question.constraints)).collect();
    let mut allowed = candidates.iter().zip(&unmet).filter(|(_, unmet)| unmet.is_none());
    // Who failed of late may still be better than nobody. Busy workers are somebody: they will have room again.
    let is_ejection_ignored =
        unmet.iter().any(Option::is_none) && allowed.all(|(at, _)| at.is_ejected);
    let verdict = |(at, unmet): (&Candidate<'_>, Option<Removed>)| {
        let ejected = (at.is_ejected && !is_ejection_ignored).then_some(Removed::Ejected);
        unmet.or(ejected).or_else(|| busy.exceeded(&at.load, at.profile))
    };
    let removed = candidates.iter().zip(unmet).map(verdict).collect();
    Verdicts { removed, is_ejection_ignored }
}

fn count(removed: &[Option<Removed>]) -> BTreeMap<Removed, usize> {
    let mut counts = BTreeMap::new();
    for what in removed.iter().flatten() {
        *counts.entry(*what).or_insert(0) += 1;
    }
    counts
}
