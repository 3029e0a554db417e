//! Compares another build with this one: runs the same short trials of both in turn, and computes a ratio per row.

mod interval;
mod rows;

use crate::job::Job;
use crate::machine;
use crate::progress::Progress;
use anyhow::{Context, Result, ensure};
use bench_figures::number::{median, short};
use bench_figures::{Incident, Outcome, Table};
use interval::{Interval, PAIRS_MIN, Verdict};
use rows::{Driver, Kind, Programs, ROWS, Row};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Default number of pairs of trials.
const PAIRS: u16 = 11;
const THIS: &str = "this";
const OTHER: &str = "other";
const REPORT: &str = "against.md";
const METHOD: &str = "Each trial runs with both builds, one directly after the other, in alternating order. \
    The ratio is the cost of the same work with this build, as a multiple of its cost with the other one: above 1 is \
    worse. The table shows medians; the interval contains the true median of the ratios with a probability of at least \
    95 % (5 pairs: 94 %). *Worse* means that the whole interval lies above the bound.";

/// A trial of both builds: the lines that each printed.
type Pair = (Kind, Vec<serde_json::Value>, Vec<serde_json::Value>);

/// Settings of a comparison.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Folder of the other build's programs.
    pub(crate) against: PathBuf,
    /// Folder of this build's product programs.
    pub(crate) product: PathBuf,
    /// Number of pairs of trials.
    pub(crate) pairs: Option<u16>,
    /// A row is worse if its ratio is beyond this, in percent.
    pub(crate) bound: f64,
    /// Folder for raw results and the table.
    pub(crate) out: PathBuf,
    /// Name of this build, and the day, for the table.
    pub(crate) title: String,
}

/// Runs all pairs of trials, and writes and prints the table. Returns whether every row was measured and is not worse;
/// `None` if the run was interrupted.
pub(crate) fn run(settings: &Settings) -> Result<Option<bool>> {
    let pairs = usize::from(settings.pairs.unwrap_or(PAIRS));
    ensure!(pairs >= PAIRS_MIN, "--against needs at least {PAIRS_MIN} pairs: --trials {PAIRS_MIN}");
    ensure!(settings.bound >= 0.0, "--bound must not be negative");
    let against = &settings.against;
    let own = std::env::current_exe().context("find our own folder")?;
    let own = own.parent().context("a folder")?;
    let this = Programs {
        indexer_server: settings.product.join("indexer-server"),
        peers_index: own.join("peers-index"),
    };
    let other = Programs {
        indexer_server: find(against, "indexer-server")?,
        peers_index: find(against, "peers-index")?,
    };
    let measuring = Measuring::new(&settings.out, [&this, &other])?;
    let machine = machine::description();
    let jobs: Vec<(Kind, [Job; 2])> = (1..=pairs)
        .flat_map(|pair| Kind::ALL.map(|kind| (kind, pair)))
        .map(|(kind, pair)| {
            let driver =
                Driver { program: own.join("peers-service"), logs: measuring.logs.clone() };
            let job = |build, programs| kind.job(build, pair, programs, &driver);
            (kind, in_order(pair, [job(THIS, &this), job(OTHER, &other)]))
        })
        .collect();
    let Some((measured, failures)) = measuring.all(&jobs)? else {
        eprintln!("interrupted: the next run measures everything again");
        return Ok(None);
    };
    let comparison = Comparison::new(&measured, settings.bound / 100.0);
    let failed = failures.iter().map(|(name, reason)| format!("- failed: {name}: {reason}\n"));
    let failed: String = failed.collect();
    let text = format!("{}\n{failed}{}\n", comparison.table, comparison.summary(settings.bound));
    let [this, other] = &measuring.programs;
    let same = if this == other { " **Both are the same programs.**" } else { "" };
    let head = format!(
        "# This build beside another one\n\n{}; {machine}\n\nThis: {this}. Other: {other} ({}).{same}\n\n\
        {METHOD}\n\n",
        settings.title,
        against.display(),
    );
    let path = settings.out.join(REPORT);
    fs::write(&path, head + &text).with_context(|| format!("write {}", path.display()))?;
    println!("{text}{}", path.display());
    Ok(Some(comparison.is_good() && failures.is_empty()))
}

