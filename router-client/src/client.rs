use crate::stream::Pipeline;
use crate::workers::{LISTED_WORKERS_MAX, ListedWorker, WorkerList};
use crate::{Answer, Calls, ClientConfig, ClientError, HashedPrompt, Prompt};
use kvasir_proto::convert::TooManyBlocks;
use kvasir_proto::limits::{GRPC_MESSAGE_BYTES_MAX, QUERY_BLOCKS_MAX};
use kvasir_proto::pb::indexer_client::IndexerClient as Stub;
use kvasir_proto::pb::{
    FindMatchesRequest, FindMatchesResponse, HolderKind, ListWorkersRequest,
    RecordPlacementRequest, Tier, WorkerInfo,
};
use kvasir_proto::types::{PartitionKey, WorkerKey};
use kvasir_tls::Channel;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::{Code, Response, Status};

/// Longest time for a list of workers.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);

/// Client of one indexer; cheap to clone.
#[derive(Debug, Clone)]
pub struct IndexerClient {
    stub: Stub<Channel>,
    pipeline: Arc<Pipeline>,
    /// Whether the server has no stream because it is older than this client.
    without_stream: Arc<AtomicBool>,
    in_flight: Arc<Semaphore>,
    config: ClientConfig,
}

/// Refuses a prompt that no server accepts: a message beyond the size limit would end the stream that
/// other questions share.
pub(crate) const fn check_length(blocks: &[u64]) -> Result<(), ClientError> {
    let blocks = blocks.len();
    if blocks > QUERY_BLOCKS_MAX {
        return Err(ClientError::TooLong(TooManyBlocks { blocks }));
    }
    Ok(())
}

