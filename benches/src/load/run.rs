//! Executes a run: processes, rounds of measurements, records.

use super::args::Args;
use super::child::Role;
use super::closed::{self, Tally, Window};
use super::fleet::{self, Fleet};
use super::ingest::Publishers;
use super::library::Prompts;
use super::raw::Caller;
use super::record::{Ingested, Record};
use super::report;
use super::shapes::{Question, Questions, SHAPES, Shape};
use super::{echo, open};
use anyhow::{Context, Result};
use kvasir_sim::client::{self, Indexer};
use kvasir_sim::server::Server;
use router_client::Calls;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

pub(super) const FIND: &str = "/kvasir.v1.Indexer/FindMatches";
pub(super) const FIND_STREAM: &str = "/kvasir.v1.Indexer/FindMatchesStream";
/// Server flags. Overload must show as latency, not as rejections; and published blocks must stay after their
/// publishers have ended.
pub(super) const FLAGS: [&str; 4] = ["--limits", "in-flight=65536", "--worker-timeout", "86400s"];
/// Queries in flight in the closed loops.
const IN_FLIGHT: [usize; 3] = [1, 16, 64];
/// Duration of a measurement, and of one in a quick run.
const LENGTH: Duration = Duration::from_secs(1);
const QUICK_LENGTH: Duration = Duration::from_millis(250);
/// Fraction of a closed loop's capacity at which open-loop latencies are measured.
const OPEN_SHARE: f64 = 0.3;
/// Fractions of that capacity for the part `offered`.
const OFFERED: [f64; 8] = [0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.2];
/// Queries in flight in the closed loop that measures the capacity.
const CAPACITY_IN_FLIGHT: usize = 64;

/// A measured server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Index,
    Echo,
}

impl Target {
    const fn name(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::Echo => "echo",
        }
    }
}

/// Form of the queries.
#[derive(Clone, Copy)]
enum Mode {
    Unary,
    Stream,
}

impl Mode {
    const ALL: [Self; 2] = [Self::Unary, Self::Stream];

    const fn name(self) -> &'static str {
        match self {
            Self::Unary => "unary",
            Self::Stream => "stream",
        }
    }
}

/// Amount of load.
#[derive(Clone, Copy)]
enum Load {
    InFlight(usize),
    Rate(f64),
}

/// One measurement.
#[derive(Clone, Copy)]
struct Case {
    part: &'static str,
    trial: usize,
    shape: usize,
    mode: Mode,
    load: Load,
    target: Target,
}

struct Run {
    args: Args,
    server: Server,
    echo: Role,
    indexer: Indexer,
    callers: [Caller; 2],
    shapes: Vec<(Shape, Questions)>,
    out: BufWriter<File>,
    records: Vec<Record>,
    prompts: Prompts,
    begin: Instant,
}

/// Executes the complete run. Returns true if all targets are met.
pub async fn run(args: Args) -> Result<bool> {
    let mut run = Run::prepare(args).await?;
    run.measure().await?;
    run.server.stop().await;
    drop(run.echo);
    run.out.flush()?;
    let (text, met) = report::part(&run.records, Vec::new()).report();
    std::fs::write(&run.args.report, &text)?;
    println!("\n{text}");
    Ok(met)
}

impl Run {
    async fn prepare(args: Args) -> Result<Self> {
        let begin = Instant::now();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Server::start_with(any, any, &FLAGS).await?;
        let mut echo = Role::start(&["echo"])?;
        let echo_address: SocketAddr = echo.line().await?.parse()?;
        let mut indexer = client::connect(server.addresses.grpc).await?;
        let fleet = Fleet::new(args.quick);
        println!("filling the index: {} (worker, block) pairs", fleet.pairs());
        fleet::fill(&mut indexer, server.addresses.grpc, |worker| fleet.events(worker)).await?;
        let mut index = Caller::connect(server.addresses.grpc, FIND, FIND_STREAM).await?;
        let other = Caller::connect(echo_address, echo::UNARY, echo::STREAM).await?;
        let mut shapes = Vec::new();
        for shape in SHAPES {
            let questions = shape.questions(fleet, &mut index).await?;
            let (asked, answered) = questions.sizes();
            println!("{}: {asked} bytes asked, {answered} answered", shape.name);
            shapes.push((shape, questions));
        }
        println!("ready after {:.1} s", begin.elapsed().as_secs_f64());
        let out = BufWriter::new(File::create(&args.out)?);
        let callers = [index, other];
        let records = Vec::new();
        let prompts = Prompts::new(fleet);
        Ok(Self { args, server, echo, indexer, callers, shapes, out, records, prompts, begin })
    }

