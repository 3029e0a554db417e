//! The parts of a run: their jobs, and the program that prepares their results.

use crate::job::Job;
use anyhow::{Context, Result, bail, ensure};
use bench_figures::{Outcome, Part, Raw};
use clap::ValueEnum;
use serde::Deserialize;
use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Minimum timeout of a job.
const LIMIT_MIN: Duration = Duration::from_secs(600);
/// A job is ended after this multiple of its expected duration.
const LIMIT_FACTOR: f64 = 10.0;

/// A part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    /// The index compared with published ones.
    Index,
    /// The server compared with Dynamo's.
    Service,
    /// `FindMatches` compared with a bare echo.
    Load,
    /// An agent between an engine and an index.
    Agent,
    /// Growth with blocks, workers and models.
    Scale,
    /// Micro-benchmarks as ratios.
    Ratios,
    /// Locks around the index.
    Locks,
}

/// Settings for all parts.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Folder of the product's release builds: indexer-server, kvbm-agent, load, agent, ratios.
    pub(crate) product: PathBuf,
    /// Folder of the peers' release builds: peers-index, peers-service.
    pub(crate) peers: PathBuf,
    /// Path of the built locks bench.
    pub(crate) locks: Option<PathBuf>,
    /// Python interpreter for Dynamo's indexer.
    pub(crate) dynamo_python: Option<PathBuf>,
    pub(crate) trials: usize,
    pub(crate) quick: bool,
    /// Arguments for `peers-index plan`.
    pub(crate) plan: Vec<String>,
    /// Folder for logs, and for the output of jobs that write to files.
    pub(crate) scratch: PathBuf,
}

/// One line of output of `peers-index plan`.
#[derive(Debug, Deserialize)]
struct Planned {
    name: String,
    arguments: Vec<String>,
    secs: f64,
}

impl Name {
    pub(crate) const ALL: [Self; 7] = [
        Self::Index,
        Self::Service,
        Self::Load,
        Self::Agent,
        Self::Scale,
        Self::Ratios,
        Self::Locks,
    ];