impl IndexerClient {
    /// A client of the indexer at `endpoint` (`host:port`, `http://host:port` or `https://host:port`). It
    /// connects when first used, and again whenever the connection is lost.
    ///
    /// # Errors
    /// If `endpoint` is no such address, or is `https://` and the configuration's dialer has no authorities.
    pub fn connect(endpoint: &str, config: ClientConfig) -> Result<Self, ClientError> {
        let channel = config.dialer.lazy_within(endpoint, config.connect_timeout)?;
        let stub = Stub::new(channel)
            .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX);
        let in_flight = config.in_flight_max.clamp(1, Semaphore::MAX_PERMITS);
        Ok(Self {
            pipeline: Arc::new(Pipeline::new(stub.clone(), in_flight, config.deadline / 2)),
            stub,
            without_stream: Arc::default(),
            in_flight: Arc::new(Semaphore::new(in_flight)),
            config,
        })
    }

    /// Finds which workers hold how much of `prompt`. A prompt that is shorter than a block gets an empty
    /// answer without a request, whatever overlap it asks for.
    ///
    /// # Errors
    /// If the prompt is too long, or the server refuses, cannot be reached, or does not answer within
    /// the deadline.
    pub async fn find(&self, prompt: &Prompt<'_>) -> Result<Answer, ClientError> {
        self.find_hashed(&prompt.hashed()).await
    }

    /// [`IndexerClient::find`] for a prompt that is hashed already.
    ///
    /// # Errors
    /// As for [`IndexerClient::find`].
    pub async fn find_hashed(&self, prompt: &HashedPrompt) -> Result<Answer, ClientError> {
        self.find_in(prompt, &[]).await
    }

    /// [`IndexerClient::find_hashed`] for blocks in these tiers; in all, if there are none.
    pub(crate) async fn find_in(
        &self,
        prompt: &HashedPrompt,
        tiers: &[Tier],
    ) -> Result<Answer, ClientError> {
        if prompt.is_short() {
            return Ok(Answer::default());
        }
        check_length(&prompt.local_hashes)?;
        let request = || prompt.request_in(tiers);
        let answer = self.call(self.ask(request(), request)).await?;
        Answer::try_from(answer)
    }

    /// Makes a query that is not too long.
    pub(crate) async fn query(&self, request: &FindMatchesRequest) -> Result<Answer, ClientError> {
        let answer = self.call(self.ask(request.clone(), || request.clone())).await?;
        Answer::try_from(answer)
    }

    /// Reports that `prompt` was just sent to `worker`. Until `ttl` is over (`None` for the server's
    /// default), answers count its blocks as speculative there. For a prompt without a complete block
    /// this sends nothing.
    ///
    /// # Errors
    /// If the prompt is too long, or the server refuses the placement (for example because the worker
    /// is not registered), cannot be reached, or does not answer within the deadline. Do not fail the
    /// placed request for any of these.
    pub async fn record_placement(
        &self,
        prompt: &Prompt<'_>,
        worker: &WorkerKey,
        ttl: Option<Duration>,
    ) -> Result<(), ClientError> {
        self.record_placement_hashed(&prompt.hashed(), worker, ttl).await
    }

    /// [`IndexerClient::record_placement`] for a prompt that is hashed already.
    ///
    /// # Errors
    /// As for [`IndexerClient::record_placement`].
    pub async fn record_placement_hashed(
        &self,
        prompt: &HashedPrompt,
        worker: &WorkerKey,
        ttl: Option<Duration>,
    ) -> Result<(), ClientError> {
        if prompt.is_short() {
            return Ok(());
        }
        check_length(&prompt.local_hashes)?;
        self.record(prompt.placement(worker, ttl)).await
    }

    /// Records a placement that is not too long.
    pub(crate) async fn record(&self, request: RecordPlacementRequest) -> Result<(), ClientError> {
        let mut stub = self.stub.clone();
        self.call(async { stub.record_placement(request).await }).await.map(drop)
    }

    /// Lists the workers of a model and tenant, or all; not the pools.
    ///
    /// # Errors
    /// If the server refuses, cannot be reached, or does not answer within 5 s.
    pub async fn list_workers(
        &self,
        partition: Option<&PartitionKey>,
    ) -> Result<Vec<ListedWorker>, ClientError> {
        self.worker_list(partition).await.map(|list| list.workers)
    }

    /// [`IndexerClient::list_workers`] with the id of the server that answered.
    ///
    /// # Errors
    /// As for [`IndexerClient::list_workers`].
    pub async fn worker_list(
        &self,
        partition: Option<&PartitionKey>,
    ) -> Result<WorkerList, ClientError> {
        let late = |_elapsed| ClientError::DeadlineExceeded { deadline: LIST_TIMEOUT };
        timeout(LIST_TIMEOUT, self.list_pages(partition)).await.map_err(late)?
    }

    async fn list_pages(
        &self,
        partition: Option<&PartitionKey>,
    ) -> Result<WorkerList, ClientError> {
        let mut stub = self.stub.clone();
        let mut list = WorkerList::default();
        let mut page_token = String::new();
        loop {
            let request = ListWorkersRequest {
                model: partition.map(|key| key.model().to_owned()),
                tenant: partition.map(|key| key.tenant().to_owned()),
                page_token,
                ..ListWorkersRequest::default()
            };
            let page = stub.list_workers(request).await;
            let page = page.map_err(|status| ClientError::Status(Box::new(status)))?.into_inner();
            let is_pool = |info: &WorkerInfo| {
                info.registration.as_ref().is_some_and(|at| at.kind() == HolderKind::Pool)
            };
            // They serve no requests.
            for info in page.workers.into_iter().filter(|info| !is_pool(info)) {
                list.workers.push(ListedWorker::try_from(info)?);
            }
            list.server_id = page.server_id;
            page_token = page.next_page_token;
            if page_token.is_empty() || list.workers.len() >= LISTED_WORKERS_MAX {
                list.workers.truncate(LISTED_WORKERS_MAX);
                return Ok(list);
            }
        }
    }

    /// The deadline of a query.
    pub(crate) const fn deadline(&self) -> Duration {
        self.config.deadline
    }

    /// Makes one call when there is room in flight, within the deadline.
    async fn call<R>(
        &self,
        call: impl Future<Output = Result<R, Status>>,
    ) -> Result<R, ClientError> {
        let deadline = self.config.deadline;
        let ask = async {
            // The semaphore is never closed, so this waits for a turn and nothing else.
            let _turn = self.in_flight.acquire().await;
            call.await
        };
        timeout(deadline, ask)
            .await
            .map_err(|_elapsed| ClientError::DeadlineExceeded { deadline })?
            .map_err(|status| ClientError::Status(Box::new(status)))
    }

    async fn ask(
        &self,
        mut request: FindMatchesRequest,
        again: impl FnOnce() -> FindMatchesRequest,
    ) -> Result<FindMatchesResponse, Status> {
        let pipelined = match self.config.calls {
            Calls::Pipelined => !self.without_stream.load(Ordering::Relaxed),
            Calls::Single => false,
        };
        if pipelined {
            match self.pipeline.find(request).await {
                Some(Err(status)) if status.code() == Code::Unimplemented => {
                    self.without_stream.store(true, Ordering::Relaxed);
                }
                Some(answer) => return answer,
                None => {}
            }
            request = again();
        }
        // On the heap: this call is rare, and would make each question's future larger by 10 KB.
        let mut stub = self.stub.clone();
        Box::pin(stub.find_matches(request)).await.map(Response::into_inner)
    }
}
