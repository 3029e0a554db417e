use crate::config::{Calls, ClientConfig};
use crate::error::ClientError;
use crate::overlap::Answer;
use crate::prompt::{HashedPrompt, Prompt};
use crate::stream::Pipeline;
use crate::workers::{LISTED_WORKERS_MAX, ListedWorker, WorkerList};
use kvasir_proto::convert::{ReuseReport, TooManyBlocks};
use kvasir_proto::limits::{GRPC_MESSAGE_BYTES_MAX, QUERY_BLOCKS_MAX};
use kvasir_proto::pb::indexer_client::IndexerClient as Stub;
use kvasir_proto::pb::{
    FindMatchesRequest, FindMatchesResponse, HolderKind, ListWorkersRequest,
    RecordPlacementRequest, ReportReuseRequest, Tier, WorkerInfo,
};
use kvasir_proto::types::{PartitionKey, WorkerKey};
use kvasir_tls::Channel;
use kvasir_trace::{fail, sampled, step};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::{Code, Response, Status};
use tracing::Instrument;

/// Timeout of [`IndexerClient::list_workers`], all pages together.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);

/// Client of one indexer; cheap to clone.
#[derive(Debug, Clone)]
pub struct IndexerClient {
    stub: Stub<Channel>,
    pipeline: Arc<Pipeline>,
    /// Whether the server is older than this client and has no stream.
    without_stream: Arc<AtomicBool>,
    in_flight: Arc<Semaphore>,
    config: ClientConfig,
}

/// Checks that a server accepts a prompt of this length. A message beyond the size limit would break the stream, which
/// other queries share.
pub(crate) const fn check_length(blocks: &[u64]) -> Result<(), ClientError> {
    let blocks = blocks.len();
    if blocks > QUERY_BLOCKS_MAX {
        return Err(ClientError::TooLong(TooManyBlocks { blocks }));
    }
    Ok(())
}

impl IndexerClient {
    /// A client of the indexer at `endpoint` (`host:port`, `http://host:port` or `https://host:port`). It connects on
    /// first use and reconnects after a lost connection.
    ///
    /// # Errors
    /// If `endpoint` is not such an address, or is `https://` and the configuration's dialer has no certificate
    /// authorities.
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

    /// Finds the workers that cache leading blocks of `prompt`. A prompt shorter than a block gets an empty answer
    /// without a request, even with `minimum_overlap_blocks` 0.
    ///
    /// # Errors
    /// If the prompt is too long, or the server refuses, cannot be reached, or does not answer within the deadline.
    pub async fn find(&self, prompt: &Prompt<'_>) -> Result<Answer, ClientError> {
        self.find_hashed(&prompt.hashed()).await
    }

    /// [`IndexerClient::find`] for an already hashed prompt.
    ///
    /// # Errors
    /// As for [`IndexerClient::find`].
    pub async fn find_hashed(&self, prompt: &HashedPrompt) -> Result<Answer, ClientError> {
        self.find_in(prompt, &[]).await
    }

    /// Queries the index, as [`IndexerClient::find_hashed`], for blocks in `tiers`; an empty list means all tiers.
    /// Returns an empty answer without a query if the prompt has no complete block.
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
        let answer = self.call(self.send_query(request(), request)).await?;
        Answer::try_from(answer)
    }

    /// Sends a query. The caller has checked its length ([`check_length`]).
    pub(crate) async fn query(&self, request: &FindMatchesRequest) -> Result<Answer, ClientError> {
        let answer = self.call(self.send_query(request.clone(), || request.clone())).await?;
        Answer::try_from(answer)
    }

    /// Reports that `prompt` was just sent to `worker`. Until `ttl` expires (`None`: the server's default), answers
    /// count the prompt's blocks as speculative on this worker. A prompt without a complete block sends no request.
    ///
    /// # Errors
    /// If the prompt is too long, or the server cannot be reached or does not answer within the deadline. Also if the
    /// server refuses the placement, for example because the worker is not registered. Do not fail the placed request
    /// because of such an error.
    pub async fn record_placement(
        &self,
        prompt: &Prompt<'_>,
        worker: &WorkerKey,
        ttl: Option<Duration>,
    ) -> Result<(), ClientError> {
        self.record_placement_hashed(&prompt.hashed(), worker, ttl).await
    }

    /// Records a placement, as [`IndexerClient::record_placement`], for an already hashed prompt. Has no effect if the
    /// prompt has no complete block.
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

    /// Records a placement. The caller has checked its length ([`check_length`]).
    pub(crate) async fn record(&self, request: RecordPlacementRequest) -> Result<(), ClientError> {
        let mut stub = self.stub.clone();
        self.call(async { stub.record_placement(request).await }).await.map(drop)
    }

    /// Reports how many prompt tokens an engine had cached, beside the `reusable_tokens` of the answer. Report only
    /// requests that ran alone at their rank. The identity must have the right to publish.
    ///
    /// # Errors
    /// If the server refuses the report, cannot be reached, or does not answer within the deadline.
    pub async fn report_reuse(&self, report: &ReuseReport) -> Result<(), ClientError> {
        let mut stub = self.stub.clone();
        let request = ReportReuseRequest::from(report);
        self.call(async { stub.report_reuse(request).await }).await.map(drop)
    }

    /// Lists the workers of a model and tenant, or all workers. Pools are left out.
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

    /// Lists workers page by page, at most [`LISTED_WORKERS_MAX`]. Pools are excluded.
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
            // Pools serve no requests.
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

    /// Deadline of a query.
    pub(crate) const fn deadline(&self) -> Duration {
        self.config.deadline
    }

    /// Makes one call within the deadline, which includes the wait for a permit.
    async fn call<R>(
        &self,
        call: impl Future<Output = Result<R, Status>>,
    ) -> Result<R, ClientError> {
        let deadline = self.config.deadline;
        let ask = async {
            // The semaphore is never closed, so acquiring a permit cannot fail.
            let _turn = self.in_flight.acquire().await;
            call.await
        };
        timeout(deadline, ask)
            .await
            .map_err(|_elapsed| ClientError::DeadlineExceeded { deadline })?
            .map_err(|status| ClientError::Status(Box::new(status)))
    }

    /// Sends a query through the stream. If the server has no streams or the stream ended, sends `again()` in a
    /// separate call.
    async fn send_query(
        &self,
        mut request: FindMatchesRequest,
        again: impl FnOnce() -> FindMatchesRequest,
    ) -> Result<FindMatchesResponse, Status> {
        let pipelined = match self.config.calls {
            // The queries of a stream share its headers. So a query of a sampled trace is sent in a call of its own, whose
            // headers continue the trace.
            Calls::Pipelined => !self.without_stream.load(Ordering::Relaxed) && sampled().is_none(),
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
        let span = step!("find_matches", otel.kind = "client");
        // On the heap: this call is rare, and would enlarge each query's future by 10 KB.
        let mut stub = self.stub.clone();
        let answer = Box::pin(stub.find_matches(request).instrument(span.clone())).await;
        if let Err(status) = &answer {
            fail(&span, status);
        }
        answer.map(Response::into_inner)
    }
}
