//! Plans the trials of a run: interleaved A B C, A B C, .. within each group.

use crate::trial::{Measure, Subject, Trial};
use crate::workload::Kind;
use anyhow::{Result, ensure};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;

const ALL: &[Subject] = &[Subject::Kvasir, Subject::Chain, Subject::Crtc, Subject::Positional];
/// Without the index that is far slower in lookups and never frees memory.
const FAST: &[Subject] = &[Subject::Kvasir, Subject::Chain, Subject::Crtc];
/// Indexes for the largest sizes.
const LARGE: &[Subject] = &[Subject::Kvasir, Subject::Chain];
/// More than one shard; the ordinary trial has one.
const SHARDED: &[Subject] = &[Subject::Kvasir2, Subject::Kvasir4];
/// Number of pairs from which only [`LARGE`] is measured.
const LARGE_PAIRS: usize = 20_000_000;
/// Maximum number of trials for long measurements, and for those without a target.
const FEW: usize = 3;
/// Number of workers of the large fleet.
pub(crate) const MANY_WORKERS: usize = 1_000;
/// Expected seconds per 1 M pairs to create the work, store it and take one measurement.
const MILLION_SECS: f64 = 0.5;

/// Size of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) pairs: usize,
    pub(crate) turnovers: usize,
    pub(crate) questions: usize,
    pub(crate) asking_ms: u64,
    /// Numbers of pairs of the larger indexes.
    pub(crate) sweep: &'static [usize],
}

const FULL: Size = Size {
    pairs: 2_000_000,
    turnovers: 20,
    questions: 20_000,
    asking_ms: 1_500,
    sweep: &[5_000_000, 10_000_000, 20_000_000, 50_000_000],
};

const QUICK: Size = Size {
    pairs: 500_000,
    turnovers: 6,
    questions: 4_000,
    asking_ms: 200,
    sweep: &[1_000_000, 2_000_000],
};

impl Size {
    pub(crate) fn new(quick: bool) -> Self {
        if quick { QUICK } else { FULL }
    }
}

/// Options of a plan.
#[derive(Debug, Args)]
pub(crate) struct Plan {
    /// Maximum number of trials of each kind and index.
    #[arg(long, default_value_t = 5)]
    trials: usize,
    /// Quick check that everything works: a quarter of the pairs, and fewer turnovers.
    #[arg(long)]
    quick: bool,
    /// Only groups of trials whose name contains one of these, for example distinct-base,churn.
    #[arg(long, value_delimiter = ',')]
    groups: Vec<String>,
    /// Only these indexes.
    #[arg(long, value_enum, value_delimiter = ',')]
    index: Vec<Subject>,
    /// Also play this trace in the Mooncake form.
    #[arg(long)]
    trace: Option<PathBuf>,
}

/// A planned trial.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Job {
    /// Name of the trial, unique within the run.
    name: String,
    /// Arguments of this program for the trial.
    arguments: Vec<String>,
    /// Expected duration, in seconds.
    secs: f64,
}

/// All trials of a run, in order. The content differs between rounds, but not between indexes.
pub(crate) fn plan(plan: &Plan) -> Result<Vec<Job>> {
    let wanted = |name: &str| plan.groups.iter().any(|only| name.contains(only.as_str()));
    let mut groups = groups(Size::new(plan.quick), plan.trace.clone());
    groups.retain(|group| plan.groups.is_empty() || wanted(&group.name));
    ensure!(!groups.is_empty(), "--groups {:?} matches no group", plan.groups);
    let mut jobs = Vec::new();
    for group in &groups {
        for round in 1..=plan.trials.min(group.trials) {
            for &subject in group.subjects {
                if plan.index.is_empty() || plan.index.contains(&subject) {
                    jobs.push(group.job(subject, round));
                }
            }
        }
    }
    Ok(jobs)
}

/// A trial that is repeated with several indexes, one after the other, in each round.
#[derive(Debug, Clone)]
struct Group {
    name: String,
    subjects: &'static [Subject],
    /// The trial, for any index and seed.
    trial: Trial,
    /// Maximum number of rounds.
    trials: usize,
}

impl Group {
    fn new(name: impl Into<String>, subjects: &'static [Subject], trial: Trial) -> Self {
        Self { name: name.into(), subjects, trial, trials: usize::MAX }
    }

    fn at_most(self, trials: usize) -> Self {
        Self { trials, ..self }
    }

    fn job(&self, subject: Subject, round: usize) -> Job {
        let trial = Trial { index: subject, seed: round as u64, ..self.trial.clone() };
        let name = format!("{}.{}.{round}", self.name, subject.name());
        Job { name, arguments: trial.arguments(), secs: expected_secs(&trial) }
    }
}

