use super::link::{Link, LinkPlan};
use super::local::LocalIndexers;
use super::ownership::Ownership;
use super::sockets::SocketIndex;
use super::turns::Turns;
use super::worker::{Links, Room, Worker};
use super::{
    Count, ENDPOINT_SOCKETS_MAX, IngestConfig, IngestError, IngestMetrics, RegistrationsExhausted,
    Scarce,
};
use crate::partitions::{Origin, Partitions, RegisteredBy, ResumedSource, Speculation, Writer};
use dashmap::DashMap;
use kvasir_engine::link::{Common, Resume};
use kvasir_process::shares::SharedLimit;
use kvasir_proto::convert::{ListQuery, Registration, WorkerAddress};
use kvasir_proto::limits::{POOLS_MAX, REGISTRATIONS_BYTES_MAX, WORKERS_MAX};
use kvasir_proto::types::{HolderKind, PartitionKey, WorkerId};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

/// All registered workers, and their sources.
#[derive(Debug)]
pub struct Ingest {
    pub(super) config: IngestConfig,
    pub(super) partitions: Arc<Partitions>,
    pub(super) writer: Writer,
    pub(super) speculation: Arc<Speculation>,
    pub(super) origin: Origin,
    pub(super) metrics: IngestMetrics,
    pub(super) workers: DashMap<WorkerAddress, Arc<Worker>>,
    pub(super) ownership: Ownership,
    pub(super) map_changes: watch::Sender<()>,
    /// Whether workers cannot reach the server for reasons outside of the workers.
    input_paused: AtomicBool,
    /// Held while the set of workers changes: registrations and removals are rare and atomic.
    pub(super) control: Mutex<()>,
    pub(super) links: Common,
    /// Workers by their sockets; changes under `control`.
    pub(super) sockets: SocketIndex,
    workers_limit: SharedLimit,
    /// Limit on sockets of endpoints.
    sockets_limit: SharedLimit,
    registration_bytes: SharedLimit,
    /// Agents that provide missing batches and blocks.
    pub(super) local_indexers: Option<Arc<dyn LocalIndexers>>,
    pub(super) turns: Arc<Turns>,
    pub(super) cancel: CancellationToken,
    /// Running registrations and removals. They complete even if the caller leaves.
    changes: TaskTracker,
}

/// Outcome of a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registered {
    /// The worker was added.
    Created,
    /// An equal registration already existed.
    Present,
}

impl Ingest {
    /// Creates a registry without workers.
    #[must_use]
    pub fn new(
        config: IngestConfig,
        partitions: Arc<Partitions>,
        writer: Writer,
        speculation: Arc<Speculation>,
        origin: Origin,
        metrics: IngestMetrics,
    ) -> Self {
        let links = Common::new(config.replay_concurrency);
        let turns = Arc::new(Turns::new(config.dump_concurrency, origin));
        let ownership = Ownership::new(config.shard.clone());
        let shared = |max| SharedLimit::new(max, partitions.config().tenant_share);
        let workers_limit = shared(WORKERS_MAX);
        let sockets_limit = shared(ENDPOINT_SOCKETS_MAX);
        let registration_bytes = shared(REGISTRATIONS_BYTES_MAX);
        Self {
            config,
            partitions,
            writer,
            speculation,
            origin,
            metrics,
            workers: DashMap::new(),
            ownership,
            map_changes: watch::Sender::new(()),
            input_paused: AtomicBool::new(false),
            control: Mutex::default(),
            links,
            sockets: SocketIndex::default(),
            workers_limit,
            sockets_limit,
            registration_bytes,
            local_indexers: None,
            turns,
            cancel: CancellationToken::new(),
            changes: TaskTracker::new(),
        }
    }

    /// Adds local indexers, queried for workers whose registrations name one.
    #[must_use]
    pub fn asking(self, local_indexers: Arc<dyn LocalIndexers>) -> Self {
        Self { local_indexers: Some(local_indexers), ..self }
    }

    /// Limits the sockets for workers' endpoints, to at most [`ENDPOINT_SOCKETS_MAX`].
    #[must_use]
    pub fn limited(self, sockets_max: usize) -> Self {
        let sockets_max = sockets_max.min(ENDPOINT_SOCKETS_MAX);
        let sockets_limit = SharedLimit::new(sockets_max, self.partitions.config().tenant_share);
        Self { sockets_limit, ..self }
    }

    /// Pauses the input while workers cannot reach the server for outside reasons: the broker is down, or its backlog
    /// is still being read. Leases do not expire during a pause.
    pub fn set_input_paused(&self, paused: bool) {
        self.input_paused.store(paused, Ordering::Release);
    }

