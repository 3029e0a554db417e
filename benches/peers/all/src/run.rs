//! A run: every job of every part that is not done yet, then the report of all there is.

use crate::compare;
use crate::explanations::Explanations;
use crate::job::{Job, STOP};
use crate::machine;
use crate::part::{Name, Settings};
use crate::progress::Progress;
use crate::report::{Head, Report};
use anyhow::{Context, Result};
use bench_figures::{Outcome, Part, Raw};
use clap::Parser;
use nix::sys::signal::{SigSet, Signal};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

/// Trials of each kind, unless `--trials` says otherwise.
const TRIALS: u16 = 5;
/// Exit code of an interrupted run, as shells report SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;

/// All benches, one after the other, and one report. What an earlier run with the same programs
/// measured is used again.
#[derive(Debug, Parser)]
#[command(name = "benches/report")]
pub(crate) struct Options {
    /// Small, and one trial of each: to see that all works, in a few minutes.
    #[arg(long)]
    quick: bool,
    /// These parts only.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Name>,
    /// Trials of each kind, at most: 5 by default, fewer of those that take long. With --against: pairs of trials, 11 by
    /// default, at least 5.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=99))]
    trials: Option<u16>,
    /// Compare this build with another one instead: a short set of trials of both in turn, about 10 minutes. FOLDER has the
    /// programs indexer-server and peers-index of the other build, or is its target folder. The exit code is 1 if a row is
    /// worse, or was not measured.
    #[arg(long, value_name = "FOLDER",
        conflicts_with_all = ["quick", "only", "groups", "index", "trace", "fresh", "report_only"])]
    against: Option<PathBuf>,
    /// With --against: a row is worse if the whole interval of its ratio lies beyond this many percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 3.0, requires = "against")]
    bound: f64,
    /// Part index: only groups of trials whose name contains one of these, e.g.
    /// distinct-base,churn.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    groups: Vec<String>,
    /// Part index: only these indexes, of kvasir, kvasir-2, kvasir-4, chain, crtc and positional.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    index: Vec<String>,
    /// Part index: a recorded trace in the Mooncake form to play as well.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Measure all again, whatever is there.
    #[arg(long)]
    fresh: bool,
    /// Measure nothing: the report again, of what is there.
    #[arg(long)]
    report_only: bool,
    /// Where raw figures and the report go.
    #[arg(long, value_name = "FOLDER", overrides_with = "out")]
    out: PathBuf,
    /// What is measured, for the report.
    #[arg(long, value_name = "NAME", default_value = "unknown", hide = true)]
    commit: String,
    /// Day of the run, for the report.
    #[arg(long, value_name = "DAY", default_value = "unknown", hide = true)]
    date: String,
    /// Texts for missed bars.
    #[arg(long, value_name = "FILE", hide = true)]
    explanations: PathBuf,
    /// Folder of the product's release builds.
    #[arg(long, value_name = "FOLDER", hide = true)]
    product: PathBuf,
    /// The built bench of that name.
    #[arg(long, value_name = "FILE", hide = true)]
    locks: Option<PathBuf>,
    /// The Python that Dynamo's indexer runs with.
    #[arg(long, value_name = "FILE", hide = true)]
    dynamo_python: Option<PathBuf>,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// All was measured.
    Good,
    /// Something could not be measured, or is worse than another build; the report says what.
    Failed,
    /// It was told to end; what was measured is kept.
    Interrupted,
}

impl Options {
    fn settings(&self, scratch: PathBuf) -> Result<Settings> {
        let own = std::env::current_exe().context("find our own folder")?;
        let list = |flag: &str, names: &[String]| match names {
            [] => Vec::new(),
            names => vec![flag.to_owned(), names.join(",")],
        };
        let mut plan = list("--groups", &self.groups);
        plan.extend(list("--index", &self.index));
        if let Some(trace) = &self.trace {
            plan.extend(["--trace".to_owned(), trace.display().to_string()]);
        }
        Ok(Settings {
            product: self.product.clone(),
            peers: own.parent().context("a folder")?.to_owned(),
            locks: self.locks.clone(),
            dynamo_python: self.dynamo_python.clone(),
            trials: if self.quick { 1 } else { usize::from(self.trials.unwrap_or(TRIALS)) },
            quick: self.quick,
            plan,
            scratch,
        })
    }

    fn comparison(&self, against: &Path) -> compare::Settings {
        compare::Settings {
            against: against.to_owned(),
            product: self.product.clone(),
            pairs: self.trials,
            bound: self.bound,
            out: self.out.clone(),
            title: format!("{}; commit {}", self.date, self.commit),
        }
    }

    fn wants(&self, name: Name) -> bool {
        !self.report_only && (self.only.is_empty() || self.only.contains(&name))
    }
}

