use super::{
    admin,
    dump::{self, DumpStream},
    server::Parts,
    status::status,
};
use kvasir_proto::{
    convert::{DumpQuery, Placement, Registration, WorkerAddress},
    pb::{self, indexer_server::Indexer},
};
use tonic::{Request, Response, Status};

/// The service `kvasir.v1.Indexer`, but for the calls with prompts.
pub(super) struct IndexerService {
    pub(super) parts: Parts,
}

type Reply<T> = Result<Response<T>, Status>;
#[tonic::async_trait]
impl Indexer for IndexerService {
    type DumpWorkerStream = DumpStream;

    async fn dump_worker(&self, request: Request<pb::DumpWorkerRequest>) -> Reply<DumpStream> {
        let query = DumpQuery::try_from(request.into_inner()).map_err(status)?;
        dump::start(&self.parts, query).await.map(Response::new)
    }

    async fn list_workers(
        &self,
        request: Request<pb::ListWorkersRequest>,
    ) -> Reply<pb::ListWorkersResponse> {
        Ok(Response::new(admin::list(&self.parts, &request.into_inner())))
    }

    async fn register_worker(
        &self,
        request: Request<pb::RegisterWorkerRequest>,
    ) -> Reply<pb::RegisterWorkerResponse> {
        let registration = Registration::try_from(request.into_inner()).map_err(status)?;
        let registered = self.parts.ingest.register(registration).await.map_err(status)?;
        let created = matches!(registered, crate::ingest::Registered::Created);
        Ok(Response::new(pb::RegisterWorkerResponse { created }))
    }

    async fn remove_worker(
        &self,
        request: Request<pb::RemoveWorkerRequest>,
    ) -> Reply<pb::RemoveWorkerResponse> {
        let address = WorkerAddress::try_from(request.into_inner()).map_err(status)?;
        let removed_blocks = self.parts.ingest.remove(address).await.map_err(status)?;
        Ok(Response::new(pb::RemoveWorkerResponse { removed_blocks }))
    }

    async fn record_placement(
        &self,
        request: Request<pb::RecordPlacementRequest>,
    ) -> Reply<pb::RecordPlacementResponse> {
        let placement = Placement::try_from(request.into_inner()).map_err(status)?;
        let recorded = self.parts.ingest.place(placement).await.map_err(status)?;
        // A prompt has at most QUERY_BLOCKS_MAX blocks.
        let count = |blocks| u32::try_from(blocks).unwrap_or(u32::MAX);
        Ok(Response::new(pb::RecordPlacementResponse {
            prompt_blocks: count(recorded.added + recorded.refreshed),
            new_blocks: count(recorded.added),
        }))
    }

    async fn get_stats(&self, _: Request<pb::GetStatsRequest>) -> Reply<pb::GetStatsResponse> {
        Ok(Response::new(admin::stats(&self.parts)))
    }
}
