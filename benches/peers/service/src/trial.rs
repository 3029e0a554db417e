//! Runs one trial: a fresh server, a fresh stream, every measure once.

use crate::measure::{Measurement, quantile_us};
use crate::process::Publishers;
use crate::stream::{EVENT_BLOCKS, Prompt, Stream, WORKERS};
use crate::subject::{Form, Latencies, POLL_INTERVAL, Programs, Subject};
use anyhow::{Context, Result, bail, ensure};
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Timeout for applying all events.
const INGEST_TIMEOUT: Duration = Duration::from_secs(300);
/// Timeout for one series of queries.
const QUERIES_TIMEOUT: Duration = Duration::from_secs(120);
/// Timeout for a dump.
const DUMP_TIMEOUT: Duration = Duration::from_secs(180);
/// Numbers of blocks of the prompts.
const DEPTHS: [u64; 3] = [64, 256, 512];
/// Number of different prompts in a series.
const PROMPTS: usize = 500;
/// Number of queries before a series is measured.
const WARM_UP_REQUESTS: usize = 100;
/// Number of queries in flight on a stream.
const IN_FLIGHT: usize = 16;

/// Settings of all trials.
#[derive(Debug)]
pub struct Plan {
    /// The workload.
    pub stream: Stream,
    /// Number of queries in a series.
    pub requests: usize,
    /// Rates of the background load, in blocks stored and removed per second.
    pub rates: Vec<u64>,
    /// Paths of the servers' programs.
    pub programs: Programs,
    /// Folder for the servers' logs.
    pub logs: PathBuf,
}

/// Runs a trial of one server.
pub async fn run<S: Subject>(plan: &Plan, trial: usize) -> Result<()> {
    let workers = plan.stream.workers();
    let log = plan.logs.join(format!("{}-{workers}-{trial}.log", S::NAME));
    let trial = &mut Trial { plan, trial, name: S::NAME };
    let stream = &plan.stream;
    trial.progress("starts");
    let mut publishers = Publishers::start(stream).await?;
    let mut subject = S::start(&plan.programs, &log).await?;
    for (worker, port) in publishers.ports.iter().enumerate() {
        subject.register(worker, *port).await?;
    }
    publishers.subscribed().await?;
    let ingest = trial.ingest(&mut subject, &mut publishers).await?;
    if stream.workers() != WORKERS {
        let batches = (stream.pairs() / EVENT_BLOCKS) as f64;
        let name = format!("publishers_{}", stream.workers());
        trial.add(&format!("{name}_batches_per_cpu_second"), batches / ingest.cpu.as_secs_f64())?;
        trial.add(&format!("{name}_batches_per_second"), batches / ingest.wall.as_secs_f64())?;
        trial.add(&format!("{name}_resident_bytes"), ingest.resident as f64)?;
        return subject.stop().await;
    }
    trial.add_ingest(&ingest)?;
    for blocks in DEPTHS {
        trial.queries(&mut subject, blocks).await?;
    }
    trial.dump(&mut subject).await?;
    trial.freshness(&mut subject, &mut publishers).await?;
    subject.stop().await
}

/// What it took to apply all events.
struct Ingest {
    wall: Duration,
    cpu: Duration,
    /// Time in which the publishers passed everything to their sockets.
    sent: Duration,
    /// Resident bytes of the server before the events, and in the end.
    before: u64,
    resident: u64,
}

pub(crate) struct Trial<'a> {
    pub(crate) plan: &'a Plan,
    trial: usize,
    name: &'static str,
}

