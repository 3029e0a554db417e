//! Restores workers from the checkpoint and copies others from siblings, while the server already answers queries.

use crate::ingest::{Expected, Ingest, Remembered};
use crate::partitions::{Partition, RegisteredBy, ResumedSource};
use crate::siblings::{Copier, CopyError, Fetched, Offer, Sibling};
use crate::snapshot::{Restorer, StoredWorker};
use futures::{StreamExt, stream};
use kvasir_discovery::is_found;
use kvasir_process::telemetry::NotReady;
use kvasir_proto::convert::{Registration, WorkerAddress};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::select;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Maximum number of workers named in one log line.
const NAMED_MAX: usize = 16;

/// Workers to bring into the index.
#[derive(Default)]
pub(super) struct Plan {
    workers: Vec<Planned>,
    /// Workers of the checkpoint that are no longer configured. They are not copied from siblings either.
    dropped: BTreeSet<WorkerAddress>,
}

/// Workers of the configuration.
#[derive(Clone, Copy)]
pub(super) struct Configured<'a> {
    pub(super) workers: &'a [Registration],
    /// Whether the server follows a list of engines.
    pub(super) has_list: bool,
}

impl Configured<'_> {
    fn has(&self, address: &WorkerAddress) -> bool {
        self.workers.iter().any(|at| at.address() == *address)
    }

    /// Whether a worker came from a list that the server does not follow any more.
    fn has_left(&self, registration: &Registration) -> bool {
        !self.has_list && is_found(registration)
    }
}

/// A planned worker: registered, without events yet.
struct Planned {
    worker: WorkerAddress,
    expected: Expected,
    origin: Origin,
    /// Whether the worker is configured. Then it stays even if all siblings have removed it.
    is_configured: bool,
}

/// The origin of a worker.
enum Origin {
    Checkpoint,
    /// Siblings to copy from. If empty, the worker starts empty.
    Siblings(Vec<Arc<dyn Sibling>>),
}

/// Sources for the planned workers.
pub(super) struct Ways {
    pub(super) restorer: Option<Restorer>,
    pub(super) copier: Copier,
}

/// Statistics of the restored and copied workers.
#[derive(Default)]
struct Brought {
    restored: usize,
    copied: usize,
    failed: usize,
    blocks: u64,
}

/// Registers the workers of a checkpoint, without events yet. Leaves out two kinds: a worker whose configuration
/// differs from the checkpoint starts empty, and a worker that is no longer configured is removed.
pub(super) async fn plan(
    ingest: &Ingest,
    stored: Vec<StoredWorker>,
    configured: Configured<'_>,
) -> Plan {
    let mut plan = Plan::default();
    let mut unknown = Vec::new();
    for StoredWorker { address, registration, registered_by, sources, .. } in stored {
        let registration = match Registration::decode(&registration) {
            Ok(registration) => registration,
            Err(error) => {
                tracing::warn!(worker = %address, %error, "worker not restored: its registration is unreadable");
                continue;
            }
        };
        if configured.has_left(&registration) {
            tracing::info!(worker = %address, "worker removed: engines-from is not set any more");
            plan.dropped.insert(address);
            continue;
        }
        let is_configured = configured.has(&address);
        let registered_by = match (registered_by, is_configured) {
            (RegisteredBy::Configuration, false) => {
                tracing::info!(worker = %address, "worker removed: it is no longer configured");
                plan.dropped.insert(address);
                continue;
            }
            (RegisteredBy::Unknown, false) => {
                unknown.push(address.to_string());
                RegisteredBy::Unknown
            }
            (RegisteredBy::Unknown, true) => RegisteredBy::Configuration,
            (by, _) => by,
        };
        let sources = sources.into_iter().map(|source| source.name.to_string()).collect();
        let remembered = Remembered { registration, registered_by, sources };
        plan.workers
            .extend(expect(ingest, remembered, Origin::Checkpoint, configured.workers).await);
    }
    if !unknown.is_empty() {
        tracing::warn!(
            workers = named(&unknown),
            "an older server wrote the checkpoint, without whether these workers were configured or registered: they \
             stay; remove those that are gone with RemoveWorker"
        );
    }
    plan
}