    async fn measure(&mut self) -> Result<()> {
        let first = self.args.first_trial;
        let trials = first + if self.args.quick { 1 } else { self.args.trials };
        for trial in first..trials {
            println!("trial {trial}, {:.0} s", self.begin.elapsed().as_secs_f64());
            for shape in 0..self.shapes.len() {
                if self.args.has_part("closed") {
                    self.closed(trial, shape).await?;
                }
                if self.args.has_part("open") {
                    self.open(trial, shape).await?;
                }
            }
            if self.args.has_part("offered") {
                self.offered(trial).await?;
            }
            if self.args.has_part("ingest") {
                self.ingest(trial).await?;
            }
            if self.args.has_part("library") {
                self.library(trial).await?;
            }
        }
        Ok(())
    }

    /// The order of the servers, reversed in every other trial.
    const fn order(trial: usize) -> [Target; 2] {
        if trial.is_multiple_of(2) {
            [Target::Echo, Target::Index]
        } else {
            [Target::Index, Target::Echo]
        }
    }

    async fn closed(&mut self, trial: usize, shape: usize) -> Result<()> {
        for mode in Mode::ALL {
            for in_flight in IN_FLIGHT {
                let load = Load::InFlight(in_flight);
                for target in Self::order(trial) {
                    let case = Case { part: "closed", trial, shape, mode, load, target };
                    self.record(case, None).await?;
                }
            }
        }
        Ok(())
    }

    /// Requests per second of a closed loop.
    async fn capacity(&mut self, case: Case) -> Result<f64> {
        let load = Load::InFlight(CAPACITY_IN_FLIGHT);
        let window = Window::after_warm_up(self.length() / 2);
        let tally = self.load(Case { load, ..case }, window).await?;
        Ok(tally.served as f64 / (window.end - window.begin).as_secs_f64())
    }

    async fn open(&mut self, trial: usize, shape: usize) -> Result<()> {
        for mode in Mode::ALL {
            let load = Load::InFlight(CAPACITY_IN_FLIGHT);
            let target = Target::Index;
            let case = Case { part: "open", trial, shape, mode, load, target };
            let rate = self.capacity(case).await? * OPEN_SHARE;
            for target in Self::order(trial) {
                let case = Case { load: Load::Rate(rate), target, ..case };
                self.record(case, None).await?;
            }
        }
        Ok(())
    }

    /// Runs the first shape's queries at increasing rates, beyond the server's capacity. Each target has its own
    /// capacity.
    async fn offered(&mut self, trial: usize) -> Result<()> {
        for mode in Mode::ALL {
            for target in Self::order(trial) {
                let load = Load::InFlight(CAPACITY_IN_FLIGHT);
                let case = Case { part: "offered", trial, shape: 0, mode, load, target };
                let capacity = self.capacity(case).await?;
                for share in OFFERED {
                    self.record(Case { load: Load::Rate(capacity * share), ..case }, None).await?;
                }
            }
        }
        Ok(())
    }

    /// Runs the same queries at the same rate, with and without published events. The echo shows the cost of sharing
    /// the machine with the publishers.
    async fn ingest(&mut self, trial: usize) -> Result<()> {
        for mode in Mode::ALL {
            let load = Load::InFlight(CAPACITY_IN_FLIGHT);
            let target = Target::Index;
            let case = Case { part: "ingest", trial, shape: 0, mode, load, target };
            let load = Load::Rate(self.capacity(case).await? * OPEN_SHARE);
            for target in Self::order(trial) {
                self.record(Case { part: "quiet", load, target, ..case }, None).await?;
            }
            let rate = self.args.ingest_rate;
            let publishers = Publishers::start(self.server.addresses.grpc, rate).await?;
            for target in Self::order(trial) {
                self.record(Case { load, target, ..case }, Some(&publishers)).await?;
            }
            publishers.stop().await?;
        }
        Ok(())
    }

