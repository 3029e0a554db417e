//! The demo: an indexer-server, a fleet of mock engines and a workload, routed by two policies.
//!
//! - [`args`]: the command line;
//! - [`fleet`]: engines, their registration, and the comparison of dumps with the engines' caches;
//! - [`route`]: the choice of a worker for a request;
//! - [`drive`]: one pass of the workload;
//! - [`metrics`]: the server's `/metrics`;
//! - [`query`]: a query for the user to try;
//! - [`progress`], [`report`]: the output.

pub mod args;
pub mod drive;
pub mod fleet;
pub mod metrics;
pub mod progress;
pub mod query;
pub mod report;
pub mod route;

pub use args::Args;

use crate::client;
use crate::client::Indexer;
use crate::server::{Addresses, Server};
use crate::stop_signals::StopSignals;
use crate::sweep::duel::Duel;
use crate::sweep::job::Source;
use crate::workload::{Conversations, Request, Trace};
use anyhow::{Context, Result, ensure};
use drive::Pass;
use fleet::Fleet;
use kvasir_proto::pb;
use query::Query;
use report::{Counter, Observed, Report, Section};
use route::Policy;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use tokio::task::spawn_blocking;

/// Model of the demo's partition.
pub const MODEL: &str = "demo";

/// Default number of requests in a generated pass.
const GENERATED_REQUESTS: usize = 4_000;

/// Result of a demo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The demo completed, and every dump equalled its engine.
    Verified,
    /// The demo completed, and a dump differed from its engine.
    Different,
    /// The demo was interrupted.
    Interrupted,
}

/// Runs the demo until it completes or a signal asks the process to stop. Stops the server in either case.
///
/// # Errors
/// If the server cannot be started, or a call to it fails.
pub async fn run(args: Args) -> Result<Outcome> {
    let len = Workload::check(&args)?;
    let mut stop = StopSignals::listen()?;
    let mut server = tokio::select! {
        server = Server::start(args.listen, args.http_listen) => server?,
        () = stop.received() => return Ok(Outcome::Interrupted),
    };
    let addresses = server.addresses;
    eprintln!("server: gRPC at {}, HTTP at {}", addresses.grpc, addresses.http);
    let done = tokio::select! {
        done = run_passes(&args, len, addresses) => done.map(Some),
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
            eprintln!("interrupted: stopping the server");
            Ok(Outcome::Interrupted)
        }
        Err(error) => Err(server.explain(error).await),
    };
    server.stop().await;
    outcome
}

/// Keeps everything running until a signal asks the process to stop.
async fn stay_up(server: &mut Server, stop: &mut StopSignals) -> Result<()> {
    println!("\nThe server and all engines stay up; Ctrl-C ends the demo.");
    tokio::select! {
        () = stop.received() => Ok(()),
        exit = server.exited() => Err(exit),
    }
}

/// Runs both passes and prints the results. Returns whether every dump equalled its engine.
async fn run_passes(args: &Args, len: usize, server: Addresses) -> Result<(bool, [Fleet; 2])> {
    print_duel(args).await?;
    let mut client = client::connect(server.grpc).await.context("connect to the server")?;
    let first = run_pass(args, len, Policy::FindMatches, server.grpc, &mut client).await?;
    let (first, matched, prompts) = first;
    let second = run_pass(args, len, Policy::RoundRobin, server.grpc, &mut client).await?;
    let (second, rotated, _) = second;
    let report = Report {
        seed: args.seed,
        engines: args.engines,
        block_size: args.block_size,
        capacity_blocks: args.capacity_blocks,
        sections: vec![first, second],
        counters: stats(&mut client).await?.counters.iter().map(Counter::from).collect(),
        metrics: metrics::fetch(server.http).await.context("read /metrics")?,
        query: Query::choose(&mut client, &prompts, args.block_size).await?,
    };
    println!("{}", report.text(server, args.verbose));
    if let Some(path) = &args.report {
        report.write(path)?;
        eprintln!("report written to {}", path.display());
    }
    if let Some(path) = &args.prompts {
        write_prompts(path, &prompts)?;
        eprintln!("{} prompts written to {}", prompts.len(), path.display());
    }
    Ok((report.is_verified(), [matched, rotated]))
}

