use super::access::Caller;
use super::dump::{self, DumpStream};
use super::dumpers::Dumpers;
use super::status::{status, stopping};
use super::{Parts, admin};
use crate::ingest::Registered;
use kvasir_access::Role;
use kvasir_process::access::{audit, check_adapters, check_partition, check_worker, denied};
use kvasir_process::port::{client, principal, quota, take_query};
use kvasir_proto::convert::{
    self, DumpQuery, ListQuery, Placement, Registration, ReuseReport, WorkerAddress,
};
use kvasir_proto::pb;
use kvasir_proto::pb::indexer_server::Indexer;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tonic::{Request, Response, Status};

/// The service `kvasir.v1.Indexer`, except the calls with prompts.
pub(super) struct IndexerService {
    parts: Parts,
    gathering: Arc<Semaphore>,
    dumpers: Dumpers,
}

/// Maximum concurrent answers about all workers or partitions. Each answer visits all workers or partitions, on its own
/// thread.
const GATHERED_MAX: usize = 2;

type Reply<T> = Result<Response<T>, Status>;

impl IndexerService {
    pub(super) fn new(parts: Parts) -> Self {
        let gathering = Arc::new(Semaphore::new(GATHERED_MAX));
        Self { parts, gathering, dumpers: Dumpers::default() }
    }

    /// Builds an answer on a blocking thread, once it has a permit. Skips the work if the caller leaves before.
    async fn gather<T: Send + 'static>(
        &self,
        gather: impl FnOnce(&Parts) -> T + Send + 'static,
    ) -> Reply<T> {
        let turn = Arc::clone(&self.gathering).acquire_owned().await;
        let parts = self.parts.clone();
        let turn = turn.map_err(|_closed| stopping())?;
        let gathered = spawn_blocking(move || {
            let _turn = turn;
            gather(&parts)
        });
        gathered.await.map(Response::new).map_err(|error| {
            tracing::error!(%error, "an answer could not be gathered");
            Status::internal("the server failed to gather the answer; see its log")
        })
    }

    /// Writes the changed registry to disk before the change is acknowledged. Does nothing if checkpoints are off.
    /// After a failure the change stays valid in memory, and the next checkpoint writes it.
    async fn persist(&self) -> Result<(), Status> {
        match &self.parts.checkpoints {
            Some(checkpoints) => {
                let persisted = checkpoints.create(false).await.map(drop).map_err(status);
                persisted.map_err(|at| {
                    let text = "done, but not persisted, so a restart may lose it";
                    Status::new(at.code(), format!("{text}: {}", at.message()))
                })
            }
            None => Ok(()),
        }
    }
}

#[tonic::async_trait]
impl Indexer for IndexerService {
    type DumpWorkerStream = DumpStream;

    async fn dump_worker(&self, request: Request<pb::DumpWorkerRequest>) -> Reply<DumpStream> {
        let caller = Caller::from_request(&request)?;
        let query = DumpQuery::try_from(request.into_inner()).map_err(status)?;
        dump::start(&self.parts, &self.dumpers, &caller, query).await.map(Response::new)
    }

    async fn list_workers(
        &self,
        request: Request<pb::ListWorkersRequest>,
    ) -> Reply<pb::ListWorkersResponse> {
        let principal = principal(&request)?;
        let query = ListQuery::try_from(request.into_inner()).map_err(status)?;
        self.gather(move |parts| admin::list(parts, &principal, &query)).await
    }

