use super::busy::BusyThresholds;
use super::decision::{Decision, Explanation, Reason, Removed, RemovedCounts, SelectError};
use super::mode::Mode;
use super::pick::{List, Lowest, Pick, Tally, Turn};
use super::question::{Candidate, Candidates, Constraints, Question, check_temperature};
use super::score::{PreferenceWeights, Scorer, SlowStart};
use crate::route::cost::CostConfig;
use crate::route::error::ConfigError;
use crate::route::fetch::NoFetch;
use kvasir_proto::types::WorkerKey;

/// Settings of the selection of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SelectConfig {
    /// Mode of requests that set none.
    pub mode: Mode,
    /// Settings of the cost.
    pub cost: CostConfig,
    /// Randomness of mode `kv`, at least 0. 0, the default of document 004, chooses the lowest score.
    pub temperature: f64,
    /// Thresholds above which a rank is busy.
    pub busy: BusyThresholds,
    /// Slow start of workers that have just joined.
    pub slow_start: SlowStart,
    /// Weights of preferences.
    pub preferences: PreferenceWeights,
}

/// Selects ranks for requests.
#[derive(Debug, Clone)]
pub struct Selector {
    config: SelectConfig,
    /// The last chosen rank, for round-robin.
    last: Option<Last>,
}

/// The last chosen rank.
#[derive(Debug, Clone)]
struct Last {
    key: WorkerKey,
    /// Index among the candidates at that time.
    number: usize,
}

/// Visits the candidates of one request.
struct Survey<'a, C> {
    candidates: &'a C,
    judge: Judge<'a>,
    scorer: Scorer<'a>,
    /// Number of candidates that can be chosen.
    eligible: usize,
    removed: RemovedCounts,
}

/// Checks which candidates can be chosen for one request.
struct Judge<'a> {
    /// `None` without constraints.
    constraints: Option<Constraints<'a>>,
    /// `None` without thresholds.
    busy: Option<&'a BusyThresholds>,
    is_direct: bool,
    /// All allowed workers are ejected, so ejection is ignored.
    is_ejection_ignored: bool,
}

// === impl SelectConfig ===

impl SelectConfig {
    /// Checks all settings.
    ///
    /// # Errors
    /// If a setting is out of range.
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
    /// A selector that has not chosen a rank yet.
    #[must_use]
    pub fn new(config: SelectConfig) -> Self {
        debug_assert_eq!(config.check(), Ok(()), "the process refuses what cannot be used");
        Self { config, last: None }
    }

    /// Changes the busy thresholds.
    ///
    /// # Errors
    /// If a threshold is out of range; then the old thresholds stay.
    pub fn set_busy(&mut self, busy: BusyThresholds) -> Result<(), ConfigError> {
        busy.check()?;
        self.config.busy = busy;
        Ok(())
    }

    /// Current settings.
    #[must_use]
    pub fn config(&self) -> &SelectConfig {
        &self.config
    }

    /// Whether overlap matters for a request. If not, no index is queried: at weight 0, document 004 uses none.
    #[must_use]
    pub fn needs_overlap(&self, question: &Question<'_>) -> bool {
        let weight = question.overlap_score_weight.unwrap_or(self.config.cost.overlap_score_weight);
        question.mode.unwrap_or(self.config.mode) == Mode::Kv && weight > 0.0
    }

    /// Chooses one of the candidates, which must be ordered by key. `draw` returns 64 random bits; deterministic modes
    /// do not call it. The decision contains no fetch plan: the caller, which has the peers, adds it.
    ///
    /// # Errors
    /// If no rank can be chosen, with the reason.
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
        let SelectConfig { cost, slow_start, preferences, .. } = self.config;
        let mut survey = Survey {
            candidates,
            judge: Judge::new(question, &self.config.busy, mode),
            scorer: Scorer::new(question, cost, slow_start, preferences, mode),
            eligible: 0,
            removed: RemovedCounts::default(),
        };
        let chosen = self.pick(question, &mut survey, mode, draw);
        let explanations = if question.explain { survey.explain() } else { Vec::new() };
        let Survey { judge, scorer, eligible, removed, .. } = survey;
        let chosen = chosen.and_then(|(at, reason)| Some((at, candidates.at(at)?, reason)));
        let Some((number, chosen, reason)) = chosen else {
            return Err(if mode == Mode::Direct {
                SelectError::UnknownTarget
            } else if removed.has(Removed::is_busy) {
                SelectError::AllBusy { removed: removed.to_map(), explanations }
            } else {
                SelectError::NoneAllowed { removed: removed.to_map(), explanations }
            });
        };
        let worker = chosen.key.clone();
        let is_ejection_ignored = judge.is_ejection_ignored || judge.is_direct && chosen.is_ejected;
        self.last = Some(Last { key: worker.clone(), number });
        let score = scorer.score(&chosen);
        Ok(Decision {
            candidate: number,
            worker,
            mode,
            reason,
            overlap: chosen.overlap.expecting(chosen.shared_blocks),
            fetch: Err(NoFetch::NotAsked),
            cost: score.cost,
            score: score.value,
            eligible,
            removed: removed.to_map(),
            is_ejection_ignored,
            explanations,
        })
    }

    /// Chooses among the eligible candidates, as `mode` requires.
    fn pick<C: Candidates>(
        &self,
        question: &Question<'_>,
        survey: &mut Survey<'_, C>,
        mode: Mode,
        draw: &mut dyn FnMut() -> u64,
    ) -> Pick {
        let temperature = question.temperature.unwrap_or(self.config.temperature);
        let begin = self.first_number(survey.candidates);
        match mode {
            Mode::Kv if temperature > 0.0 => {
                survey.show(List::default()).sampled(temperature, draw)
            }
            Mode::Kv | Mode::LeastLoaded => survey.show(Lowest::new(begin)).pick(),
            Mode::RoundRobin => survey.show(Turn::new(begin)).pick(),
            Mode::Random => survey.show(List::default()).any(draw),
            Mode::Direct => {
                let (named, _) = survey.show(Lowest::new(begin)).pick()?;
                Some((named, Reason::Direct))
            }
            Mode::PowerOfTwo => {
                let list = survey.show(List::default());
                list.of_two(survey.candidates, &survey.scorer, begin, draw)
            }
        }
    }

    /// Returns the number of the first candidate after the last chosen one.
    fn first_number<C: Candidates>(&self, candidates: &C) -> usize {
        let Some(last) = &self.last else { return 0 };
        // Usually the candidates have not changed.
        if candidates.at(last.number).is_some_and(|at| *at.key == last.key) {
            return last.number + 1;
        }
        let had_turn = |number| candidates.at(number).is_some_and(|at| *at.key <= last.key);
        let mut begin = 0;
        let mut end = candidates.count();
        while begin < end {
            let middle = begin.midpoint(end);
            if had_turn(middle) { begin = middle + 1 } else { end = middle }
        }
        begin
    }
}