    pub(super) fn is_input_paused(&self) -> bool {
        self.input_paused.load(Ordering::Acquire)
    }

    /// Calls `visit` with the registrations of one page and the first one after it, by partition and worker, until
    /// `visit` breaks. Skips partitions for which `sees` is false. Reads every worker of the server: do not call it on
    /// a runtime thread.
    pub fn visit(
        &self,
        query: &ListQuery,
        sees: impl Fn(&PartitionKey) -> bool,
        mut visit: impl FnMut(&Registration) -> ControlFlow<()>,
    ) {
        let is_requested = |at: &WorkerAddress| {
            query.asks_for(&at.partition)
                && sees(&at.partition)
                && query.after.as_ref().is_none_or(|after| at > after)
        };
        let entries = self.workers.iter().filter(|entry| is_requested(entry.key()));
        let mut requested: Vec<_> = entries.map(|entry| Arc::clone(&entry)).collect();
        let by_address = |a: &Arc<Worker>, b: &Arc<Worker>| a.place().cmp(&b.place());
        // The page, and one more entry if there is another page.
        if requested.len() > query.page_size + 1 {
            requested.select_nth_unstable_by(query.page_size, by_address);
            requested.truncate(query.page_size + 1);
        }
        requested.sort_unstable_by(by_address);
        let _all = requested.iter().try_for_each(|worker| visit(&worker.registration));
    }

    /// The workers of a partition, in order.
    #[must_use]
    pub fn workers_of(&self, key: &PartitionKey) -> Vec<WorkerId> {
        let entries = self.workers.iter().filter(|entry| entry.key().partition == *key);
        let mut workers: Vec<_> = entries.map(|entry| entry.key().worker.clone()).collect();
        workers.sort();
        workers
    }

    /// Whether the registry is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    /// All counters of block operations and batches, in a fixed order.
    #[must_use]
    pub fn counts(&self) -> Vec<Count> {
        self.metrics.counts()
    }

    /// Whether a worker is registered.
    #[must_use]
    pub fn contains(&self, address: &WorkerAddress) -> bool {
        self.workers.contains_key(address)
    }

    /// Adds a worker on request, and connects to its endpoints.
    ///
    /// # Errors
    /// If the worker belongs to another shard, is registered with other properties, contradicts its partition, has an
    /// invalid endpoint, or exceeds a limit.
    pub async fn register(
        self: &Arc<Self>,
        registration: Registration,
    ) -> Result<Registered, IngestError> {
        self.add(registration, RegisteredBy::Request).await
    }

    /// [Registers](Self::register) a worker, or with `replace` [introduces](Self::introduce) it. Removes other workers
    /// of the same tenant from the worker's sockets.
    ///
    /// # Errors
    /// See [`register`](Self::register) and [`introduce`](Self::introduce).
    pub async fn take_over(
        self: &Arc<Self>,
        registration: Registration,
        replace: bool,
    ) -> Result<Registered, IngestError> {
        let ingest = Arc::clone(self);
        let change = async move {
            if replace {
                return ingest.introduce_now(registration, false, true).await;
            }
            let _control = ingest.control.lock().await;
            ingest.register_locked(registration, RegisteredBy::Request, true).await
        };
        self.run_to_end(change).await
    }

    /// Like [`register`](Self::register), for a worker of the configuration.
    ///
    /// # Errors
    /// See [`register`](Self::register).
    pub async fn configure(
        self: &Arc<Self>,
        registration: Registration,
    ) -> Result<Registered, IngestError> {
        self.add(registration, RegisteredBy::Configuration).await
    }

    /// Registers a worker. Continues even if the caller stops waiting.
    async fn add(
        self: &Arc<Self>,
        registration: Registration,
        by: RegisteredBy,
    ) -> Result<Registered, IngestError> {
        let ingest = Arc::clone(self);
        self.run_to_end(async move { ingest.register_now(registration, by).await }).await
    }

    /// Disconnects a worker and frees its resources. Returns the number of its blocks.
    ///
    /// # Errors
    /// If the worker is not registered, or belongs to another shard.
    pub async fn remove(self: &Arc<Self>, address: WorkerAddress) -> Result<u64, IngestError> {
        let ingest = Arc::clone(self);
        self.run_to_end(async move { ingest.remove_now(&address).await }).await
    }

