//! Follows the engines while the process serves, and checks new engines.

use crate::check::Checker;
use crate::engines::{Engines, Seen, Watch};
use crate::report::Report;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kvasir_process::telemetry::{NotReady, Readiness};
use kvasir_router::fleet::Listing;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::select;
use tokio::signal::unix::Signal;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// Interval of asking the engines.
const INTERVAL: Duration = Duration::from_secs(5);
/// First interval of asking the engines while none answers; each further one lasts twice as long.
const FIRST_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum number of engines that are checked concurrently.
const CHECKED_MAX: usize = 8;

/// Problems of the engines, for `/readyz`.
#[derive(Debug, Default)]
pub(crate) struct Status {
    /// Engines that do not answer or cannot be registered.
    problems: Mutex<Vec<String>>,
    /// Faults that checks found, by engine.
    faults: Mutex<BTreeMap<String, String>>,
}

impl Status {
    /// The problems, one line each.
    pub(crate) fn problems(&self) -> Vec<String> {
        let faults = self.faults.lock();
        let faults = faults.iter().map(|(engine, fault)| format!("{engine}: {fault}"));
        self.problems.lock().iter().cloned().chain(faults).collect()
    }

    fn set_report(&self, report: &Report) {
        let mut faults = self.faults.lock();
        match report.fault() {
            Some(fault) => faults.insert(report.engine.clone(), fault.to_owned()),
            None => faults.remove(&report.engine),
        };
    }
}

/// Asks the engines at an interval and at each SIGHUP, without end. Sends engines whose check is due to `unchecked`. The
/// process is ready only while an engine is registered.
pub(crate) async fn follow(
    engines: Engines,
    (status, readiness): (Arc<Status>, Readiness),
    unchecked: mpsc::Sender<Seen>,
    mut hangup: Signal,
) {
    let mut watch = Watch::default();
    let mut empty = None;
    let mut first = FIRST_INTERVAL;
    loop {
        let is_faulty = |engine: &str| status.faults.lock().contains_key(engine);
        engines.round(&mut watch, &unchecked, is_faulty).await;
        *status.problems.lock() = watch.problems();
        status.faults.lock().retain(|engine, _| watch.names(engine));
        let pause = if watch.registered() == 0 {
            empty.get_or_insert_with(|| readiness.hold("no engine answers"));
            let pause = first;
            first = (2 * first).min(INTERVAL);
            pause
        } else {
            (empty, first) = (None, FIRST_INTERVAL);
            INTERVAL
        };
        let ended = Instant::now();
        loop {
            // Engines that are new in the list are asked soon, but not at each of many changes.
            let pause = if watch.has_changed() { FIRST_INTERVAL } else { pause };
            select! {
                () = sleep_until(ended + pause) => break,
                () = watch.changed() => engines.apply_list(&mut watch).await,
                _again = hangup.recv() => {
                    tracing::info!("SIGHUP: asking the engines");
                    break;
                }
            }
        }
    }
}

/// Checks the engines that `unchecked` receives, without end. Drops `unproven` once all engines known so far are checked
/// and the gateway has listed one. Without a checker, each engine counts as checked.
pub(crate) async fn check_engines(
    checker: Option<Checker>,
    mut unchecked: mpsc::Receiver<Seen>,
    status: Arc<Status>,
    (unproven, mut listed): (NotReady, watch::Receiver<Arc<Listing>>),
) {
    let mut unproven = Some(unproven);
    let mut running = FuturesUnordered::new();
    loop {
        select! {
            Some(seen) = unchecked.recv(), if running.len() < CHECKED_MAX => {
                let checker = checker.as_ref();
                running.push(async move {
                    Some(checker?.check(&seen).await)
                });
            }
            Some(report) = running.next() => {
                if let Some(report) = report {
                    log(&report);
                    status.set_report(&report);
                }
                if running.is_empty() && unchecked.is_empty() && unproven.is_some() {
                    // The gateway lives as long as this task.
                    drop(listed.wait_for(|listing| !listing.is_empty()).await);
                    drop(unproven.take());
                }
            }
            else => return,
        }
    }
}

fn log(report: &Report) {
    let engine = &report.engine;
    match report.fault() {
        None => tracing::info!(engine, "the engine passed its check"),
        Some(fault) => tracing::error!(engine, "the engine failed its check: {fault}"),
    }
    tracing::debug!("{report}");
}