/// Expected duration of a trial. The remaining time of a run is scaled by the measured speed.
fn expected_secs(trial: &Trial) -> f64 {
    let slow = if trial.index == Subject::Positional { 2.0 } else { 1.0 };
    let more = |measure: &Measure| match measure {
        Measure::Churn => trial.turnovers as f64,
        Measure::Heal | Measure::RemoveRandom => 3.0,
        _ => 1.0,
    };
    let work = trial.measure.iter().map(more).sum::<f64>();
    let fixed =
        if trial.measure.contains(&Measure::Writer) { trial.asking_ms as f64 / 250.0 } else { 0.3 };
    fixed + work * slow * MILLION_SECS * trial.pairs as f64 / 1e6
}

fn groups(size: Size, trace: Option<PathBuf>) -> Vec<Group> {
    let trial = |workload, measure: &[Measure]| Trial {
        index: Subject::Kvasir,
        workload,
        pairs: size.pairs,
        workers: 64,
        measure: measure.to_vec(),
        questions: size.questions,
        turnovers: size.turnovers,
        asking_ms: size.asking_ms,
        trace: None,
        seed: 1,
    };
    let mut groups = Vec::new();
    for kind in Kind::ALL {
        let name = |what| format!("{}-{what}", kind.name());
        let base = [Measure::Lookup, Measure::RemoveTail];
        groups.push(Group::new(name("base"), ALL, trial(kind, &base)));
        for (what, measure) in [
            ("scattered", Measure::RemoveScattered),
            ("events", Measure::RemoveEvents),
            ("random", Measure::RemoveRandom),
        ] {
            groups.push(Group::new(name(what), ALL, trial(kind, &[measure])));
        }
        groups.push(Group::new(name("writer"), FAST, trial(kind, &[Measure::Writer])));
        let shards = trial(kind, &base);
        groups.push(Group::new(name("shards"), SHARDED, shards).at_most(FEW));
    }
    for kind in Kind::ALL {
        let group = |what: &str, subjects, measure| {
            let name = format!("{}-{what}", kind.name());
            Group::new(name, subjects, trial(kind, &[measure]))
        };
        groups.push(group("cold", FAST, Measure::Cold).at_most(FEW));
        groups.push(group("churn", FAST, Measure::Churn));
        groups.push(group("heal", ALL, Measure::Heal).at_most(FEW));
    }
    for kind in [Kind::Distinct, Kind::Shared8] {
        let mut many = trial(kind, &[Measure::Lookup, Measure::RemoveTail]);
        many.workers = MANY_WORKERS;
        groups.push(Group::new(format!("{}-1000", kind.name()), FAST, many).at_most(FEW));
    }
    for &pairs in size.sweep {
        let sweep = Trial { pairs, ..trial(Kind::Distinct, &[Measure::Lookup]) };
        let subjects = if pairs < LARGE_PAIRS { FAST } else { LARGE };
        let name = format!("size-{}k", pairs / 1_000);
        groups.push(Group::new(name, subjects, sweep).at_most(FEW));
    }
    if trace.is_some() {
        let replay = Trial { trace, ..trial(Kind::Distinct, &[Measure::Trace]) };
        groups.push(Group::new("trace", ALL, replay).at_most(FEW));
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn planned(trials: usize, groups: &[&str], index: &[Subject]) -> Vec<Job> {
        let groups = groups.iter().map(|&group| group.to_owned()).collect();
        let index = index.to_vec();
        plan(&Plan { trials, quick: false, groups, index, trace: None }).expect("known groups")
    }

    #[test]
    fn trials_take_turns() {
        let jobs = planned(2, &["distinct-base"], LARGE);
        let names: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
        let wanted = ["kvasir.1", "chain.1", "kvasir.2", "chain.2"];
        assert_eq!(names, wanted.map(|name| format!("distinct-base.{name}")));
    }

    #[test]
    fn every_trial_has_a_name_of_its_own() {
        let jobs = planned(5, &[], &[]);
        let names: HashSet<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
        assert_eq!(names.len(), jobs.len());
    }

    #[test]
    fn the_largest_size_has_few_trials_of_few_indexes() {
        let jobs = planned(5, &["size-50000k"], &[]);
        assert_eq!(jobs.len(), LARGE.len() * FEW);
    }

    #[test]
    fn groups_that_are_not_there_are_an_error() {
        let groups = vec!["nothing".to_owned()];
        let error = plan(&Plan { trials: 1, quick: true, groups, index: Vec::new(), trace: None });
        assert!(error.is_err());
    }
}
