//! Runs the trials, each in a fresh process, interleaved: A B C, A B C, ..

use crate::line::Line;
use crate::plan::{FULL, Group, QUICK, fits, plan};
use crate::record::{Head, RAW, Record};
use crate::report;
use crate::trial::{Subject, Trial};
use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use peers_report::Machine;
use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Longest part of a failed trial's complaint that is kept, in bytes.
const COMPLAINT_BYTES_MAX: usize = 400;

/// A run.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Trials of each kind and index.
    #[arg(long, default_value_t = 5)]
    trials: usize,
    /// A quarter of the pairs and fewer turnovers, to see that all works.
    #[arg(long)]
    quick: bool,
    /// Only groups of trials whose name contains one of these, e.g. distinct-base,churn.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only these indexes.
    #[arg(long, value_enum, value_delimiter = ',')]
    index: Vec<Subject>,
    /// Where raw figures, report and plots go; peers-index beside the program if not given.
    #[arg(long)]
    out: Option<PathBuf>,
    /// A trace in the Mooncake form to play as well.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Day to put on the report; today (UTC) if not given.
    #[arg(long)]
    date: Option<String>,
}

/// Runs everything and writes the report.
pub(crate) fn run(run: &Run) -> Result<PathBuf> {
    let size = if run.quick { QUICK } else { FULL };
    let wanted = |name: &str| run.only.iter().any(|only| name.contains(only.as_str()));
    let mut groups = plan(size, run.trace.clone());
    groups.retain(|group| run.only.is_empty() || wanted(&group.name));
    for group in &mut groups {
        group.subjects.retain(|subject| run.index.is_empty() || run.index.contains(subject));
    }
    ensure!(!groups.is_empty(), "--only {:?} matches no group", run.only);
    let out = match &run.out {
        Some(out) => out.clone(),
        None => env::current_exe()?.with_file_name("peers-index-report"),
    };
    fs::create_dir_all(&out).with_context(|| format!("create {}", out.display()))?;
    let path = out.join(RAW);
    let mut raw = File::create(&path).with_context(|| format!("create {}", path.display()))?;
    let head = Head {
        trials: run.trials,
        quick: run.quick,
        pairs: size.pairs,
        sweep: size.sweep.to_vec(),
        ..Head::new(Machine::here(), run.date.clone())
    };
    write(&mut raw, &Record::Run(head))?;
    let mut progress = Progress::new(&groups, run.trials);
    for group in &groups {
        for round in 0..run.trials {
            for &subject in &group.subjects {
                progress.next(subject, group, round);
                write(&mut raw, &one(group, subject, round)?)?;
            }
        }
    }
    report::write(&out)?;
    Ok(out)
}

fn write(raw: &mut File, record: &Record) -> Result<()> {
    writeln!(raw, "{}", serde_json::to_string(record)?).context("write the raw file")
}

/// One trial in a process of its own. The content differs from round to round, not from index to
/// index.
fn one(group: &Group, subject: Subject, round: usize) -> Result<Record> {
    let (index, name) = (subject.name(), group.name.clone());
    if !fits(subject, &group.trial) {
        eprintln!("    skipped: not enough memory");
        return Ok(Record::Skipped { index, group: name });
    }
    let trial = Trial { index: subject, seed: round as u64 + 1, ..group.trial.clone() };
    let output = Command::new(env::current_exe()?)
        .arg("trial")
        .args(trial.arguments())
        .stdin(Stdio::null())
        .output()
        .context("start a trial")?;
    if output.status.success() {
        let line: Line = serde_json::from_slice(&output.stdout).context("read a trial's line")?;
        return Ok(Record::Trial(line));
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    let reason: String = complaint.chars().take(COMPLAINT_BYTES_MAX).collect();
    eprintln!("    failed: {}", reason.trim());
    Ok(Record::Failed { index, group: name, reason })
}

/// Says what is running, how much is done, and how long it took.
struct Progress {
    started: Instant,
    trials: usize,
    all: usize,
    done: usize,
}

impl Progress {
    fn new(groups: &[Group], trials: usize) -> Self {
        let all = groups.iter().map(|group| group.subjects.len() * trials).sum();
        Self { started: Instant::now(), trials, all, done: 0 }
    }

    fn next(&mut self, subject: Subject, group: &Group, round: usize) {
        self.done += 1;
        let secs = self.started.elapsed().as_secs();
        eprintln!(
            "[{:3}/{} {:3}:{:02}] {} {} trial {} of {}",
            self.done,
            self.all,
            secs / 60,
            secs % 60,
            group.name,
            subject.name(),
            round + 1,
            self.trials,
        );
    }
}

impl Trial {
    /// Its command line.
    fn arguments(&self) -> Vec<OsString> {
        let measures: Vec<String> = self.measure.iter().map(name).collect();
        let pairs = [
            ("--index", name(&self.index)),
            ("--workload", name(&self.workload)),
            ("--pairs", self.pairs.to_string()),
            ("--workers", self.workers.to_string()),
            ("--measure", measures.join(",")),
            ("--questions", self.questions.to_string()),
            ("--turnovers", self.turnovers.to_string()),
            ("--seed", self.seed.to_string()),
        ];
        let pairs = pairs.map(|(flag, value)| [flag.to_owned(), value]).into_iter().flatten();
        let trace = self.trace.iter().flat_map(|path| ["--trace".into(), path.into()]);
        pairs.map(OsString::from).chain(trace).collect()
    }
}

impl Subject {
    pub(crate) fn name(self) -> String {
        name(&self)
    }
}

/// As on the command line.
fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