/// Lists the first names, and the number of further ones.
pub(super) fn named(names: &[String]) -> String {
    let (first, more) = names.split_at(names.len().min(NAMED_MAX));
    let first = first.join(", ");
    if more.is_empty() { first } else { format!("{first} and {} more", more.len()) }
}

impl Plan {
    /// Registers the workers of this shard that siblings have and this server lacks, without events yet. A worker whose
    /// configuration differs from the sibling's is left out and starts empty. A worker that is no longer configured is
    /// left out, too.
    pub(super) async fn add_copies(
        &mut self,
        ingest: &Ingest,
        offers: Vec<Offer>,
        configured: Configured<'_>,
    ) {
        for Offer { registration, from } in offers {
            let address = registration.address();
            let is_dropped = self.dropped.contains(&address) || configured.has_left(&registration);
            if is_dropped || ingest.check_owned(&registration).is_err() {
                continue;
            }
            let is_configured = configured.has(&address);
            let registered_by =
                if is_configured { RegisteredBy::Configuration } else { RegisteredBy::Request };
            let remembered = Remembered { registration, registered_by, sources: Vec::new() };
            let planned =
                expect(ingest, remembered, Origin::Siblings(from), configured.workers).await;
            self.workers.extend(planned);
        }
    }
}

/// Registers a remembered worker, and plans its restore. Returns `None`, so that the worker starts empty, if its
/// configuration has changed or the registration fails.
async fn expect(
    ingest: &Ingest,
    remembered: Remembered,
    origin: Origin,
    configured: &[Registration],
) -> Option<Planned> {
    let worker = remembered.registration.address();
    let now = configured.iter().find(|at| at.address() == worker);
    let difference = now.and_then(|now| remembered.registration.difference(now));
    if let Some((field, before, now)) = difference {
        tracing::warn!(
            %worker, field, before, configured = now,
            "worker starts empty: its configuration changed"
        );
        return None;
    }
    match ingest.expect(remembered).await {
        Ok(Some(expected)) => {
            Some(Planned { worker, expected, origin, is_configured: now.is_some() })
        }
        Ok(None) => None,
        Err(error) => {
            tracing::warn!(%worker, %error, "worker not restored");
            None
        }
    }
}

/// Restores or copies the workers, a few at a time. Admits the events of each worker after its restore. Then the server
/// is ready, and the store may start compaction.
pub(super) async fn run(
    plan: Plan,
    ways: Ways,
    ingest: Arc<Ingest>,
    not_ready: NotReady,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    bring_all(plan, &ways, &ingest, not_ready, &stop).await;
    if let Some(restorer) = ways.restorer.filter(|_| !stop.is_cancelled()) {
        // Every call retries opening the store.
        let finished = restorer.finish().await;
        finished.unwrap_or_else(
            |error| tracing::error!(%error, "the checkpoint's compaction did not start"),
        );
    }
    Ok(())
}

/// Restores all planned workers, a few at a time. The reason of unreadiness shows the progress. Returns immediately if
/// the plan is empty.
async fn bring_all(
    plan: Plan,
    ways: &Ways,
    ingest: &Arc<Ingest>,
    not_ready: NotReady,
    stop: &CancellationToken,
) {
    let begin = Instant::now();
    let total = plan.workers.len();
    if total == 0 {
        return;
    }
    // Workers of the checkpoint are first in the plan.
    let of_checkpoint = plan.workers.iter().filter(|at| matches!(at.origin, Origin::Checkpoint));
    let of_checkpoint = of_checkpoint.count();
    let tell = |done, blocks| {
        let what = if done < of_checkpoint { "restoring" } else { "copying from a sibling" };
        let reason = format!("{what}: {done} of {total} workers, {blocks} blocks so far");
        not_ready.set_reason(reason);
    };
    tell(0, 0);
    let begun = plan.workers.into_iter().take_while(|_| !stop.is_cancelled());
    let bring = begun.map(|planned| planned.bring(ways, ingest, stop));
    let mut bringing = stream::iter(bring).buffer_unordered(ways.workers_at_once());
    let mut all = Brought::default();
    let mut done = 0;
    while let Some(brought) = bringing.next().await {
        all.add(&brought);
        done += 1;
        tell(done, all.blocks);
    }
    if !stop.is_cancelled() {
        let seconds = begin.elapsed().as_secs_f64();
        let Brought { restored, copied, failed, blocks } = all;
        tracing::info!(workers = total, restored, copied, failed, blocks, seconds, "restored");
    }
}

