//! Lists the workers of all siblings, and selects the siblings to copy each worker from.

use super::{CopyError, ListPages, Sibling, SiblingMetrics};
use futures::StreamExt;
use futures::future::join_all;
use kvasir_process::answer_timer::{AnswerTimer, Late};
use kvasir_proto::convert::{ListedSource, ListedWorker, Registration, WorkerAddress};
use kvasir_proto::limits::WORKERS_MAX;
use kvasir_proto::types::SourceState;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

/// Time limit for connecting to a sibling and for each page of its workers. It also delays the start of a server whose
/// sibling hangs, or is starting too and waits for this server.
pub const LIST_TIMEOUT: Duration = Duration::from_secs(5);

/// A worker that at least one sibling has.
#[derive(Debug)]
pub struct Offer {
    /// Registration of the worker at the most complete sibling.
    pub registration: Registration,
    /// Siblings with at least one source of the worker that has a cursor, the most complete first.
    pub from: Vec<Arc<dyn Sibling>>,
}

/// Rank of a sibling's copy of a worker, compared in this order: number of sources with a cursor, worst state of these
/// sources, number of applied batches, number of blocks. Batch numbers of different incarnations are not comparable,
/// but a source in an ended incarnation does not stay exact for long.
type Completeness = (usize, Reverse<SourceState>, u64, u64);

/// How complete a sibling's copy of a worker is.
fn completeness(worker: &ListedWorker) -> Completeness {
    let has_cursor = |at: &&ListedSource| at.applied.is_some();
    let sources = || worker.sources.iter().filter(has_cursor);
    let worst = sources().map(|source| source.state).max().unwrap_or(SourceState::Cold);
    let applied = sources().filter_map(|source| source.applied);
    let batches = applied.map(|cursor| cursor.sequence).fold(0, u64::saturating_add);
    (sources().count(), Reverse(worst), batches, worker.blocks)
}

/// A worker as listed by one sibling.
struct Listed<'a> {
    completeness: Completeness,
    registration: Registration,
    sibling: &'a Arc<dyn Sibling>,
}

/// Lists the workers of all siblings concurrently. Leaves out siblings that fail or are too slow.
pub async fn offers(siblings: &[Arc<dyn Sibling>], metrics: &SiblingMetrics) -> Vec<Offer> {
    let lists = siblings.iter().map(|sibling| list(sibling.list()));
    let mut all: BTreeMap<WorkerAddress, Vec<Listed<'_>>> = BTreeMap::new();
    for (sibling, listed) in siblings.iter().zip(join_all(lists).await) {
        match listed {
            Ok(workers) => {
                tracing::info!(
                    sibling = sibling.url(),
                    workers = workers.len(),
                    "a sibling answers"
                );
                for worker in workers {
                    let entry = all.entry(worker.address()).or_default();
                    let completeness = completeness(&worker);
                    let registration = worker.registration;
                    entry.push(Listed { completeness, registration, sibling });
                }
            }
            Err(error) => {
                metrics.lists_failed.inc();
                tracing::warn!(sibling = sibling.url(), %error, "a sibling did not list its workers");
            }
        }
    }
    all.into_values().filter_map(offer).collect()
}

/// Collects all pages of a sibling's list of workers.
async fn list(mut pages: ListPages) -> Result<Vec<ListedWorker>, CopyError> {
    let mut workers = Vec::new();
    let mut answer_timer = AnswerTimer::default();
    let count = |page: &Next| match page {
        Ok(Some(Ok(page))) => page.len(),
        Ok(Some(Err(_)) | None) | Err(_) => 0,
    };
    loop {
        let next = answer_timer.next(timeout(LIST_TIMEOUT, pages.next()), count).await?;
        match next.map_err(|_late| Late::Silent(LIST_TIMEOUT))? {
            Some(page) => workers.append(&mut page?),
            None => return Ok(workers),
        }
        if workers.len() > WORKERS_MAX {
            return Err(CopyError::TooManyWorkers);
        }
    }
}

/// The next page of a list.
type Next = Result<Option<Result<Vec<ListedWorker>, CopyError>>, Elapsed>;

fn offer(mut listed: Vec<Listed<'_>>) -> Option<Offer> {
    // The sort is stable: among equals, the sibling that is configured first wins.
    listed.sort_by_key(|at| Reverse(at.completeness));
    let from = listed.iter().filter(|at| at.completeness.0 > 0);
    let from = from.map(|at| Arc::clone(at.sibling)).collect();
    Some(Offer { registration: listed.into_iter().next()?.registration, from })
}
