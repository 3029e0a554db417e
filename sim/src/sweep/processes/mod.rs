//! Repeats one point of the sweep with real processes in real time. Mock engines with the same machine of time publish
//! their events over ZMQ; an index reads them. Clients ask a router for each request, send the request to the selected
//! engine, and report its first token and its end. Then the same requests run in virtual time, and both results are
//! compared.
//!
//! - `requests`: the workload's requests with tokens (pure);
//! - `fleet`: the processes;
//! - `drive`: the open loop;
//! - `probe`: measures the index's delay behind the caches;
//! - [`agreement`]: the comparison (pure).

pub mod agreement;
mod drive;
mod fleet;
mod probe;
mod requests;

pub use agreement::{Agreement, Measured, Pair, Verdict};

use super::args::Args;
use super::cluster;
use super::job::{self, Source};
use super::options::ClusterOptions;
use super::plan::{Workload, bar, workload};
use super::way::{Policy, Way};
use crate::engine::openai::client::call;
use crate::engine::timed::{Nanos, SECOND};
use crate::stop_signals::StopSignals;
use anyhow::{Context, Result, ensure};
use fleet::Fleet;
use hyper::{Method, StatusCode};
use requests::Request;
use std::str::from_utf8;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Seed of the workload.
const SEED: u64 = 1;
/// The compared policies.
const POLICIES: [Policy; 2] = [Policy::Kv, Policy::RoundRobin];
/// Timeout for an engine's metrics.
const METRICS_TIMEOUT: Duration = Duration::from_secs(10);
/// Metric of the time to the first token.
const FIRST_TOKEN_METRIC: &str = "vllm:time_to_first_token_seconds";

/// Parameters of the point, shared by both runs.
struct Point<'a> {
    load: f64,
    time_scale: f64,
    options: &'a ClusterOptions,
    block_size: u32,
    workload: &'a Workload,
    arrivals: Vec<Nanos>,
    requests: Arc<[Request]>,
}

/// Runs the point at this load, with processes and in virtual time. None if a signal asks the process to stop
/// meanwhile. All processes have ended in either case.
///
/// # Errors
/// If the workload does not suit the engines, a process does not start, or a request fails.
pub fn run(args: &Args, source: &Source, load: f64) -> Result<Option<Agreement>> {
    let options = args.cluster(source)?;
    let workload = workload(&options, source, SEED, args.requests)?;
    let arrivals = job::faster(&workload.jobs, workload.factor * load / 100.0);
    let block_size = u32::try_from(options.engine.block_size)?;
    let time_scale = args.time_scale;
    let requests = requests::requests(&workload.jobs, &arrivals, block_size, time_scale)?.into();
    let options = &options;
    let point =
        Point { load, time_scale, options, block_size, workload: &workload, arrivals, requests };
    let runtime = Runtime::new().context("start a runtime")?;
    let mut stop = runtime.block_on(async { StopSignals::listen() })?;
    let mut pairs = Vec::new();
    for policy in POLICIES {
        let measured = runtime.block_on(point.measure(policy, &mut stop));
        let Some(measured) = measured.with_context(|| point.name(policy))? else {
            return Ok(None);
        };
        let twin = point.twin(policy, measured.index_delay).with_context(|| point.name(policy))?;
        pairs.push(Pair { policy, twin, measured });
    }
    let workload = source.to_string();
    let seed = SEED;
    let engines = options.engines;
    Ok(Some(Agreement { workload, load, seed, engines, time_scale, pairs }))
}

// === impl Point ===

impl Point<'_> {
    fn name(&self, policy: Policy) -> String {
        format!("{policy} at {} %, seed {SEED}, with processes", self.load)
    }

    /// The run in virtual time, with an index that is `index_delay` seconds late.
    fn twin(&self, policy: Policy, index_delay: f64) -> Result<cluster::Run> {
        let staleness = (index_delay * SECOND as f64) as Nanos;
        let way = Way { staleness, ..Way::of(policy) };
        cluster::run(self.options, &self.workload.jobs, &self.arrivals, way, SEED)
    }

    /// Starts the processes, sends all requests, and stops the processes. None if a signal asks the process to stop.
    async fn measure(&self, policy: Policy, stop: &mut StopSignals) -> Result<Option<Measured>> {
        // An interrupt waits for the end of the start: then every process is known and can be stopped.
        let fleet = Fleet::start(self.options, policy, self.time_scale).await?;
        let measured = tokio::select! {
            biased;
            () = stop.received() => Ok(None),
            measured = self.drive(&fleet, policy) => measured.map(Some),
        };
        let stopped = fleet.stop().await;
        let measured = measured?;
        stopped?;
        Ok(measured)
    }

    async fn drive(&self, fleet: &Fleet, policy: Policy) -> Result<Measured> {
        let what = if policy == Policy::Kv { "kv, processes" } else { "round-robin, processes" };
        let bar = bar(what, self.requests.len() as u64);
        let mut delays = Vec::new();
        let replies = tokio::select! {
            replies = drive::drive(fleet, &self.requests, &bar) => replies?,
            failed = probe::probe(fleet, self.block_size, &mut delays) => {
                failed.context("measure the index's delay")?;
                Vec::new()
            }
        };
        bar.finish_and_clear();
        ensure!(replies.len() == self.requests.len(), "not all requests were answered");
        ensure!(!delays.is_empty(), "the run is too short to measure the index's delay");
        let delay = delays.iter().sum::<Duration>().as_secs_f64() / delays.len() as f64;
        Ok(Measured {
            engines_ttft_mean: engines_ttft_mean(fleet).await? * self.time_scale,
            index_delay: delay * self.time_scale,
            probes: delays.len(),
            ..Measured::new(
                &self.workload.jobs,
                &self.arrivals,
                &self.requests,
                &replies,
                self.options.engines,
                self.time_scale,
            )
        })
    }
}

/// Mean time to the first token of all requests, from the engines' own metrics, in seconds of real time.
async fn engines_ttft_mean(fleet: &Fleet) -> Result<f64> {
    let mut sum = 0.0;
    let mut count = 0.0;
    for address in fleet.addresses() {
        let host = address.ip().to_string();
        let port = address.port();
        let asked = call(Method::GET, (&host, port), "/metrics", "", METRICS_TIMEOUT).await;
        let (status, page) = asked.context("ask an engine for its metrics")?;
        ensure!(status == StatusCode::OK, "an engine answered {status} instead of its metrics");
        let page = from_utf8(&page)?;
        let value = |part| {
            let name = format!("{FIRST_TOKEN_METRIC}_{part}");
            let line = page.lines().find(|line| line.starts_with(&name));
            line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).context(name)
        };
        sum += value("sum")?;
        count += value("count")?;
    }
    ensure!(count > 0.0, "no engine had a request");
    Ok(sum / count)
}