/// A program in a folder of programs, or in a target folder of cargo.
fn find(folder: &Path, name: &str) -> Result<PathBuf> {
    let places = ["", "release", "peers/release"].map(|place| folder.join(place).join(name));
    let found = places.into_iter().find(|path| path.is_file());
    found.with_context(|| {
        format!(
            "{} has no {name}, nor have its folders release and peers/release: benches/README.md says how to build it",
            folder.display()
        )
    })
}

/// Order of the builds: this build goes first in odd pairs.
fn in_order(pair: usize, [this, other]: [Job; 2]) -> [Job; 2] {
    if pair.is_multiple_of(2) { [other, this] } else { [this, other] }
}

/// Folders and programs of the trials.
struct Measuring {
    raw: PathBuf,
    scratch: PathBuf,
    logs: PathBuf,
    /// Hashes of this build's programs and of the other build's.
    programs: [String; 2],
}

impl Measuring {
    /// Removes the results of an earlier run.
    fn new(out: &Path, programs: [&Programs; 2]) -> Result<Self> {
        let raw = out.join("raw-against");
        let scratch = out.join("scratch");
        let logs = scratch.join("logs");
        if raw.exists() {
            fs::remove_dir_all(&raw).with_context(|| format!("remove {}", raw.display()))?;
        }
        for folder in [&raw, &logs] {
            fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        }
        let [this, other] = programs;
        Ok(Self { raw, scratch, logs, programs: [this.hash()?, other.hash()?] })
    }

    /// Runs all trials; none if the run was interrupted. A pair with a failed trial has no results.
    fn all(&self, jobs: &[(Kind, [Job; 2])]) -> Result<Option<(Vec<Pair>, Vec<Incident>)>> {
        let mut progress = Progress::new(jobs.iter().flat_map(|(_, pair)| pair));
        let mut measured = Vec::new();
        let mut failures = Vec::new();
        for (kind, pair) in jobs {
            let mut this = None;
            let mut other = None;
            for job in pair {
                progress.begin("against", job);
                let is_this = job.name.ends_with(THIS);
                let identity = job.identity(&self.programs[usize::from(!is_this)]);
                let Some(raw) = job.run(identity, &self.scratch)? else { return Ok(None) };
                progress.end(job, Some(Duration::from_secs_f64(raw.secs)));
                raw.write(&self.raw)?;
                match raw.outcome {
                    Outcome::Done(lines) if is_this => this = Some(lines),
                    Outcome::Done(lines) => other = Some(lines),
                    Outcome::Failed(reason) => {
                        eprintln!("    failed: {reason}");
                        failures.push((raw.name, reason));
                    }
                }
            }
            measured.extend(this.zip(other).map(|(this, other)| (*kind, this, other)));
        }
        Ok(Some((measured, failures)))
    }
}

/// Results of all rows.
struct Comparison {
    table: Table,
    worse: Vec<&'static str>,
    /// Rows without enough results.
    absent: Vec<&'static str>,
}

impl Comparison {
    fn new(measured: &[Pair], bound: f64) -> Self {
        let heads = ["row", "this", "other", "ratio", "interval", "pairs", ""];
        let mut comparison =
            Self { table: Table::new(heads), worse: Vec::new(), absent: Vec::new() };
        for row in ROWS {
            comparison.add(row, &figures(row, measured), bound);
        }
        comparison
    }

    fn add(&mut self, row: &Row, figures: &[(f64, f64)], bound: f64) {
        let ratios: Vec<f64> =
            figures.iter().map(|&(this, other)| row.cost_ratio(this, other)).collect();
        let interval = Interval::of(&ratios);
        let verdict = Verdict::of(interval, bound);
        match verdict {
            Verdict::Worse => self.worse.push(row.title),
            Verdict::NotMeasured => self.absent.push(row.title),
            Verdict::NotWorse | Verdict::Better => {}
        }
        let side = |of: fn(&(f64, f64)) -> f64| {
            let figure = median(&figures.iter().map(of).collect::<Vec<_>>());
            if figures.is_empty() { String::new() } else { short(figure) }
        };
        self.table.row([
            row.title.to_owned(),
            side(|&(this, _)| this),
            side(|&(_, other)| other),
            interval.map_or(String::new(), |at| format!("{:.3}", at.median)),
            interval.map_or(String::new(), |at| format!("{:.3} to {:.3}", at.low, at.high)),
            ratios.len().to_string(),
            verdict.text().to_owned(),
        ]);
    }

