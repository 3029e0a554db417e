use super::{
    admin,
    dump::{self, DumpStream},
    server::Parts,
    status::{status, stopping},
};
use futures::{Stream, StreamExt, future, stream};
use kvasir_proto::{
    convert::{DumpQuery, FindQuery, Placement, Registration, WorkerAddress},
    pb::{self, indexer_server::Indexer},
};
use std::pin::Pin;
use tonic::{Request, Response, Status, Streaming};

/// The service `kvasir.v1.Indexer`.
pub(super) struct IndexerService {
    pub(super) parts: Parts,
}

type Reply<T> = Result<Response<T>, Status>;
type FindStream = Pin<Box<dyn Stream<Item = Result<pb::FindMatchesStreamResponse, Status>> + Send>>;

fn find(parts: &Parts, request: pb::FindMatchesRequest) -> Result<pb::FindMatchesResponse, Status> {
    let request_id = request.request_id;
    let query = FindQuery::try_from(request).map_err(status)?;
    let answer = parts.finder.find(&query).map_err(status)?;
    Ok(answer.into_message(request_id))
}

fn find_in_stream(parts: &Parts, request: pb::FindMatchesRequest) -> pb::FindMatchesStreamResponse {
    let request_id = request.request_id;
    let outcome = match find(parts, request) {
        Ok(matches) => pb::find_matches_stream_response::Outcome::Matches(matches),
        Err(error) => pb::find_matches_stream_response::Outcome::Error(pb::StreamError {
            code: error.code().into(),
            message: error.message().to_owned(),
        }),
    };
    pb::FindMatchesStreamResponse { request_id, outcome: Some(outcome) }
}

#[tonic::async_trait]
impl Indexer for IndexerService {
    type FindMatchesStreamStream = FindStream;
    type DumpWorkerStream = DumpStream;

    async fn find_matches(
        &self,
        request: Request<pb::FindMatchesRequest>,
    ) -> Reply<pb::FindMatchesResponse> {
        find(&self.parts, request.into_inner()).map(Response::new)
    }

    /// Answers are made as the client takes them, one request at a time: nothing is queued here,
    /// and HTTP/2 flow control holds a client back that sends faster than it reads.
    async fn find_matches_stream(
        &self,
        request: Request<Streaming<pb::FindMatchesRequest>>,
    ) -> Reply<FindStream> {
        let parts = self.parts.clone();
        let stop = parts.stop.clone();
        let answers = request
            .into_inner()
            .map(move |request| request.map(|request| find_in_stream(&parts, request)));
        let until = stop.clone().cancelled_owned();
        let end = stream::once(future::lazy(move |_| stop.is_cancelled()));
        let end = end.filter_map(|stopped| future::ready(stopped.then(|| Err(stopping()))));
        Ok(Response::new(Box::pin(answers.take_until(until).chain(end))))
    }

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
