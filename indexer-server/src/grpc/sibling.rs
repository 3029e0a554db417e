//! Asking siblings over gRPC, each over one connection.

use crate::siblings::{CopyError, DumpParts, Sibling};
use futures::{FutureExt, StreamExt, TryFutureExt, TryStreamExt, future::BoxFuture};
use kvasir_process::causes::causes;
use kvasir_proto::{
    convert::{DumpQuery, ListedWorker, WorkerDumpPart},
    limits::GRPC_MESSAGE_BYTES_MAX,
    pb::{self, indexer_client::IndexerClient},
};
use std::time::Duration;
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint, Error},
};

/// Longest time until a connection is there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A client of the service `kvasir.v1.Indexer` of another replica. It connects when it asks.
#[derive(Debug, Clone)]
pub struct SiblingClient {
    url: String,
    indexer: IndexerClient<Channel>,
}

impl SiblingClient {
    /// A client of the server at a URL.
    ///
    /// # Errors
    /// If the URL cannot be used.
    pub fn new(url: String) -> Result<Self, Error> {
        let endpoint = Endpoint::from_shared(url.clone())?;
        let channel = endpoint.connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true).connect_lazy();
        let indexer = IndexerClient::new(channel);
        Ok(Self { url, indexer: indexer.max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX) })
    }
}

impl Sibling for SiblingClient {
    fn url(&self) -> &str {
        &self.url
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<ListedWorker>, CopyError>> {
        let mut indexer = self.indexer.clone();
        let list = async move {
            let request = pb::ListWorkersRequest::default();
            let listed = indexer.list_workers(request).await.map_err(refused)?.into_inner();
            let read = listed.workers.into_iter().filter_map(|worker| {
                let worker_id = worker.worker_id.clone();
                let read = ListedWorker::try_from(worker);
                read.inspect_err(|error| {
                    let sibling = &self.url;
                    tracing::warn!(worker_id, sibling, %error, "a listed worker is not copied");
                })
                .ok()
            });
            Ok(read.collect())
        };
        list.boxed()
    }

    fn dump(&self, query: DumpQuery) -> DumpParts {
        let mut indexer = self.indexer.clone();
        let answers = async move {
            let request = pb::DumpWorkerRequest::from(query);
            let answers = indexer.dump_worker(request).await;
            Ok(answers?.into_inner())
        };
        let parts = answers.try_flatten_stream().map_err(refused);
        parts.map(|part| Ok(WorkerDumpPart::try_from(part?)?)).boxed()
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn refused(status: Status) -> CopyError {
    let code = status.code();
    if code == Code::NotFound {
        CopyError::Unknown
    } else if code == Code::Aborted {
        CopyError::CutOff(status.message().to_owned())
    } else if [Code::Unavailable, Code::Unknown, Code::Cancelled].contains(&code) {
        CopyError::Unreachable(causes(&status))
    } else {
        CopyError::Refused(format!("{} ({code:?})", status.message()))
    }
}