    /// Whether every row was measured and is not worse.
    fn is_good(&self) -> bool {
        self.worse.is_empty() && self.absent.is_empty()
    }

    fn summary(&self, bound: f64) -> String {
        let list =
            |rows: &[&str]| format!("{} of {} rows: {}", rows.len(), ROWS.len(), rows.join("; "));
        let absent = match self.absent.as_slice() {
            [] => String::new(),
            absent => format!("not measured: {}\n", list(absent)),
        };
        let worse = match self.worse.as_slice() {
            [] if self.absent.is_empty() => format!("not worse: no row, by more than {bound} %"),
            [] => format!("not worse: no measured row, by more than {bound} %"),
            worse => format!("worse by more than {bound} %: {}", list(worse)),
        };
        absent + &worse
    }
}

/// A row's results of this build and of the other one, for each pair that has both.
fn figures(row: &Row, measured: &[Pair]) -> Vec<(f64, f64)> {
    let of_kind = measured.iter().filter(|(kind, ..)| *kind == row.kind);
    of_kind.filter_map(|(_, this, other)| row.figure(this).zip(row.figure(other))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Five pairs of a server whose queries take `ratio` times the other build's time.
    fn measured(ratio: f64) -> Vec<Pair> {
        let lines = |factor: f64| {
            let of_server = ROWS.iter().filter(|row| row.kind == Kind::Server);
            of_server.map(|row| json!({"measure": row.name(), "value": 100.0 * factor})).collect()
        };
        let noise = [1.00, 1.01, 0.99, 1.005, 0.995];
        noise.map(|noise| (Kind::Server, lines(ratio * noise), lines(1.0))).to_vec()
    }

    #[test]
    fn a_slower_server_is_worse_and_rows_without_figures_are_named() {
        let same = Comparison::new(&measured(1.0), 0.03);
        assert_eq!(same.worse, [""; 0]);
        let index = ROWS.iter().filter(|row| row.kind != Kind::Server).count();
        assert_eq!(same.absent.len(), index);
        let summary = same.summary(3.0);
        assert!(summary.starts_with(&format!("not measured: {index} of {} rows", ROWS.len())));
        assert!(summary.ends_with("not worse: no measured row, by more than 3 %"), "{summary}");
        assert!(!same.is_good());

        let slower = Comparison::new(&measured(1.06), 0.03);
        assert!(slower.worse.contains(&"query of 256 hashes, p50 µs"), "{:?}", slower.worse);
        // Blocks per second are a rate: more is better.
        assert!(!slower.worse.contains(&"ingest by a server, blocks / CPU s"));
        assert!(slower.table.to_string().contains("better"), "{}", slower.table);
    }

    #[test]
    fn builds_take_turns() {
        let job = |name: &str| Job {
            name: name.to_owned(),
            program: PathBuf::new(),
            arguments: Vec::new(),
            secs: 1.0,
            limit: Duration::ZERO,
            out: None,
        };
        let first = |pair| in_order(pair, [job(THIS), job(OTHER)])[0].name.clone();
        assert_eq!([1, 2, 3].map(first), [THIS, OTHER, THIS]);
    }

    #[test]
    fn programs_are_found_in_a_target_folder() {
        let folder = std::env::temp_dir().join(format!("bench-report-{}", std::process::id()));
        let release = folder.join("peers/release");
        fs::create_dir_all(&release).expect("a folder");
        fs::write(release.join("peers-index"), "").expect("a file");
        assert_eq!(find(&folder, "peers-index").expect("a program"), release.join("peers-index"));
        let absent = find(&folder, "indexer-server").expect_err("none").to_string();
        assert!(absent.contains("has no indexer-server"), "{absent}");
        fs::remove_dir_all(&folder).expect("the folder");
    }
}