impl Trial<'_> {
    pub(crate) fn add(&mut self, measure: &str, value: f64) -> Result<()> {
        let subject = self.name.to_owned();
        let measure = measure.to_owned();
        Measurement { subject, trial: self.trial, measure, value }.print()
    }

    pub(crate) fn progress(&self, text: &str) {
        eprintln!("trial {} {}: {text}", self.trial, self.name);
    }

    async fn ingest(
        &mut self,
        subject: &mut impl Subject,
        publishers: &mut Publishers,
    ) -> Result<Ingest> {
        let pairs = self.plan.stream.pairs();
        subject.server().idle().await?;
        let before = subject.server().resident_bytes()?;
        let cpu = subject.server().cpu()?;
        let started = Instant::now();
        publishers.go().await?;
        loop {
            let applied = subject.applied_pairs().await?;
            if applied >= pairs {
                break;
            }
            if started.elapsed() > INGEST_TIMEOUT {
                bail!("{applied} of {pairs} pairs arrived within {INGEST_TIMEOUT:?}");
            }
            sleep(POLL_INTERVAL).await;
        }
        let wall = started.elapsed();
        let cpu = subject.server().cpu()? - cpu;
        let sent = publishers.sent().await?;
        subject.server().idle().await?;
        let applied = subject.applied_pairs().await?;
        ensure!(applied == pairs, "{applied} pairs were applied, {pairs} sent");
        let resident = subject.server().resident_bytes()?;
        self.progress(&format!("{pairs} pairs in {wall:.2?}, {cpu:.2?} CPU"));
        Ok(Ingest { wall, cpu, sent, before, resident })
    }

    fn add_ingest(&mut self, ingest: &Ingest) -> Result<()> {
        let count = self.plan.stream.pairs() as f64;
        let grown = ingest.resident.saturating_sub(ingest.before) as f64;
        self.add("ingest_pairs_per_cpu_second", count / ingest.cpu.as_secs_f64())?;
        self.add("ingest_pairs_per_second", count / ingest.wall.as_secs_f64())?;
        self.add("ingest_send_seconds", ingest.sent.as_secs_f64())?;
        self.add("base_resident_bytes", ingest.before as f64)?;
        self.add("resident_bytes_per_pair", grown / count)?;
        self.progress(&format!("{:.1} bytes a pair", grown / count));
        Ok(())
    }

    async fn queries(&mut self, subject: &mut impl Subject, blocks: u64) -> Result<()> {
        for form in [Form::Hashes, Form::Tokens] {
            for pipelined in [false, true] {
                self.series(subject, blocks, form, pipelined).await?;
            }
        }
        Ok(())
    }

    async fn series(
        &mut self,
        subject: &mut impl Subject,
        blocks: u64,
        form: Form,
        pipelined: bool,
    ) -> Result<()> {
        let prompts = self.plan.stream.prompts(blocks, PROMPTS);
        let requests = self.plan.requests;
        let Some(_) = ask(subject, form, &prompts, WARM_UP_REQUESTS, pipelined).await? else {
            return Ok(());
        };
        let cpu = subject.server().cpu()?;
        let asked = Instant::now();
        let asking = ask(subject, form, &prompts, requests, pipelined);
        let taken = timeout(QUERIES_TIMEOUT, asking).await.context("queries take too long")??;
        let wall = asked.elapsed();
        let cpu = subject.server().cpu()? - cpu;
        let Latencies { mut each, wrong } = taken.context("it answered before")?;
        ensure!(wrong == 0, "{wrong} of {requests} answers are wrong");

        let by = match form {
            Form::Hashes => "hashes",
            Form::Tokens => "tokens",
        };
        let way = if pipelined { "_stream" } else { "" };
        let series = format!("query_{by}{way}_{blocks}");
        let cpu_us = cpu.as_secs_f64() * 1e6 / requests as f64;
        let p50_us = quantile_us(&mut each, 0.5).context("no query was made")?;
        let p99_us = quantile_us(&mut each, 0.99).context("no query was made")?;
        self.add(&format!("{series}_cpu_us"), cpu_us)?;
        self.add(&format!("{series}_p50_us"), p50_us)?;
        self.add(&format!("{series}_p99_us"), p99_us)?;
        self.add(&format!("{series}_per_second"), requests as f64 / wall.as_secs_f64())?;
        self.progress(&format!(
            "{series}: {cpu_us:.1} us CPU, p50 {p50_us:.0}, p99 {p99_us:.0} us"
        ));
        Ok(())
    }

    async fn dump(&mut self, subject: &mut impl Subject) -> Result<()> {
        let stream = &self.plan.stream;
        subject.server().idle().await?;
        let resident = subject.server().resident_bytes()?;
        subject.server().reset_peak()?;
        let cpu = subject.server().cpu()?;
        let dumping = subject.dump();
        let dump = timeout(DUMP_TIMEOUT, dumping).await.context("the dump takes too long")??;
        let cpu = subject.server().cpu()? - cpu;
        let grown = subject.server().peak_bytes()?.saturating_sub(resident);
        ensure!(dump.pairs == stream.pairs(), "{} pairs are in the dump", dump.pairs);
        self.add("dump_seconds", dump.wall.as_secs_f64())?;
        self.add("dump_cpu_seconds", cpu.as_secs_f64())?;
        self.add("dump_bytes_per_pair", dump.bytes as f64 / dump.pairs as f64)?;
        self.add("dump_peak_growth_bytes", grown as f64)?;
        self.progress(&format!(
            "dump in {:.2?}, {cpu:.2?} CPU, memory +{:.1} MiB",
            dump.wall,
            grown as f64 / f64::from(1 << 20)
        ));
        Ok(())
    }
}

async fn ask(
    subject: &mut impl Subject,
    form: Form,
    prompts: &[Prompt],
    requests: usize,
    pipelined: bool,
) -> Result<Option<Latencies>> {
    if pipelined {
        subject.ask_pipelined(form, prompts, requests, IN_FLIGHT).await
    } else {
        subject.ask(form, prompts, requests).await.map(Some)
    }
}
