//! Pools among the registered workers: sets pool roles and connectors' chunks in the index, and removes lost pool
//! sources.

use super::push_source::Command;
use super::worker::{Publishers, Worker};
use super::{Ingest, IngestError};
use kvasir_engine::normalise::chunk_sizes;
use kvasir_proto::convert::{Registration, WorkerAddress};
use kvasir_proto::types::{EngineFacts, HolderKind};
use std::sync::Arc;
use std::time::Duration;

/// Timeout of a source that does not expire: longer than any server runs.
const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);

/// Whether the index needs no data of a worker except its blocks.
fn has_no_role(registration: &Registration) -> bool {
    let Registration { kind, pools, connector_chunks, facts, .. } = registration;
    *kind == HolderKind::Worker
        && pools.is_empty()
        && connector_chunks.is_empty()
        && *facts == EngineFacts::default()
}

impl Ingest {
    /// Stores a worker's roles in the index: whether it is a pool, the pools that it reads, its connector's chunk sizes,
    /// and facts about its engine. Call before any source feeds the worker. Returns immediately if the registration has
    /// none of these.
    pub(super) async fn set_roles(&self, worker: &Arc<Worker>) -> Result<(), IngestError> {
        let Registration { kind, pools, worker: id, connector_chunks, facts, .. } =
            &worker.registration;
        if has_no_role(&worker.registration) {
            return Ok(());
        }
        let chunks = chunk_sizes(connector_chunks)?;
        let kind = *kind;
        let facts = *facts;
        let pools = pools.clone();
        let id = id.clone();
        let shard = worker.partition.shard_of(worker.id());
        let set = move |index: &mut kvasir_index::Index| match kind {
            HolderKind::Pool => index.set_pool(&id),
            HolderKind::Worker => {
                index.set_reads(&id, &pools);
                index.set_chunks(&id, chunks);
                index.set_facts(&id, facts);
            }
        };
        Ok(self.writer.change(shard, set).await?)
    }

    /// Removes the roles of a removed worker from the index.
    pub(super) async fn forget_roles(&self, worker: &Worker) -> Result<(), IngestError> {
        if has_no_role(&worker.registration) {
            return Ok(());
        }
        let shard = worker.partition.shard_of(worker.id());
        let id = worker.id().clone();
        Ok(self.writer.change(shard, move |index| index.forget_roles(&id)).await?)
    }

    /// Checks that the registered worker belongs to this server. A pool belongs to every shard.
    ///
    /// # Errors
    /// If the worker belongs to another shard. The error names that shard.
    pub fn check_owned(&self, registration: &Registration) -> Result<(), IngestError> {
        match registration.kind {
            HolderKind::Worker => self.check_shard(&registration.worker),
            HolderKind::Pool => Ok(()),
        }
    }

    /// Like [`check_owned`](Self::check_owned), for a worker that may be registered.
    ///
    /// # Errors
    /// See [`check_owned`](Self::check_owned).
    pub fn check_address(&self, address: &WorkerAddress) -> Result<(), IngestError> {
        if self.workers.get(address).is_some_and(|worker| worker.kind() == HolderKind::Pool) {
            return Ok(());
        }
        self.check_shard(&address.worker)
    }

    /// How long a source may be disconnected before it expires.
    pub(super) fn source_timeout(&self, of: &Registration) -> Duration {
        match of.kind {
            HolderKind::Worker => of.lease.unwrap_or(self.config.worker_timeout),
            // The blocks of a pool outlive a source, so the source is removed instead.
            HolderKind::Pool => NEVER,
        }
    }

