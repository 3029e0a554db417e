//! Requests to siblings over gRPC, each sibling over one connection.

use crate::siblings::{CopyError, DumpParts, ListPages, Sibling};
use futures::{StreamExt, TryFutureExt, TryStreamExt, stream};
use kvasir_proto::convert::{DumpQuery, ListedWorker, WorkerDumpPart};
use kvasir_proto::limits::GRPC_MESSAGE_BYTES_MAX;
use kvasir_proto::pb;
use kvasir_proto::pb::indexer_client::IndexerClient;
use kvasir_tasks::causes::causes;
use kvasir_tls::{Channel, DialError, Dialer};
use tonic::{Code, Status};

/// A client of the service `kvasir.v1.Indexer` of another replica. Connects at the first request.
#[derive(Debug, Clone)]
pub struct SiblingClient {
    url: String,
    indexer: IndexerClient<Channel>,
}

impl SiblingClient {
    /// Creates a client for the server at a URL.
    ///
    /// # Errors
    /// If the URL is invalid.
    pub fn new(url: String, dialer: &Dialer) -> Result<Self, DialError> {
        let indexer = IndexerClient::new(dialer.lazy(&url)?);
        Ok(Self { url, indexer: indexer.max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX) })
    }
}

/// The client and the token for the next page. `None` after the last page.
type NextPage = Option<(SiblingClient, String)>;

impl SiblingClient {
    /// Fetches the next page of the sibling's workers, and returns it with the token of the page after it. Returns
    /// `None` after the last page.
    async fn page(next: NextPage) -> Result<Option<(Vec<ListedWorker>, NextPage)>, CopyError> {
        let Some((mut sibling, page_token)) = next else { return Ok(None) };
        let request = pb::ListWorkersRequest { page_token, ..Default::default() };
        let listed = sibling.indexer.list_workers(request).await.map_err(refused)?.into_inner();
        let workers =
            listed.workers.into_iter().filter_map(|worker| sibling.convert_worker(worker));
        let workers = workers.collect();
        let next = Some(listed.next_page_token).filter(|token| !token.is_empty());
        Ok(Some((workers, next.map(|token| (sibling, token)))))
    }

    /// Converts a listed worker. Logs an invalid one and returns `None`.
    fn convert_worker(&self, worker: pb::WorkerInfo) -> Option<ListedWorker> {
        let worker_id = worker.worker_id.clone();
        let read = ListedWorker::try_from(worker);
        read.inspect_err(|error| {
            let sibling = &self.url;
            tracing::warn!(worker_id, sibling, %error, "cannot copy a worker that the sibling listed: skipping it");
        })
        .ok()
    }
}

impl Sibling for SiblingClient {
    fn url(&self) -> &str {
        &self.url
    }

    fn list(&self) -> ListPages {
        stream::try_unfold(Some((self.clone(), String::new())), Self::page).boxed()
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

/// Converts the status of a sibling's call to the reason of the failed copy.
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