impl Planned {
    /// Restores one worker from the checkpoint or a sibling, then admits its events. Removes the worker if all siblings
    /// have removed it and it is absent from the configuration.
    async fn bring(self, ways: &Ways, ingest: &Arc<Ingest>, stop: &CancellationToken) -> Brought {
        let Self { worker, expected, origin, is_configured } = self;
        let mut is_gone = false;
        let mut brought = Brought::default();
        let resumed = ingest.resume(expected, async |partition, removed| match origin {
            Origin::Checkpoint => ways.restore(partition, &worker, &mut brought).await,
            Origin::Siblings(from) if from.is_empty() => Vec::new(),
            Origin::Siblings(from) => {
                let copied = select! {
                    () = stop.cancelled() => return Vec::new(),
                    () = removed.cancelled() => return Vec::new(),
                    fetched = ways.copier.fetch(&worker, &from) => fetched,
                };
                is_gone = matches!(copied, Err(CopyError::Unknown));
                match copied {
                    Ok(fetched) => ways.place(partition, &worker, fetched, &mut brought).await,
                    Err(error) => {
                        brought.failed += 1;
                        tracing::error!(%worker, %error, "worker not copied from a sibling: it starts empty");
                        Vec::new()
                    }
                }
            }
        });
        if let Err(error) = resumed.await {
            tracing::error!(%worker, %error, "worker not restored: register it again");
            // The worker may be removed already, or the server is stopping.
            let _gone = ingest.remove(worker).await;
        } else if is_gone && !is_configured {
            tracing::info!(%worker, "removed: all siblings have removed the worker");
            let _gone = ingest.remove(worker).await;
        }
        brought
    }
}

impl Brought {
    const fn add(&mut self, other: &Self) {
        self.restored += other.restored;
        self.copied += other.copied;
        self.failed += other.failed;
        self.blocks += other.blocks;
    }
}

impl Ways {
    /// Number of workers processed concurrently, two per writer thread: one is placed while another is read, or waits
    /// for a busy thread. This many workers are in memory twice.
    fn workers_at_once(&self) -> usize {
        2 * self.copier.writer_threads()
    }

    /// Restores a worker from the checkpoint, and returns its sources. Logs a failure and returns an empty list, so
    /// that the worker starts empty.
    async fn restore(
        &self,
        partition: &Partition,
        worker: &WorkerAddress,
        brought: &mut Brought,
    ) -> Vec<ResumedSource> {
        // Workers of a checkpoint are planned only if a restorer exists.
        let Some(restorer) = &self.restorer else { return Vec::new() };
        match restorer.restore(partition, worker).await {
            Ok(restored) => {
                brought.restored += 1;
                brought.blocks += restored.blocks;
                restored.sources
            }
            Err(error) => {
                brought.failed += 1;
                tracing::error!(%worker, %error, "worker not restored from the checkpoint: it starts empty");
                Vec::new()
            }
        }
    }

    /// Puts a sibling's copy of a worker into the index, and returns the worker's sources. Logs a failure and returns
    /// an empty list, so that the worker starts empty.
    async fn place(
        &self,
        partition: &Partition,
        worker: &WorkerAddress,
        fetched: Fetched,
        brought: &mut Brought,
    ) -> Vec<ResumedSource> {
        match self.copier.place(partition, worker, fetched).await {
            Ok(copied) => {
                brought.copied += 1;
                brought.blocks += copied.blocks;
                tracing::info!(%worker, blocks = copied.blocks, "copied from a sibling");
                copied.sources
            }
            Err(error) => {
                brought.failed += 1;
                tracing::error!(%worker, %error, "worker not copied from a sibling: it starts empty");
                Vec::new()
            }
        }
    }
}