    /// Removes sources of a pool that have been disconnected for `pool-source-timeout`. First waits until another
    /// source has been connected for as long, and has seen all blocks in the store: a pool outlives its sources.
    /// Returns immediately for a worker.
    pub(super) fn give_up_sources(&self, worker: &Worker, publishers: &Publishers) {
        if worker.kind() == HolderKind::Worker {
            return;
        }
        let now = self.origin.elapsed();
        let timeout = self.config.pool_source_timeout;
        let links = || publishers.by_name.values().map(|at| (at, at.shared().link()));
        let is_over = |since: Duration| now.saturating_sub(since) >= timeout;
        if !links().any(|(_, link)| link.is_connected && is_over(link.since)) {
            return;
        }
        for (publisher, link) in links() {
            if !link.is_connected && is_over(link.since) {
                publisher.try_send(Command::GiveUp);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingest::{Accepted, Arrival, Registered, SourceSession, testing};
    use crate::partitions::Partition;
    use kvasir_proto::code::ErrorCode;
    use kvasir_proto::convert::{Hello, Placement, PublishedBatch, QueryInput};
    use kvasir_proto::pb;
    use kvasir_proto::types::{
        BlockName, CopyMode, Incarnation, KvEvent, LocalHash, LossPolicy, StoredBlock, Tier,
    };
    use tokio::task::yield_now;
    use tokio::time::{sleep, timeout};

    /// Timeout of a disconnected source.
    const AWAY: Duration = Duration::from_millis(50);
    /// Test timeout, far longer than each step takes.
    const PATIENCE: Duration = Duration::from_secs(30);

    fn ingest() -> Arc<Ingest> {
        let mut ingest = testing::ingest();
        ingest.config.pool_source_timeout = AWAY;
        ingest.config.worker_timeout = Duration::from_millis(1);
        Arc::new(ingest)
    }

    fn registration(worker: &str, kind: pb::HolderKind) -> Registration {
        let request = pb::RegisterWorkerRequest {
            worker_id: worker.to_owned(),
            model: "m".to_owned(),
            block_size: 16,
            kind: kind.into(),
            ..Default::default()
        };
        request.try_into().expect("a valid registration")
    }

    async fn open_session(ingest: &Arc<Ingest>, source: &str) -> SourceSession {
        let hello = Hello {
            address: registration("pool", pb::HolderKind::Pool).address(),
            source: source.to_owned(),
            block_size: 16,
            incarnation: Incarnation(1),
            copy_mode: CopyMode::Set,
            first_sequence: Some(0),
            head_sequence: None,
            local_indexer: None,
        };
        let Accepted { session, .. } =
            ingest.open(&hello, Arrival::default()).await.expect("a stream");
        session
    }

    async fn store(session: &SourceSession, block: u64) {
        let blocks = vec![StoredBlock { name: BlockName(block), local: LocalHash(block) }];
        let events = vec![KvEvent::Stored { parent: None, tier: Tier::Disk, blocks }];
        let batch = PublishedBatch { sequence: 0, rank: 0, events };
        session.apply(batch).await.0.await.expect("an answer").expect("it is taken");
    }

    fn held(partition: &Partition) -> u64 {
        partition.pool_pairs()
    }

    /// Introduces a pool as soon as its sources are disconnected.
    async fn until_introduced(ingest: &Arc<Ingest>, registration: &Registration) {
        while ingest.introduce(registration, false).await.is_err() {
            yield_now().await;
        }
    }

    /// Each source registers the pool before each stream. A source with another registration must not drop the blocks
    /// of the other sources.
    #[tokio::test]
    async fn a_pool_that_is_fed_stays_as_it_is_registered() {
        let ingest = ingest();
        let pool = registration("pool", pb::HolderKind::Pool);
        let clearing = Registration { loss_policy: Some(LossPolicy::Clear), ..pool.clone() };
        let key = pool.partition.clone();
        let address = pool.address();
        ingest.register(pool.clone()).await.expect("a pool");
        let partition = ingest.partitions.get(&key).expect("it is there");
        let session = open_session(&ingest, "a").await;
        store(&session, 1).await;
        for in_order in [false, true] {
            let refused = ingest.introduce(&clearing, in_order).await.expect_err("it is fed");
            assert_eq!(refused.code(), ErrorCode::FailedPrecondition, "{refused}");
            let refused = refused.to_string();
            assert!(refused.contains("has loss_policy "), "{refused}");
            assert!(refused.contains("stop all its sources first"), "{refused}");
        }
        ingest.introduce(&pool, false).await.expect("as it is");
        assert_eq!((held(&partition), session.fenced().is_cancelled()), (1, false));
        session.close().await;
        let replaced = until_introduced(&ingest, &clearing);
        timeout(PATIENCE, replaced).await.expect("no source is connected");
        assert_eq!((ingest.contains(&address), held(&partition)), (true, 0));
        // The pool had no stream since, so it can be replaced again.
        ingest.introduce(&pool, false).await.expect("no source is connected");
        ingest.stop().await;
    }

    /// A pool with another block size must be refused before its removal, because another worker has the present block
    /// size.
    #[tokio::test]
    async fn a_pool_is_not_removed_for_a_registration_that_would_be_refused() {
        let ingest = ingest();
        let pool = registration("pool", pb::HolderKind::Pool);
        ingest.register(registration("w", pb::HolderKind::Worker)).await.expect("a worker");
        ingest.register(pool.clone()).await.expect("a pool");
        let partition = ingest.partitions.get(&pool.partition).expect("it is there");
        let session = open_session(&ingest, "a").await;
        store(&session, 1).await;
        session.close().await;
        let larger = Registration { block_size: 32, ..pool };
        let refused = ingest.introduce(&larger, false).await.expect_err("another block size");
        assert!(refused.to_string().contains("block"), "{refused}");
        assert_eq!(held(&partition), 1);
        ingest.stop().await;
    }

    /// A worker that arrives while a pool is being replaced is not registered in between.
    #[tokio::test]
    async fn nothing_is_registered_between_the_removal_of_a_pool_and_its_registration() {
        let ingest = ingest();
        let pool = registration("pool", pb::HolderKind::Pool);
        ingest.register(pool.clone()).await.expect("a pool");
        let larger = Registration { block_size: 32, ..pool.clone() };
        let worker = registration("w", pb::HolderKind::Worker);
        let (pool_is, worker_is) =
            tokio::join!(ingest.introduce(&larger, false), ingest.register(worker.clone()));
        assert_eq!(pool_is.expect("it came first"), Registered::Created);
        let refused = worker_is.expect_err("another block size").to_string();
        assert!(refused.contains("block"), "{refused}");
        assert!(ingest.contains(&pool.address()) && !ingest.contains(&worker.address()));
        ingest.stop().await;
    }

    /// A disconnected source is removed once another source has been connected for long enough. The last source stays.
    #[tokio::test]
    async fn a_pool_outlives_its_sources_and_forgets_those_that_others_replace() {
        let ingest = ingest();
        let pool = registration("pool", pb::HolderKind::Pool);
        let key = pool.partition.clone();
        let address = pool.address();
        ingest.register(pool).await.expect("a pool");
        let partition = ingest.partitions.get(&key).expect("it is there");
        let first = open_session(&ingest, "a").await;
        let second = open_session(&ingest, "b").await;
        store(&first, 1).await;
        store(&second, 2).await;
        assert_eq!((held(&partition), partition.pools()), (2, 1));
        first.close().await;
        let given_up = async {
            while held(&partition) > 1 {
                ingest.expire().await.expect("it runs");
                sleep(AWAY / 10).await;
            }
        };
        timeout(PATIENCE, given_up).await.expect("it is given up");
        second.close().await;
        sleep(AWAY * 2).await;
        ingest.expire().await.expect("it runs");
        // All earlier commands to the task are complete before it opens a stream again.
        let again = open_session(&ingest, "b").await;
        assert_eq!((held(&partition), again.expected().await), (1, 1), "it continues");
        again.close().await;
        assert_eq!(ingest.remove(address).await, Ok(1));
        assert_eq!((held(&partition), partition.pools()), (0, 0));
        ingest.stop().await;
    }

    #[tokio::test]
    async fn a_pool_is_no_worker() {
        let ingest = ingest();
        let pool = registration("pool", pb::HolderKind::Pool);
        ingest.register(pool.clone()).await.expect("a pool");
        let worker = registration("pool", pb::HolderKind::Worker);
        for replace in [false, true] {
            let refused = if replace {
                ingest.introduce(&worker, false).await
            } else {
                ingest.register(worker.clone()).await
            };
            let refused = refused.expect_err("it is a pool").to_string();
            assert!(refused.contains("kind pool, not worker"), "{refused}");
        }
        let placement = Placement {
            address: pool.address(),
            rank: 0,
            block_size: None,
            input: QueryInput::Locals(vec![LocalHash(1)]),
            ttl: Duration::from_secs(1),
        };
        let refused = ingest.place(placement).await.expect_err("it serves nothing");
        assert_eq!(refused.code(), ErrorCode::FailedPrecondition, "{refused}");
        ingest.stop().await;
    }

    #[tokio::test]
    async fn there_are_so_many_pools_at_most() {
        let ingest = ingest();
        for number in 0..kvasir_proto::limits::POOLS_MAX {
            let pool = registration(&number.to_string(), pb::HolderKind::Pool);
            ingest.register(pool).await.expect("room");
        }
        let one_more = registration("more", pb::HolderKind::Pool);
        let refused = ingest.register(one_more.clone()).await.expect_err("no room");
        assert_eq!(refused.code(), ErrorCode::ResourceExhausted, "{refused}");
        ingest.register(registration("w", pb::HolderKind::Worker)).await.expect("a worker");
        ingest.remove(registration("0", pb::HolderKind::Pool).address()).await.expect("a pool");
        ingest.register(one_more).await.expect("room");
        ingest.stop().await;
    }
}
