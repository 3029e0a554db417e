//! Runs every unfinished job of every part, then writes the report of all results.

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

/// Default number of trials of each kind.
const TRIALS: u16 = 5;
/// Exit code of an interrupted run, as shells report SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;

/// Runs all benches, one after the other, and writes one report. Results of an earlier run with the same programs are
/// reused.
#[derive(Debug, Parser)]
#[command(name = "benches/report")]
pub(crate) struct Options {
    /// Quick check that everything works, in a few minutes: small sizes, one trial of each kind.
    #[arg(long)]
    quick: bool,
    /// Run only these parts.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Name>,
    /// Maximum number of trials of each kind: 5 by default, fewer for long trials. With --against: number of pairs of
    /// trials, 11 by default, at least 5.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=99))]
    trials: Option<u16>,
    /// Compare this build with another one instead: a short set of trials of both in turn, about 10 minutes. FOLDER
    /// contains the other build's programs indexer-server and peers-index, or is its target folder. The exit code is 1
    /// if a row is worse or was not measured.
    #[arg(long, value_name = "FOLDER",
        conflicts_with_all = ["quick", "only", "groups", "index", "trace", "fresh", "report_only"])]
    against: Option<PathBuf>,
    /// With --against: a row is worse if the complete interval of its ratio lies beyond this many percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 3.0, requires = "against")]
    bound: f64,
    /// Part index: only groups of trials whose name contains one of these, for example distinct-base,churn.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    groups: Vec<String>,
    /// Part index: only these indexes, from kvasir, kvasir-2, kvasir-4, chain, crtc and positional.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    index: Vec<String>,
    /// Part index: also play this recorded trace in the Mooncake form.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Repeat all measurements, even if results exist.
    #[arg(long)]
    fresh: bool,
    /// Measure nothing: write the report again from existing results.
    #[arg(long)]
    report_only: bool,
    /// Folder for raw results and the report.
    #[arg(long, value_name = "FOLDER", overrides_with = "out")]
    out: PathBuf,
    /// Name of the measured build, for the report.
    #[arg(long, value_name = "NAME", default_value = "unknown", hide = true)]
    commit: String,
    /// Day of the run, for the report.
    #[arg(long, value_name = "DAY", default_value = "unknown", hide = true)]
    date: String,
    /// File with explanations of missed targets.
    #[arg(long, value_name = "FILE", hide = true)]
    explanations: PathBuf,
    /// Folder of the product's release builds.
    #[arg(long, value_name = "FOLDER", hide = true)]
    product: PathBuf,
    /// Path of the built locks bench.
    #[arg(long, value_name = "FILE", hide = true)]
    locks: Option<PathBuf>,
    /// Python interpreter for Dynamo's indexer.
    #[arg(long, value_name = "FILE", hide = true)]
    dynamo_python: Option<PathBuf>,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// All measurements succeeded.
    Good,
    /// A measurement failed, or is worse than another build's; the report shows which.
    Failed,
    /// The run was interrupted; its results so far are kept.
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

/// Runs unfinished jobs and writes the report.
pub(crate) fn run(options: &Options) -> Result<End> {
    listen_for_signals()?;
    if let Some(against) = &options.against {
        return Ok(match compare::run(&options.comparison(against))? {
            Some(true) => End::Good,
            Some(false) => End::Failed,
            None => End::Interrupted,
        });
    }
    // Results of a quick run are never mixed with others.
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

/// Results of a part's trials, and whether other programs than the current ones made them.
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

/// A part with its planned jobs.
struct Planned {
    name: Name,
    programs: String,
    jobs: Vec<Job>,
    folder: PathBuf,
}

impl Planned {
    /// Drops results of other programs, or all results if `fresh`.
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

    /// Runs the unfinished jobs.
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

/// Whether a trial with the same programs and arguments has succeeded.
fn is_done(path: &Path, identity: &str) -> bool {
    Raw::read(path)
        .is_ok_and(|raw| raw.identity == identity && matches!(raw.outcome, Outcome::Done(_)))
}

/// Ends the run at SIGINT and SIGTERM, which a thread waits for.
fn listen_for_signals() -> Result<()> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    // Threads started later inherit the mask; child processes do not.
    signals.thread_block().context("block signals")?;
    let wait = move || {
        if signals.wait().is_ok() {
            STOP.store(true, Ordering::Relaxed);
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(wait).context("start a thread")?;
    Ok(())
}