// === impl Survey ===

impl<C: Candidates> Survey<'_, C> {
    /// Passes all eligible candidates to a tally, and returns the tally. If all others are removed, ejected candidates
    /// are passed as well, unless a worker is only busy.
    fn show<T: Tally>(&mut self, mut to: T) -> T {
        self.pass(&mut to);
        if self.eligible == 0 && self.removed.has(|what| what == Removed::Ejected) {
            // An ejected worker is better than none. This does not apply while workers are busy: they will have room
            // again.
            self.judge.is_ejection_ignored = !self.removed.has(Removed::is_busy);
            self.pass(&mut to);
        }
        to
    }

    /// Offers each eligible candidate with its score to the tally, and counts the removed ones by reason.
    fn pass(&mut self, to: &mut impl Tally) {
        let has_no_wishes = self.judge.removes_nobody() && self.scorer.is_plain();
        if has_no_wishes && self.candidates.are_settled() {
            self.quick_pass(to);
            return;
        }
        let mut eligible = 0;
        let mut removed = RemovedCounts::default();
        for number in 0..self.candidates.count() {
            let Some(candidate) = self.candidates.at(number) else { continue };
            if let Some(what) = self.judge.verdict(&candidate) {
                removed.add(what);
                continue;
            }
            eligible += 1;
            let score = self.scorer.score(&candidate).value;
            to.visit(number, score, &candidate.load, &self.scorer);
        }
        debug_assert_eq!(eligible + removed.sum(), self.candidates.count());
        (self.eligible, self.removed) = (eligible, removed);
    }

    /// Fast path for the usual case, in which ranks differ only in load and overlap. Its loop is small enough for the
    /// registers; with all other criteria, it takes several times as long.
    fn quick_pass(&mut self, to: &mut impl Tally) {
        let Self { candidates, scorer, .. } = self;
        let count = candidates.count();
        for number in 0..count {
            let Some(vitals) = candidates.vitals(number) else { continue };
            to.visit(number, scorer.plain_value(&vitals), &vitals.load, scorer);
        }
        (self.eligible, self.removed) = (count, RemovedCounts::default());
    }

    /// Explains all candidates, including removed ones.
    fn explain(&self) -> Vec<Explanation> {
        let Self { candidates, judge, scorer, .. } = self;
        let explain = |at: Candidate<'_>| {
            let score = scorer.score(&at);
            Explanation {
                worker: at.key.clone(),
                removed: judge.verdict(&at),
                overlap: at.overlap,
                trust: at.trust,
                shared_blocks: at.shared_blocks,
                fetch_blocks: at.fetch.map_or(0, |fetch| fetch.blocks),
                load: at.load,
                cost: score.cost,
                preference: score.preference,
                slow_start: score.slow_start,
                score: score.value,
            }
        };
        (0..candidates.count()).filter_map(|number| candidates.at(number)).map(explain).collect()
    }
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

    /// Whether every candidate that is not ejected can be chosen.
    const fn removes_nobody(&self) -> bool {
        self.constraints.is_none() && self.busy.is_none() && !self.is_direct
    }

    /// Returns why a candidate is removed, or `None` if it can be chosen.
    fn verdict(&self, candidate: &Candidate<'_>) -> Option<Removed> {
        if self.is_direct {
            // No selection logic (document 004): the named rank receives the request, busy or not.
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
