//! The sweep's virtual time against processes in real time, small: the machine of time is the same, but sockets, clocks, the
//! real index and the real router are not.
//!
//! The machine that runs these tests may be busy, so clients' own times prove little: the bounds are on what engines measure
//! by the model's times, and on hit tokens. `scripts/sweep --processes` has the bound on clients' times, for a quiet machine.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use kvasir_sim::server::binary_of;
use kvasir_sim::sweep::processes::{self, Pair};
use kvasir_sim::sweep::way::Way;
use kvasir_sim::sweep::{Args, cluster};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::fs::read_to_string;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};

/// Most that the engines' mean time to the first token may deviate.
const ENGINES_TTFT_DEVIATION_MAX: f64 = 0.2;
/// Most that hit tokens may deviate.
const HIT_DEVIATION_MAX: f64 = 0.1;
/// Load in percent.
const LOAD: f64 = 70.0;
/// Nothing takes nearly as long.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Two engines and the spare one, the index, the router.
const PROCESSES: usize = 5;
/// What a shell would report.
const INTERRUPTED: i32 = 130;

fn args() -> Args {
    let args = ["sweep", "--processes", "--short", "--workload", "agents", "--time-scale", "2"];
    Args::parse_from(args).shortened()
}

fn agrees(pair: &Pair) -> bool {
    pair.engines_ttft_deviation().abs() <= ENGINES_TTFT_DEVIATION_MAX
        && pair.hit_deviation().abs() <= HIT_DEVIATION_MAX
}

#[test]
fn processes_do_what_virtual_time_says() -> Result<()> {
    let args = args();
    args.check()?;
    let source = args.sources()?.remove(0);
    let agreement = processes::run(&args, &source, LOAD)?.context("nobody interrupts it")?;
    let text = agreement.text();
    println!("{text}");
    let [kv, in_turn] = &agreement.pairs[..] else { panic!("two ways of routing") };
    for pair in [kv, in_turn] {
        ensure!(agrees(pair), "{} deviates:\n{text}", pair.policy);
        let measured = &pair.measured;
        ensure!(measured.uninformed == 0 && measured.probes > 0, "{measured:?}");
        ensure!(pair.outside() > 0.0, "clients see more than engines:\n{text}");
    }

    // The bounds notice what is not the same: another policy, and engines with other times.
    let crossed = |twin: &Pair, measured: &Pair| Pair {
        policy: measured.policy,
        twin: twin.twin.clone(),
        measured: measured.measured.clone(),
    };
    ensure!(!agrees(&crossed(kv, in_turn)) && !agrees(&crossed(in_turn, kv)), "{text}");
    for pair in [kv, in_turn] {
        let mut options = args.cluster(&source)?;
        options.engine.model.prefill_token = options.engine.model.prefill_token * 3 / 2;
        let jobs = source.jobs(agreement.seed, args.requests, options.engine.block_size);
        let arrivals: Vec<_> = pair.twin.served.iter().map(|at| at.arrival).collect();
        let way = Way::of(pair.policy);
        let twin = cluster::run(&options, &jobs, &arrivals, way, agreement.seed)?;
        let slower = Pair { policy: pair.policy, twin, measured: pair.measured.clone() };
        let deviation = slower.engines_ttft_deviation();
        ensure!(!agrees(&slower), "{}: {deviation} from slower engines", pair.policy);
    }
    Ok(())
}

/// The processes that a process has started.
fn children(pid: Pid) -> Result<BTreeSet<u32>> {
    let pid = pid.as_raw_nonzero();
    let mut children = BTreeSet::new();
    for task in PathBuf::from(format!("/proc/{pid}/task")).read_dir()? {
        let ids = read_to_string(task?.path().join("children"))?;
        children.extend(ids.split_whitespace().filter_map(|id| id.parse::<u32>().ok()));
    }
    Ok(children)
}

#[tokio::test]
async fn an_interruption_stops_every_process() -> Result<()> {
    let mut sweep = Command::new(binary_of("sweep")?)
        .args(["--processes", "--short", "--workload", "agents"])
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let pid = Pid::from_raw(sweep.id().context("it runs")? as i32).context("an id")?;
    let deadline = Instant::now() + PATIENCE;
    let started = loop {
        let started = children(pid)?;
        if started.len() == PROCESSES {
            break started;
        }
        ensure!(Instant::now() < deadline, "only {} processes", started.len());
        sleep(POLL_INTERVAL).await;
    };
    kill_process(pid, Signal::INT)?;
    let status = timeout(PATIENCE, sweep.wait()).await.context("it does not end")??;
    ensure!(status.code() == Some(INTERRUPTED), "{status}");
    let left: Vec<_> =
        started.iter().filter(|id| PathBuf::from(format!("/proc/{id}")).exists()).collect();
    ensure!(left.is_empty(), "{left:?} of {started:?} are left");
    Ok(())
}
