//! The demo: an indexer-server, a fleet of mock engines and a workload, routed twice.
//!
//! - [`args`]: the command line;
//! - [`server`]: the server as a child process;
//! - [`fleet`]: engines, their registration, and the comparison of dumps with their truth;
//! - [`route`]: where a request goes;
//! - [`drive`]: one pass of the workload;
//! - [`metrics`]: the server's `/metrics`;
//! - [`progress`], [`report`]: what people see.

pub mod args;
pub mod drive;
pub mod fleet;
pub mod metrics;
pub mod progress;
pub mod report;
pub mod route;
pub mod server;

pub use args::Args;

use crate::client;
use crate::client::Indexer;
use crate::workload::{Conversations, Request, Trace};
use anyhow::{Context, Result, bail};
use drive::Pass;
use fleet::Fleet;
use kvasir_proto::pb;
use report::{Counter, Observed, Report, Section};
use route::Policy;
use server::{Addresses, Server};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Model of the demo's partition.
pub const MODEL: &str = "demo";

/// How a demo ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It ran to its end and every dump equalled its engine.
    Verified,
    /// It ran to its end and a dump did not equal its engine.
    Different,
    /// It was interrupted.
    Interrupted,
}

/// Runs the demo until it ends or the process is asked to stop; the server is stopped either way.
///
/// # Errors
/// If the server cannot be started, or anything it should answer fails.
pub async fn run(args: Args) -> Result<Outcome> {
    let mut stop = StopSignals::listen()?;
    let mut server = tokio::select! {
        server = Server::start(&args) => server?,
        () = stop.received() => return Ok(Outcome::Interrupted),
    };
    let addresses = server.addresses;
    println!("server: gRPC at {}, HTTP at {}", addresses.grpc, addresses.http);
    let done = tokio::select! {
        done = run_passes(&args, addresses) => done.map(Some),
        () = stop.received() => Ok(None),
        exit = server.exited() => Err(exit),
    };
    let outcome = match done {
        Ok(Some((verified, fleets))) => {
            let stayed = if args.exit { Ok(()) } else { stay_up(&mut server, &mut stop).await };
            server.stop().await;
            for fleet in fleets {
                fleet.stop().await;
            }
            stayed.map(|()| if verified { Outcome::Verified } else { Outcome::Different })
        }
        Ok(None) => {
            println!("interrupted: stopping the server");
            Ok(Outcome::Interrupted)
        }
        Err(error) => Err(server.explain(error).await),
    };
    server.stop().await;
    outcome
}

/// Keeps everything as it is until the process is asked to stop.
async fn stay_up(server: &mut Server, stop: &mut StopSignals) -> Result<()> {
    println!("\nThe server and all engines stay up; Ctrl-C ends the demo.");
    tokio::select! {
        () = stop.received() => Ok(()),
        exit = server.exited() => Err(exit),
    }
}

/// Both passes and the report; says whether every dump equalled its engine.
async fn run_passes(args: &Args, server: Addresses) -> Result<(bool, [Fleet; 2])> {
    let mut client = client::connect(server.grpc).await.context("connect to the server")?;
    let (first, matched) = run_pass(args, Policy::FindMatches, &mut client).await?;
    let (second, rotated) = run_pass(args, Policy::RoundRobin, &mut client).await?;
    let report = Report {
        seed: args.seed,
        engines: args.engines,
        block_size: args.block_size,
        capacity_blocks: args.capacity_blocks,
        sections: vec![first, second],
        counters: stats(&mut client).await?.counters.iter().map(Counter::from).collect(),
        metrics: metrics::fetch(server.http).await.context("read /metrics")?,
    };
    report.print(server);
    if let Some(path) = &args.report {
        report.write(path)?;
        println!("report written to {}", path.display());
    }
    Ok((report.is_verified(), [matched, rotated]))
}

/// One pass on a fleet of its own: drive, wait by cursor, compare.
async fn run_pass(args: &Args, policy: Policy, client: &mut Indexer) -> Result<(Section, Fleet)> {
    let fleet = Fleet::start(args, policy, client).await?;
    let before = stats(client).await?;
    let pass = Pass {
        args,
        policy,
        fleet: &fleet,
        client: client.clone(),
    };
    let result = pass.run(workload(args)?).await?;
    let caught_up = fleet.wait_until_applied(client).await?;
    let after = stats(client).await?;
    let verdicts = fleet.verify(client).await?;
    report::print_verdicts(policy, &verdicts);
    let idle_latencies = drive::probe(client, &result.samples).await?;
    let observed = Observed {
        before,
        after,
        caught_up,
        verdicts,
        idle_latencies,
    };
    Ok((
        Section::new(policy, args.block_size, &result, observed),
        fleet,
    ))
}

async fn stats(client: &mut Indexer) -> Result<pb::GetStatsResponse> {
    let response = client
        .get_stats(pb::GetStatsRequest {})
        .await
        .context("ask for stats")?;
    Ok(response.into_inner())
}

/// The requests of a pass; both passes get the same.
type Workload = Box<dyn Iterator<Item = Result<Request>> + Send>;

fn workload(args: &Args) -> Result<Workload> {
    let requests: Workload = match &args.trace {
        Some(path) => Box::new(Trace::open(path, args.seed)?.map(|entry| Ok(entry?))),
        None => Box::new(Conversations::new(args.seed).map(Ok)),
    };
    Ok(Box::new(requests.take(args.requests)))
}

/// The ways a process is asked to stop: Ctrl-C and SIGTERM.
struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    /// From now on the process no longer just dies of them.
    fn listen() -> Result<Self> {
        let interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
        let terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
        Ok(Self { interrupt, terminate })
    }

    /// Completes when the process is asked to stop.
    async fn received(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
