//! Which trials a run consists of.

use crate::trial::{Measure, Subject, Trial};
use crate::workload::Kind;
use peers_report::machine::available_bytes;
use std::path::PathBuf;

const KINDS: [Kind; 3] = [Kind::Distinct, Kind::Shared8, Kind::Prefix64];
const ALL: &[Subject] = &[Subject::Kvasir, Subject::Chain, Subject::Crtc, Subject::Positional];
/// Without the one that is far behind in lookups and never frees.
const FAST: &[Subject] = &[Subject::Kvasir, Subject::Chain, Subject::Crtc];
/// Workers of the large fleet.
pub(crate) const MANY_WORKERS: usize = 1_000;
/// Bytes of the workload per pair of a distinct fleet.
const WORKLOAD_BYTES: usize = 40;

/// How large a run is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) pairs: usize,
    pub(crate) turnovers: usize,
    /// Pairs of the larger indexes.
    pub(crate) sweep: &'static [usize],
}

pub(crate) const FULL: Size = Size {
    pairs: 2_000_000,
    turnovers: 20,
    sweep: &[5_000_000, 10_000_000, 20_000_000, 50_000_000],
};

pub(crate) const QUICK: Size = Size { pairs: 500_000, turnovers: 8, sweep: &[2_000_000] };

/// The same trial with several indexes, one after the other, as often as there are rounds.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) subjects: Vec<Subject>,
    /// With any index and seed.
    pub(crate) trial: Trial,
}

impl Group {
    fn new(name: impl Into<String>, subjects: &[Subject], trial: Trial) -> Self {
        Self { name: name.into(), subjects: subjects.to_vec(), trial }
    }
}

/// All groups of a run.
pub(crate) fn plan(size: Size, trace: Option<PathBuf>) -> Vec<Group> {
    let trial = |workload, measure: &[Measure]| Trial {
        index: Subject::Kvasir,
        workload,
        pairs: size.pairs,
        workers: 64,
        measure: measure.to_vec(),
        questions: 20_000,
        turnovers: size.turnovers,
        trace: None,
        seed: 1,
    };
    let mut groups = Vec::new();
    for kind in KINDS {
        let base = trial(kind, &[Measure::Lookup, Measure::RemoveTail]);
        groups.push(Group::new(format!("{}-base", kind.name()), ALL, base));
        for (name, measure) in [
            ("scattered", Measure::RemoveScattered),
            ("events", Measure::RemoveEvents),
            ("random", Measure::RemoveRandom),
        ] {
            let removal = trial(kind, &[measure]);
            groups.push(Group::new(format!("{}-{name}", kind.name()), ALL, removal));
        }
    }
    for kind in KINDS {
        let name = |what| format!("{}-{what}", kind.name());
        groups.push(Group::new(name("writer"), FAST, trial(kind, &[Measure::Writer])));
        groups.push(Group::new(name("cold"), FAST, trial(kind, &[Measure::Cold])));
        groups.push(Group::new(name("churn"), FAST, trial(kind, &[Measure::Churn])));
        groups.push(Group::new(name("heal"), ALL, trial(kind, &[Measure::Heal])));
    }
    for kind in [Kind::Distinct, Kind::Shared8] {
        let mut many = trial(kind, &[Measure::Lookup, Measure::RemoveTail]);
        many.workers = MANY_WORKERS;
        groups.push(Group::new(format!("{}-1000", kind.name()), FAST, many));
    }
    for &pairs in size.sweep {
        let mut sweep = trial(Kind::Distinct, &[Measure::Lookup]);
        sweep.pairs = pairs;
        groups.push(Group::new(format!("size-{}M", pairs / 1_000_000), ALL, sweep));
    }
    if trace.is_some() {
        let replay = Trial { trace, ..trial(Kind::Distinct, &[Measure::Trace]) };
        groups.push(Group::new("trace", ALL, replay));
    }
    groups
}

/// Whether a trial fits into the memory that is free now, with a fifth to spare.
pub(crate) fn fits(subject: Subject, trial: &Trial) -> bool {
    let per_pair = match subject {
        Subject::Kvasir => 70,
        Subject::Chain => 110,
        Subject::Crtc => 180,
        Subject::Positional => 330,
    };
    let needed = trial.pairs * (per_pair + WORKLOAD_BYTES);
    needed as u64 <= available_bytes() / 5 * 4
}