/// Runs what is not done yet and writes the report.
pub(crate) fn run(options: &Options) -> Result<End> {
    listen_for_signals()?;
    if let Some(against) = &options.against {
        return Ok(match compare::run(&options.comparison(against))? {
            Some(true) => End::Good,
            Some(false) => End::Failed,
            None => End::Interrupted,
        });
    }
    // What a quick run measured is never mixed with what another one did.
    let raw = options.out.join(if options.quick { "raw-quick" } else { "raw" });
    let scratch = options.out.join("scratch");
    for folder in [&raw, &scratch] {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    }
    let settings = options.settings(scratch)?;
    let machine = machine::description();
    let mut failures = Vec::new();
    let mut todo = Vec::new();
    for name in Name::ALL.into_iter().filter(|&name| options.wants(name)) {
        match Planned::new(name, &settings, &raw, options.fresh) {
            Ok(planned) => todo.push(planned),
            Err(error) => failures.push((name.text(), format!("{error:#}"))),
        }
    }
    let mut progress = Progress::new(todo.iter().flat_map(|planned| &planned.jobs));
    for planned in &todo {
        if planned.run(&settings, &mut progress)? == End::Interrupted {
            eprintln!("interrupted: the same command goes on where this ended");
            return Ok(End::Interrupted);
        }
    }
    let mut parts = Vec::new();
    for name in Name::ALL {
        match reported(name, &settings, &raw.join(name.text())) {
            Ok(part) => parts.push(part),
            Err(error) => failures.push((name.text(), format!("{error:#}"))),
        }
    }
    let date = options.date.clone();
    let commit = options.commit.clone();
    let quick = options.quick;
    let head = Head { date, machine, commit, quick };
    write(options, head, parts, failures)
}

/// What a part's trials say, and whether other programs made them than those of now.
fn reported(name: Name, settings: &Settings, folder: &Path) -> Result<Part> {
    let mut part = name.report(settings, folder)?;
    let programs = name.programs(settings).unwrap_or_default();
    let all = Raw::read_all(folder)?;
    if all.iter().any(|raw| programs.is_empty() || !raw.identity.starts_with(&programs)) {
        part.notes.insert(0, "**Measured by an earlier run, with other programs.**".to_owned());
    }
    Ok(part)
}

fn write(
    options: &Options,
    head: Head,
    parts: Vec<Part>,
    failures: Vec<(String, String)>,
) -> Result<End> {
    let path = &options.explanations;
    let explanations =
        fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let explanations = Explanations::parse(&explanations);
    let report = Report { head, parts, failures, explanations };
    let path = report.write(&options.out)?;
    println!("{}\n{}", report.summary(), path.display());
    Ok(if report.is_complete() { End::Good } else { End::Failed })
}

/// A part that is to be run.
struct Planned {
    name: Name,
    programs: String,
    jobs: Vec<Job>,
    folder: PathBuf,
}

impl Planned {
    /// Forgets what other programs measured, or all.
    fn new(name: Name, settings: &Settings, raw: &Path, fresh: bool) -> Result<Self> {
        let programs = name.programs(settings)?;
        let jobs = name.jobs(settings)?;
        let folder = raw.join(name.text());
        fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let same = Raw::read(&path).is_ok_and(|raw| raw.identity.starts_with(&programs));
            if fresh || !same {
                fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
            }
        }
        Ok(Self { name, programs, jobs, folder })
    }

    /// Runs the jobs that are not done.
    fn run(&self, settings: &Settings, progress: &mut Progress) -> Result<End> {
        for job in &self.jobs {
            let identity = job.identity(&self.programs);
            if is_done(&Raw::path(&self.folder, &job.name), &identity) {
                progress.end(job, None);
                continue;
            }
            progress.begin(&self.name.text(), job);
            let Some(raw) = job.run(identity, &settings.scratch)? else {
                return Ok(End::Interrupted);
            };
            if let Outcome::Failed(reason) = &raw.outcome {
                eprintln!("    failed: {reason}");
            }
            progress.end(job, Some(Duration::from_secs_f64(raw.secs)));
            raw.write(&self.folder)?;
        }
        Ok(End::Good)
    }
}

/// Whether a trial was made with the same programs and arguments, and ended well.
fn is_done(path: &Path, identity: &str) -> bool {
    Raw::read(path)
        .is_ok_and(|raw| raw.identity == identity && matches!(raw.outcome, Outcome::Done(_)))
}

/// Ends the run at SIGINT and SIGTERM: a thread waits for them.
fn listen_for_signals() -> Result<()> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    // Threads that start later inherit it; children do not.
    signals.thread_block().context("block signals")?;
    let wait = move || {
        if signals.wait().is_ok() {
            STOP.store(true, Ordering::Relaxed);
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(wait).context("start a thread")?;
    Ok(())
}