/// Prints a comparison of the two policies on engines with step times. The mock engines of the passes have none.
async fn print_duel(args: &Args) -> Result<()> {
    let seed = args.seed;
    let engines = args.engines;
    let cache_tokens = args.capacity_blocks * args.block_size;
    let trace = args.trace.clone();
    let duel = spawn_blocking(move || {
        let source = match trace {
            Some(path) => Source::trace(&path, None)?,
            None => Source::Conversations,
        };
        Duel::run(&source, seed, engines, cache_tokens)
    });
    match duel.await.context("the comparison in virtual time panicked")? {
        Ok(duel) => println!("{}", duel.text()),
        // For instance, the trace may be too short. The passes do not need this comparison.
        Err(error) => eprintln!("no comparison in virtual time: {error:#}"),
    }
    Ok(())
}

/// Writes prompts as token ids, one prompt per line.
fn write_prompts(path: &Path, prompts: &[Vec<u32>]) -> Result<()> {
    let line = |prompt: &Vec<u32>| {
        let tokens: Vec<_> = prompt.iter().map(u32::to_string).collect();
        tokens.join(" ") + "\n"
    };
    let text: String = prompts.iter().map(line).collect();
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

/// Runs one pass on its own fleet: sends requests, waits for the index, compares. Also returns some of its prompts.
async fn run_pass(
    args: &Args,
    len: usize,
    policy: Policy,
    server: SocketAddr,
    client: &mut Indexer,
) -> Result<(Section, Fleet, Vec<Vec<u32>>)> {
    let fleet = Fleet::start(args, policy, client).await?;
    let before = stats(client).await?;
    let pass = Pass { args, policy, fleet: &fleet, server };
    let result = pass.run(Workload::open(args, len)?).await?;
    let caught_up = fleet.wait_until_applied(client).await?;
    let after = stats(client).await?;
    let verdicts = fleet.verify(client).await?;
    let idle_latencies = drive::probe(client, &result.samples).await?;
    let observed = Observed { before, after, caught_up, verdicts, idle_latencies };
    Ok((Section::new(policy, &result, observed), fleet, result.samples))
}

async fn stats(client: &mut Indexer) -> Result<pb::GetStatsResponse> {
    let response = client.get_stats(pb::GetStatsRequest {}).await.context("ask for stats")?;
    Ok(response.into_inner())
}

/// The requests of a pass, equal for both passes.
struct Workload {
    requests: Box<dyn Iterator<Item = Result<Request>> + Send>,
    /// Number of requests that the pass uses.
    len: usize,
}

impl Workload {
    /// Checks all requests, so that invalid ones are found before the demo starts. Returns their number.
    fn check(args: &Args) -> Result<usize> {
        let mut len = 0;
        let mut longest = 0;
        if let Some(path) = &args.trace {
            for entry in Trace::open(path, args.seed)?.take(args.requests.unwrap_or(usize::MAX)) {
                let entry = entry.with_context(|| format!("read the trace {}", path.display()))?;
                longest = longest.max(entry.prompt.len() + entry.answer.len());
                len += 1;
            }
            ensure!(len > 0, "the trace {} is empty", path.display());
        } else {
            len = args.requests.unwrap_or(GENERATED_REQUESTS);
            let mut conversations = Conversations::new(args.seed);
            let lengths = (0..len).map(|_| conversations.next_turn());
            let lengths = lengths.map(|turn| turn.prompt_tokens + turn.answer_tokens);
            longest = longest.max(lengths.max().unwrap_or(0));
        }
        let groups = if args.sliding_window.is_some() { 2 } else { 1 };
        let needed = longest.div_ceil(args.block_size) * groups;
        ensure!(
            needed <= args.capacity_blocks,
            "the longest request has {longest} tokens: --capacity-blocks must be at least {needed}"
        );
        Ok(len)
    }

    fn open(args: &Args, len: usize) -> Result<Self> {
        let Some(path) = &args.trace else {
            return Ok(Self { requests: Box::new(Conversations::new(args.seed).map(Ok)), len });
        };
        let requests = Box::new(Trace::open(path, args.seed)?.map(|entry| Ok(entry?)));
        Ok(Self { requests, len })
    }
}