    /// Measures the client library, with single calls and with its stream.
    async fn library(&mut self, trial: usize) -> Result<()> {
        for (mode, calls) in [("unary", Calls::Single), ("stream", Calls::Pipelined)] {
            for in_flight in IN_FLIGHT {
                let window = Window::after_warm_up(self.length());
                let cpu = window.cpu_time(self.process_id(Target::Index)?);
                let asked =
                    self.prompts.closed(self.server.addresses.grpc, calls, in_flight, window);
                let (tally, cpu) = tokio::try_join!(asked, cpu)?;
                let record = Record::new(&tally, cpu, window.end - window.begin);
                let place = ("router-client", mode, Target::Index.name());
                self.keep(record.at(("library", trial), place, (in_flight, None)))?;
            }
        }
        Ok(())
    }

    const fn length(&self) -> Duration {
        if self.args.quick { QUICK_LENGTH } else { LENGTH }
    }

    fn process_id(&self, target: Target) -> Result<u32> {
        let id = match target {
            Target::Index => self.server.process_id(),
            Target::Echo => self.echo.process_id(),
        };
        id.context("a process of the run ended early")
    }

    fn questions(&self, case: Case) -> Result<&Arc<[Question]>> {
        let (_, questions) = self.shapes.get(case.shape).context("a shape")?;
        Ok(match (case.target, case.mode) {
            (Target::Index, _) => &questions.index,
            (Target::Echo, Mode::Unary) => &questions.echo,
            (Target::Echo, Mode::Stream) => &questions.echo_stream,
        })
    }

    async fn load(&self, case: Case, window: Window) -> Result<Tally> {
        let [index, echo] = &self.callers;
        let caller = if case.target == Target::Index { index } else { echo };
        let questions = self.questions(case)?;
        match (case.mode, case.load) {
            (Mode::Unary, Load::InFlight(most)) => {
                closed::unary(caller, questions, most, window).await
            }
            (Mode::Stream, Load::InFlight(most)) => {
                closed::stream(caller, questions, most, window).await
            }
            (Mode::Unary, Load::Rate(rate)) => open::unary(caller, questions, rate, window).await,
            (Mode::Stream, Load::Rate(rate)) => open::stream(caller, questions, rate, window).await,
        }
    }

    async fn record(&mut self, case: Case, publishers: Option<&Publishers>) -> Result<()> {
        let before = match publishers {
            Some(publishers) => Some(publishers.mark(&mut self.indexer).await?),
            None => None,
        };
        let window = Window::after_warm_up(self.length());
        let cpu = window.cpu_time(self.process_id(case.target)?);
        let (tally, cpu) = tokio::try_join!(self.load(case, window), cpu)?;
        let ingested = match (publishers, before) {
            (Some(publishers), Some(before)) => {
                let (blocks, cores) = publishers.mark(&mut self.indexer).await?.since(before);
                let blocks_per_second = blocks;
                let publisher_cores = cores;
                let asked_per_second = self.args.ingest_rate;
                Some(Ingested { asked_per_second, blocks_per_second, publisher_cores })
            }
            _ => None,
        };
        let (shape, questions) = self.shapes.get(case.shape).context("a shape")?;
        let (question_bytes, answer_bytes) = questions.sizes();
        let (in_flight, rate) = match case.load {
            Load::InFlight(most) => (most, None),
            Load::Rate(rate) => (0, Some(rate)),
        };
        let record = Record::new(&tally, cpu, window.end - window.begin).at(
            (case.part, case.trial),
            (shape.name, case.mode.name(), case.target.name()),
            (in_flight, rate),
        );
        let hashing_us = questions.hashing.as_secs_f64() * 1e6;
        let record = Record { question_bytes, answer_bytes, hashing_us, ingested, ..record };
        self.keep(record)
    }

    fn keep(&mut self, record: Record) -> Result<()> {
        println!("{record}");
        serde_json::to_writer(&mut self.out, &record)?;
        self.out.write_all(b"\n")?;
        self.records.push(record);
        Ok(())
    }
}
