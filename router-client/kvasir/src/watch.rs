//! Shows the state of the engines while the process serves, and checks new engines.

use crate::check::Checker;
use crate::report::Report;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kvasir_discovery::{Observer, Seen, Watch};
use kvasir_process::telemetry::{NotReady, Readiness};
use kvasir_router::fleet::Listing;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::select;
use tokio::sync::{mpsc, watch};

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

/// Shows problems of the engines, and sends engines whose check is due. The process is ready only while an engine is
/// registered.
#[derive(Debug)]
pub(crate) struct Followed {
    pub(crate) status: Arc<Status>,
    pub(crate) readiness: Readiness,
    pub(crate) unchecked: mpsc::Sender<Seen>,
    /// While no engine is registered.
    pub(crate) empty: Option<NotReady>,
}

impl Observer for Followed {
    fn end_round(&mut self, watch: &Watch) {
        *self.status.problems.lock() = watch.problems();
        self.status.faults.lock().retain(|engine, _| watch.names(engine));
        if watch.registered() > 0 {
            self.empty = None;
        } else if self.empty.is_none() {
            self.empty = Some(self.readiness.hold("no engine answers"));
        }
    }

    fn check(&mut self, seen: &Seen) -> bool {
        self.unchecked.try_send(seen.clone()).is_ok()
    }

    fn is_faulty(&self, engine: &str) -> bool {
        self.status.faults.lock().contains_key(engine)
    }
}

/// Checks the engines that `unchecked` receives, without end. Drops `unproven` once all engines known so far are checked
/// and the gateway has listed one. Without a checker, each engine counts as checked.
pub(crate) async fn check_engines(
    checker: Option<Checker>,
    mut unchecked: mpsc::Receiver<Seen>,
    status: Arc<Status>,
    unproven: NotReady,
    mut listed: watch::Receiver<Arc<Listing>>,
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