    async fn register_worker(
        &self,
        request: Request<pb::RegisterWorkerRequest>,
    ) -> Reply<pb::RegisterWorkerResponse> {
        let caller = client(&request).map(|at| at.ip());
        let principal = principal(&request)?;
        let request = request.into_inner();
        let replace = request.replace;
        let take_over = request.take_over;
        let registration = Registration::try_from(request).map_err(status)?;
        check_worker(&principal, &registration.address())?;
        check_adapters(&principal, &registration)?;
        let allowed = self.parts.endpoints.check(&registration, caller, principal.has(Role::Admin));
        allowed.map_err(|refused| Status::permission_denied(refused.to_string()))?;
        let address = registration.address();
        let ingest = &self.parts.ingest;
        let registered = if take_over {
            ingest.take_over(registration, replace).await
        } else if replace {
            ingest.introduce(&registration, false).await
        } else {
            ingest.register(registration).await
        };
        // Renewed leases change nothing, and are frequent.
        if !matches!(registered, Ok(Registered::Present)) {
            audit(&principal, "RegisterWorker", &address);
        }
        let created = matches!(registered.map_err(status)?, Registered::Created);
        self.persist().await?;
        Ok(Response::new(pb::RegisterWorkerResponse { created }))
    }

    async fn remove_worker(
        &self,
        request: Request<pb::RemoveWorkerRequest>,
    ) -> Reply<pb::RemoveWorkerResponse> {
        let principal = principal(&request)?;
        let address = WorkerAddress::try_from(request.into_inner()).map_err(status)?;
        check_worker(&principal, &address)?;
        audit(&principal, "RemoveWorker", &address);
        let removed_blocks = self.parts.ingest.remove(address).await.map_err(status)?;
        self.persist().await?;
        Ok(Response::new(pb::RemoveWorkerResponse { removed_blocks }))
    }

    async fn record_placement(
        &self,
        request: Request<pb::RecordPlacementRequest>,
    ) -> Reply<pb::RecordPlacementResponse> {
        let principal = principal(&request)?;
        let quota = quota(&request);
        let placement = Placement::try_from(request.into_inner()).map_err(status)?;
        let partition = &placement.address.partition;
        check_partition(&principal, partition)?;
        take_query(quota.as_ref(), partition.tenant())?;
        let recorded = self.parts.ingest.place(placement).await.map_err(status)?;
        // A prompt has at most QUERY_BLOCKS_MAX blocks.
        let count = |blocks| u32::try_from(blocks).unwrap_or(u32::MAX);
        Ok(Response::new(pb::RecordPlacementResponse {
            prompt_blocks: count(recorded.added + recorded.refreshed),
            new_blocks: count(recorded.added),
        }))
    }

    async fn report_reuse(
        &self,
        request: Request<pb::ReportReuseRequest>,
    ) -> Reply<pb::ReportReuseResponse> {
        let principal = principal(&request)?;
        let report = ReuseReport::try_from(request.into_inner()).map_err(status)?;
        check_worker(&principal, &report.address)?;
        let differing_requests = self.parts.ingest.compare_reuse(report).await.map_err(status)?;
        Ok(Response::new(pb::ReportReuseResponse { differing_requests }))
    }

    async fn create_checkpoint(
        &self,
        request: Request<pb::CreateCheckpointRequest>,
    ) -> Reply<pb::CreateCheckpointResponse> {
        let principal = principal(&request)?;
        principal.check_admin_of_all().map_err(denied)?;
        audit(&principal, "CreateCheckpoint", &"all partitions");
        let Some(checkpoints) = &self.parts.checkpoints else {
            let message = "the server writes no checkpoints: start it with --checkpoint-dir";
            return Err(Status::failed_precondition(message));
        };
        let compact = request.into_inner().compact;
        let report = checkpoints.create(compact).await.map_err(status)?;
        Ok(Response::new(pb::CreateCheckpointResponse {
            workers: u32::try_from(report.workers).unwrap_or(u32::MAX),
            blocks: report.blocks as u64,
            disk_bytes: report.disk_bytes,
            duration_ms: convert::age_ms(report.duration),
        }))
    }

    async fn get_stats(
        &self,
        request: Request<pb::GetStatsRequest>,
    ) -> Reply<pb::GetStatsResponse> {
        let principal = principal(&request)?;
        self.gather(move |parts| admin::stats(parts, &principal)).await
    }
}
