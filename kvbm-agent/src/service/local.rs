use super::ServiceConfig;
use super::config::PARTS_QUEUED_MAX;
use super::digests::send_digests;
use super::events::send_events;
use super::outlet::{Outlet, Sent, failed, refused};
use super::records::send_dump;
use kvasir_access::Principal;
use kvasir_feed::feed::Feed;
use kvasir_process::access::check_served;
use kvasir_process::port::{principal, quota, take_query};
use kvasir_proto::code::ErrorCode;
use kvasir_proto::convert::{
    DigestsQuery, EventsQuery, LocalDumpQuery, LocalSource, LocalSourceStatus, LocalStatus,
    WorkerAddress,
};
use kvasir_proto::pb;
use kvasir_proto::pb::local_indexer_server::LocalIndexer;
use std::sync::Arc;
use tokio::select;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};

/// Sources that an agent serves, all of one worker.
#[derive(Debug, Clone)]
pub struct Served {
    /// The worker.
    pub address: WorkerAddress,
    /// Tokens per block of the worker.
    pub block_size: u32,
    /// Sources of the worker, each name once.
    pub sources: Vec<Arc<Feed>>,
}

/// Service `LocalIndexer` for one worker's sources, over gRPC or NATS.
#[derive(Debug)]
pub struct LocalIndexerService {
    served: Served,
    config: ServiceConfig,
    streams: Arc<Semaphore>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

type Parts<T> = ReceiverStream<Result<T, Status>>;

impl LocalIndexerService {
    /// Creates the service. Once `stop` is cancelled, open streams end without their last message.
    #[must_use]
    pub fn new(served: Served, config: ServiceConfig, stop: CancellationToken) -> Self {
        let streams = Arc::new(Semaphore::new(config.streams_max));
        Self { served, config, streams, tasks: TaskTracker::new(), stop }
    }

    /// Worker whose sources are served.
    pub(crate) const fn address(&self) -> &WorkerAddress {
        &self.served.address
    }

    pub(crate) const fn config(&self) -> &ServiceConfig {
        &self.config
    }

    /// Token that is cancelled when the service ends.
    pub(crate) const fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Waits until all streams have ended, after the stop.
    pub(super) async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Finds the journal of a source. Fails for another worker, an unknown source, and while it is undecided whether
    /// the incarnation continues.
    fn find(&self, principal: &Principal, requested: &LocalSource) -> Result<Arc<Feed>, Status> {
        check_served(principal, &requested.address, &self.served.address)?;
        let found = self.served.sources.iter().find(|feed| feed.name() == requested.name);
        let Some(feed) = found else {
            let known: Vec<_> = self.served.sources.iter().map(|feed| feed.name()).collect();
            let text = format_args!("source {:?} is not one of {known:?}", requested.name);
            return Err(failed(ErrorCode::NotFound, text));
        };
        if !feed.is_settled() {
            let text = "whether the engine survived is not known yet: ask later";
            return Err(failed(ErrorCode::Unavailable, text));
        }
        Ok(Arc::clone(feed))
    }

    /// Opens a stream of answers. Fails if `streams_max` streams are open.
    fn outlet<T>(&self) -> Result<(Outlet<T>, Parts<T>), Status> {
        let stream = Arc::clone(&self.streams).try_acquire_owned().map_err(|_full| {
            let limit = self.config.streams_max;
            let text = format_args!("{limit} streams are under way already: ask later");
            failed(ErrorCode::ResourceExhausted, text)
        })?;
        let (parts, stream_parts) = mpsc::channel(PARTS_QUEUED_MAX);
        let stall_timeout = self.config.stall_timeout;
        let outlet = Outlet { parts, stall_timeout, _stream: stream };
        Ok((outlet, ReceiverStream::new(stream_parts)))
    }

    /// Serves a stream in a separate task. If the agent stops first, the stream ends without its last message.
    fn spawn(&self, serve: impl Future<Output = Sent> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            select! {
                () = stop.cancelled() => {}
                // A client that was cut off sees this from its stream.
                _sent = serve => {}
            }
        });
    }
}

#[tonic::async_trait]
impl LocalIndexer for LocalIndexerService {
    type GetEventsStream = Parts<pb::GetEventsResponse>;
    type DumpStream = Parts<pb::LocalDumpResponse>;
    type GetDigestsStream = Parts<pb::GetDigestsResponse>;

    async fn get_events(
        &self,
        request: Request<pb::GetEventsRequest>,
    ) -> Result<Response<Self::GetEventsStream>, Status> {
        let principal = principal(&request)?;
        let query = EventsQuery::try_from(request.into_inner()).map_err(refused)?;
        let feed = self.find(&principal, &query.source)?;
        let (outlet, parts) = self.outlet()?;
        self.spawn(async move { send_events(&feed, query, &outlet).await });
        Ok(Response::new(parts))
    }

    async fn dump(
        &self,
        request: Request<pb::LocalDumpRequest>,
    ) -> Result<Response<Self::DumpStream>, Status> {
        let principal = principal(&request)?;
        let quota = quota(&request);
        let query = LocalDumpQuery::try_from(request.into_inner()).map_err(refused)?;
        let feed = self.find(&principal, &query.source)?;
        take_query(quota.as_ref(), query.source.address.partition.tenant())?;
        let (outlet, parts) = self.outlet()?;
        self.spawn(async move { send_dump(&feed, query, &outlet).await });
        Ok(Response::new(parts))
    }

    async fn get_digests(
        &self,
        request: Request<pb::GetDigestsRequest>,
    ) -> Result<Response<Self::GetDigestsStream>, Status> {
        let principal = principal(&request)?;
        let query = DigestsQuery::try_from(request.into_inner()).map_err(refused)?;
        let feed = self.find(&principal, &query.source)?;
        let (outlet, parts) = self.outlet()?;
        self.spawn(async move { send_digests(&feed, query, &outlet).await });
        Ok(Response::new(parts))
    }

    async fn get_status(
        &self,
        request: Request<pb::GetLocalStatusRequest>,
    ) -> Result<Response<pb::GetLocalStatusResponse>, Status> {
        let principal = principal(&request)?;
        let requested = WorkerAddress::try_from(request.into_inner()).map_err(refused)?;
        check_served(&principal, &requested, &self.served.address)?;
        let sources = self.served.sources.iter().map(|feed| status(feed)).collect();
        let status = LocalStatus { block_size: self.served.block_size, sources };
        Ok(Response::new(status.into()))
    }
}

/// Builds the status of a source for clients.
fn status(feed: &Feed) -> LocalSourceStatus {
    let status = feed.status();
    LocalSourceStatus {
        name: feed.name().to_owned(),
        incarnation: status.incarnation,
        first: status.first,
        oldest: status.oldest,
        head: status.head,
        journal_batches: status.batches as u64,
        journal_bytes: status.batch_bytes as u64,
        held_blocks: status.held_blocks as u64,
        inventory_bytes: status.inventory_bytes as u64,
        copy_mode: status.copy_mode,
        incomplete: status.incomplete,
    }
}
