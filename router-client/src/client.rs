use crate::{Answer, ClientConfig, ClientError, Prompt};
use kvasir_proto::limits::GRPC_MESSAGE_BYTES_MAX;
use kvasir_proto::pb::indexer_client::IndexerClient as Stub;
use kvasir_proto::types::WorkerKey;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

/// Client of one indexer; cheap to clone.
#[derive(Debug, Clone)]
pub struct IndexerClient {
    stub: Stub<Channel>,
    in_flight: Arc<Semaphore>,
    config: ClientConfig,
}

impl IndexerClient {
    /// A client of the indexer at `endpoint` (`http://host:port`). It connects when first used, and
    /// again whenever the connection is lost.
    ///
    /// # Errors
    /// If `endpoint` is not a URI.
    pub fn connect(endpoint: &str, config: ClientConfig) -> Result<Self, ClientError> {
        let unusable = |source| ClientError::Endpoint { endpoint: endpoint.to_owned(), source };
        let channel = Endpoint::from_shared(endpoint.to_owned())
            .map_err(unusable)?
            .connect_timeout(config.connect_timeout)
            .tcp_nodelay(true)
            .connect_lazy();
        let stub = Stub::new(channel)
            .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX);
        let in_flight = config.in_flight_max.clamp(1, Semaphore::MAX_PERMITS);
        Ok(Self { stub, in_flight: Arc::new(Semaphore::new(in_flight)), config })
    }

    /// Which worker holds how much of `prompt`.
    ///
    /// # Errors
    /// If the server refuses, cannot be reached, or does not answer within the deadline.
    pub async fn find(&self, prompt: &Prompt<'_>) -> Result<Answer, ClientError> {
        let request = prompt.request();
        let answer = self.call(async |mut stub| stub.find_matches(request).await).await?;
        Answer::try_from(answer)
    }

    /// Says that `prompt` was just sent to `worker`: until `ttl` is over (none for the server's
    /// default), answers count its blocks as speculative there. A prompt without a whole block
    /// says nothing and asks nobody.
    ///
    /// # Errors
    /// If the server refuses, for one because the worker is not registered, cannot be reached, or
    /// does not answer within the deadline. None of these is a reason to fail the request that was
    /// placed.
    pub async fn record_placement(
        &self,
        prompt: &Prompt<'_>,
        worker: &WorkerKey,
        ttl: Option<Duration>,
    ) -> Result<(), ClientError> {
        let request = prompt.placement(worker, ttl);
        if request.local_hashes.is_empty() {
            return Ok(());
        }
        self.call(async |mut stub| stub.record_placement(request).await).await.map(drop)
    }

    /// One call, in its turn and within the deadline.
    async fn call<R>(
        &self,
        call: impl AsyncFnOnce(Stub<Channel>) -> Result<Response<R>, Status>,
    ) -> Result<R, ClientError> {
        let deadline = self.config.deadline;
        let ask = async {
            // The semaphore is never closed, so this waits for a turn and nothing else.
            let _turn = self.in_flight.acquire().await;
            call(self.stub.clone()).await
        };
        timeout(deadline, ask)
            .await
            .map_err(|_elapsed| ClientError::DeadlineExceeded { deadline })?
            .map(Response::into_inner)
            .map_err(|status| ClientError::Status(Box::new(status)))
    }
}