    /// Name of the part on the command line.
    pub(crate) fn text(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Identifies the measuring and the measured programs by a hash.
    pub(crate) fn programs(self, settings: &Settings) -> Result<String> {
        let product = |name: &str| settings.product.join(name);
        let peers = |name: &str| settings.peers.join(name);
        let programs = match self {
            Self::Index => vec![peers("peers-index")],
            Self::Service => vec![peers("peers-service"), product("indexer-server")],
            Self::Load | Self::Scale => vec![product("load"), product("indexer-server")],
            Self::Agent => {
                vec![product("agent"), product("kvbm-agent"), product("indexer-server")]
            }
            Self::Ratios => vec![product("ratios")],
            Self::Locks => vec![settings.locks.clone().context("--locks is not given")?],
        };
        hash(&programs)
    }

    /// Jobs of the part, in order.
    pub(crate) fn jobs(self, settings: &Settings) -> Result<Vec<Job>> {
        match self {
            Self::Index => index_jobs(settings),
            Self::Service => service_jobs(settings),
            Self::Load => Ok(own_jobs(settings, "load", (190.0, 60.0))),
            Self::Agent => Ok(own_jobs(settings, "agent", (170.0, 40.0))),
            Self::Scale => {
                let program = settings.product.join("load");
                let quick = settings.quick.then(|| "--quick".to_owned());
                let arguments = ["scale", "--json"].map(str::to_owned).into_iter().chain(quick);
                let secs = if settings.quick { 10.0 } else { 75.0 };
                Ok(vec![job("scale".to_owned(), program, arguments.collect(), secs)])
            }
            Self::Ratios => {
                let program = settings.product.join("ratios");
                Ok(vec![job("ratios".to_owned(), program, vec!["--json".to_owned()], 10.0)])
            }
            Self::Locks => {
                let program = settings.locks.clone().context("--locks is not given")?;
                let quick = settings.quick.then(|| "--quick".to_owned());
                let arguments = ["--bench", "--json"].map(str::to_owned).into_iter().chain(quick);
                let secs = if settings.quick { 12.0 } else { 35.0 };
                Ok(vec![job("locks".to_owned(), program, arguments.collect(), secs)])
            }
        }
    }

    /// Results of the part's trials.
    pub(crate) fn report(self, settings: &Settings, folder: &Path) -> Result<Part> {
        let folder_text = folder.display().to_string();
        let quick = settings.quick.then_some("--quick");
        let arguments = ["report", &folder_text].into_iter();
        let program = match self {
            Self::Index => {
                let arguments = arguments.chain(quick);
                return printed(&settings.peers.join("peers-index"), arguments);
            }
            Self::Service => settings.peers.join("peers-service"),
            Self::Load | Self::Agent => settings.product.join(self.text()),
            Self::Scale | Self::Ratios | Self::Locks => {
                return whole(self, &Raw::read_all(folder)?);
            }
        };
        printed(&program, arguments)
    }
}

/// Identifies programs by a hash of their content.
pub(crate) fn hash(programs: &[PathBuf]) -> Result<String> {
    let mut hasher = DefaultHasher::new();
    for program in programs {
        let bytes = fs::read(program).with_context(|| format!("read {}", program.display()))?;
        hasher.write(&bytes);
    }
    Ok(format!("{:016x}", hasher.finish()))
}

pub(crate) fn job(name: String, program: PathBuf, arguments: Vec<String>, secs: f64) -> Job {
    let limit = LIMIT_MIN.max(Duration::from_secs_f64(secs * LIMIT_FACTOR));
    Job { name, program, arguments, secs, limit, out: None }
}

/// Jobs of the index part, as `peers-index` plans them.
fn index_jobs(settings: &Settings) -> Result<Vec<Job>> {
    let program = settings.peers.join("peers-index");
    let mut plan = Command::new(&program);
    plan.args(["plan", "--trials", &settings.trials.to_string()]).args(&settings.plan);
    plan.args(settings.quick.then_some("--quick"));
    let output = plan.output().with_context(|| format!("start {}", program.display()))?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let planned: Result<Vec<Planned>, _> = text.lines().map(serde_json::from_str).collect();
    let planned = planned.context("read the plan")?;
    let job = |at: Planned| job(at.name, program.clone(), at.arguments, at.secs);
    Ok(planned.into_iter().map(job).collect())
}

/// Jobs of one trial of the service: server, number of publishers, expected seconds.
const SERVICE_JOBS: [(&str, usize, f64); 4] =
    [("dynamo", 64, 80.0), ("kvasir", 64, 32.0), ("dynamo", 2_048, 40.0), ("kvasir", 2_048, 20.0)];

fn service_jobs(settings: &Settings) -> Result<Vec<Job>> {
    let python = settings.dynamo_python.as_ref();
    let python =
        python.context("Dynamo's indexer is not installed: --dynamo-python is not given")?;
    let mut jobs = Vec::new();
    for trial in 1..=settings.trials {
        for (server, publishers, secs) in SERVICE_JOBS {
            let paths = [
                ("--indexer-server", settings.product.join("indexer-server")),
                ("--dynamo-python", python.clone()),
                ("--logs", settings.scratch.join("logs")),
            ];
            let numbers = [
                ("--server", server.to_owned()),
                ("--trial", trial.to_string()),
                ("--publishers", publishers.to_string()),
            ];
            let paths = paths.map(|(flag, path)| (flag, path.display().to_string()));
            let flags = numbers.into_iter().chain(paths);
            let flags = flags.flat_map(|(flag, value)| [flag.to_owned(), value]);
            let quick = settings.quick.then(|| "--quick".to_owned());
            let arguments = ["trial".to_owned()].into_iter().chain(flags).chain(quick).collect();
            let secs = if settings.quick { secs / 6.0 } else { secs };
            let program = settings.peers.join("peers-service");
            jobs.push(job(
                format!("service.{server}.{publishers}.{trial}"),
                program,
                arguments,
                secs,
            ));
        }
    }
    Ok(jobs)
}

/// One job per trial, for a program that measures its complete part at once. It takes `secs` seconds, or `quick_secs`
/// in a quick run.
fn own_jobs(settings: &Settings, name: &str, (secs, quick_secs): (f64, f64)) -> Vec<Job> {
    let of_trial = |trial: usize| {
        let out = settings.scratch.join(format!("{name}.jsonl"));
        let report = settings.scratch.join(format!("{name}.md"));
        let flags = [
            ("--trials", "1".to_owned()),
            ("--first-trial", trial.to_string()),
            ("--out", out.display().to_string()),
            ("--report", report.display().to_string()),
        ];
        let flags = flags.map(|(flag, value)| [flag.to_owned(), value]).into_iter().flatten();
        let quick = settings.quick.then(|| "--quick".to_owned());
        let secs = if settings.quick { quick_secs } else { secs };
        let program = settings.product.join(name);
        let name = format!("{name}.{trial}");
        let job = job(name, program, flags.chain(quick).collect(), secs);
        Job { out: Some(out), ..job }
    };
    (1..=settings.trials).map(of_trial).collect()
}

/// The part that a program prints.
fn printed<'a>(program: &Path, arguments: impl Iterator<Item = &'a str>) -> Result<Part> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("start {}", program.display()))?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    serde_json::from_slice(&output.stdout).context("read what goes into the report")
}

/// The part that its only job printed completely.
fn whole(name: Name, all: &[Raw]) -> Result<Part> {
    match all {
        [] => Ok(Part::default()),
        [Raw { outcome: Outcome::Failed(reason), .. }] => {
            let incidents = vec![(name.text(), reason.clone())];
            Ok(Part { title: name.text(), incidents, ..Part::default() })
        }
        [Raw { outcome: Outcome::Done(values), .. }] => match values.as_slice() {
            [value] => Ok(serde_json::from_value(value.clone())?),
            _ => bail!("{} printed {} lines, not one", name.text(), values.len()),
        },
        _ => bail!("{} trials of {}, not one", all.len(), name.text()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::lines;

    fn raw(text: &str) -> Raw {
        let name = "ratios".to_owned();
        let identity = String::new();
        Raw { name, identity, secs: 1.0, outcome: lines(text) }
    }

    #[test]
    fn a_whole_part_is_absent_failed_or_there() {
        assert_eq!(whole(Name::Ratios, &[]).expect("nothing"), Part::default());
        let failed = whole(Name::Ratios, &[raw("")]).expect("a failure");
        assert_eq!(failed.incidents.len(), 1);
        let part = Part { title: "Ratios".to_owned(), ..Part::default() };
        let text = serde_json::to_string(&part).expect("plain data");
        assert_eq!(whole(Name::Ratios, &[raw(&text)]).expect("a part"), part);
        assert!(whole(Name::Ratios, &[raw("1\n2")]).is_err());
    }
}