    /// Runs a change to its end, even if the caller leaves meanwhile.
    pub(super) async fn run_to_end<R: Send + 'static>(
        &self,
        change: impl Future<Output = Result<R, IngestError>> + Send + 'static,
    ) -> Result<R, IngestError> {
        let outcome = self.changes.spawn(change).await;
        outcome.unwrap_or_else(|error| {
            tracing::error!(%error, "a change of the registry failed");
            Err(IngestError::Failed)
        })
    }

    /// Registers a worker, one registration at a time.
    async fn register_now(
        self: &Arc<Self>,
        registration: Registration,
        by: RegisteredBy,
    ) -> Result<Registered, IngestError> {
        let _control = self.control.lock().await;
        self.register_locked(registration, by, false).await
    }

    /// Registers a worker, or compares it with the present worker of the same address. See
    /// [`displaced`](Self::displaced) for `take_over`. The caller holds `control`.
    pub(super) async fn register_locked(
        self: &Arc<Self>,
        registration: Registration,
        by: RegisteredBy,
        take_over: bool,
    ) -> Result<Registered, IngestError> {
        let address = registration.address();
        if let Some(present) = self.workers.get(&address).map(|entry| Arc::clone(&entry)) {
            present.mark_alive(self.origin);
            let same = same_or_conflict(address, &present.registration, &registration)?;
            present.merge_registered_by(by);
            return Ok(same);
        }
        self.check_owned(&registration)?;
        let displaced = self.displaced(&registration, take_over)?;
        self.displace(displaced, &address).await?;
        let (worker, plans) = self.admit(registration, by)?;
        let worker = Arc::new(worker);
        self.set_roles(&worker).await?;
        let mut links = worker.links.lock().await;
        let attached = self.attach(&worker, &mut links, plans, Vec::new()).await;
        drop(links);
        if let Err(error) = attached {
            self.detach(&worker).await?;
            return Err(error);
        }
        worker.mark_alive(self.origin);
        worker.admit_events();
        tracing::info!(worker = %address, "worker registered");
        self.enter(address, worker);
        Ok(Registered::Created)
    }

    /// Validates a registration and takes its share of the limits. Returns the worker, with the plans of its endpoints.
    pub(super) fn admit(
        &self,
        registration: Registration,
        by: RegisteredBy,
    ) -> Result<(Worker, Vec<LinkPlan>), IngestError> {
        self.check_owned(&registration)?;
        let plans = LinkPlan::plan_all(&registration, &self.config)?;
        let room = self.take_room(&registration)?;
        let partition =
            self.partitions.get_or_create(&registration.partition, registration.block_size)?;
        if registration.kind == HolderKind::Pool && partition.pools() >= POOLS_MAX as u64 {
            return Err(IngestError::TooManyPools { key: registration.partition });
        }
        let cancel = self.cancel.child_token();
        let worker = Worker::new(registration, by, partition, cancel, room);
        Ok((worker.subscribed(plans.iter().map(|plan| plan.subscription.clone()).collect()), plans))
    }

    /// Takes the registration's worker, sockets and bytes from the shared limits. Fails if the tenant has used up its
    /// share of a limit.
    fn take_room(&self, of: &Registration) -> Result<Room, IngestError> {
        let tenant = of.partition.tenant();
        let take = |limit: &SharedLimit, what, requested| {
            let taken = limit.take(tenant, requested);
            taken.map_err(|limit| {
                let tenant = tenant.into();
                RegistrationsExhausted { what, requested, tenant, limit }
            })
        };
        let sockets = of.endpoints.iter().map(|at| 1 + usize::from(at.replay.is_some())).sum();
        Ok([
            take(&self.workers_limit, Scarce::Workers, 1)?,
            take(&self.sockets_limit, Scarce::Sockets, sockets)?,
            take(&self.registration_bytes, Scarce::Bytes, of.bytes())?,
        ])
    }

    /// Adds the sources of a worker's endpoints that are not resumed, then starts the tasks of all sources. Returns the
    /// resumed sources without an endpoint.
    pub(super) async fn attach(
        &self,
        worker: &Arc<Worker>,
        links: &mut Links,
        plans: Vec<LinkPlan>,
        mut resumed: Vec<ResumedSource>,
    ) -> Result<Vec<ResumedSource>, IngestError> {
        let mut ready = Vec::with_capacity(plans.len());
        let applied_to = || (self.writer.clone(), self.origin, self.metrics.clone());
        for plan in plans {
            let at = resumed.iter().position(|source| source.name == plan.name);
            if let Some(at) = at {
                let resumed = resumed.swap_remove(at);
                if resumed.status.applied.is_none() {
                    self.writer.presume_rank(&resumed.source, plan.rank).await?;
                }
                links.sources.push(resumed.source.clone());
                let names = resumed.names;
                let ranks = resumed.source.ranks();
                let resume = Resume { status: resumed.status, names, ranks };
                ready.push(Link::new(applied_to(), resumed.source, plan, Some(resume)));
                continue;
            }
            let named = (plan.name.as_str(), worker.registration.copy_mode);
            let writer = &self.writer;
            let added =
                writer.add_source(&worker.partition, worker.id(), named, plan.rank).await??;
            writer.presume_rank(&added, plan.rank).await?;
            links.sources.push(added.clone());
            ready.push(Link::new(applied_to(), added, plan, None));
        }
        for link in ready {
            let span = link.span(&worker.registration);
            links.tasks.spawn(link.run(self.links.clone(), worker.cancel.clone()).instrument(span));
        }
        Ok(resumed)
    }

    /// Removes a worker whose lease has expired. Does nothing if the worker has renewed its lease or was removed
    /// meanwhile.
    pub(super) async fn remove_expired(
        self: &Arc<Self>,
        worker: &Arc<Worker>,
    ) -> Result<(), IngestError> {
        let ingest = Arc::clone(self);
        let worker = Arc::clone(worker);
        self.run_to_end(async move {
            let _control = ingest.control.lock().await;
            let address = worker.address();
            if !worker.lease_is_over(ingest.origin) || worker.is_removed() {
                return Ok(());
            }
            tracing::info!(worker = %address, "the worker's lease has expired");
            ingest.remove_locked(&address).await.map(|_blocks| ())
        })
        .await
    }

    async fn remove_now(&self, address: &WorkerAddress) -> Result<u64, IngestError> {
        let _control = self.control.lock().await;
        self.remove_locked(address).await
    }

    /// Removes a worker, and returns the number of its blocks. The caller holds `control`.
    pub(super) async fn remove_locked(&self, address: &WorkerAddress) -> Result<u64, IngestError> {
        let Some((_, worker)) = self.workers.remove(address) else {
            self.check_shard(&address.worker)?;
            return Err(IngestError::UnknownWorker { address: address.clone() });
        };
        self.sockets.remove(&worker);
        worker.partition.note_removed(worker.kind());
        self.count_workers();
        let removed = self.detach(&worker).await?;
        tracing::info!(worker = %address, blocks = removed, "worker removed");
        Ok(removed)
    }

    /// Stops the sources of a worker and frees its blocks. Removes the partition with its last worker. Returns the
    /// number of freed blocks. The caller has already removed the worker from the map.
    async fn detach(&self, worker: &Worker) -> Result<u64, IngestError> {
        worker.stop_links().await;
        worker.partition.restoring(worker.kind()).end(worker.id());
        // All sockets of the worker are closed here.
        let Links { mut sources, .. } = std::mem::take(&mut *worker.links.lock().await);
        sources.extend(worker.close_publishers().await);
        let held = held_blocks(worker);
        self.speculation.remove_worker(&worker.partition, worker.id()).await;
        for source in sources {
            self.writer.remove_source(source).await?;
        }
        self.forget_roles(worker).await?;
        if worker.partition.registered() == 0 {
            self.partitions.remove(worker.partition.key());
        }
        Ok(held)
    }

    /// Adds a worker to the registry. The caller holds `control`.
    pub(super) fn enter(&self, address: WorkerAddress, worker: Arc<Worker>) {
        worker.partition.note_registered(worker.kind());
        self.sockets.add(&worker);
        self.workers.insert(address, worker);
        self.count_workers();
    }

    fn count_workers(&self) {
        self.metrics.workers.set(i64::try_from(self.workers.len()).unwrap_or(i64::MAX));
    }

    /// Stops all sources and waits for their tasks. Received events are submitted to the writer.
    pub async fn stop(&self) {
        self.changes.close();
        self.changes.wait().await;
        self.cancel.cancel();
        let workers: Vec<_> = self.workers.iter().map(|entry| Arc::clone(&entry)).collect();
        for worker in workers {
            worker.stop_links().await;
            worker.close_publishers().await;
        }
    }
}

/// Returns `Present` if a repeated registration equals the present one. Fails with the first field that differs.
fn same_or_conflict(
    address: WorkerAddress,
    present: &Registration,
    requested: &Registration,
) -> Result<Registered, IngestError> {
    match present.difference(requested) {
        None => Ok(Registered::Present),
        Some((field, present, requested)) => {
            Err(IngestError::Conflict { address, field, present, requested })
        }
    }
}

fn held_blocks(worker: &Worker) -> u64 {
    let index = worker.partition.shard_of(worker.id()).read();
    let ranks = index.worker(worker.id());
    let ranks = ranks.iter().flat_map(kvasir_index::WorkerView::holders);
    ranks.map(|rank| rank.placed_blocks() + rank.parked_blocks()).sum()
}
