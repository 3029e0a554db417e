//! Registers a worker at an index before its stream, and removes it afterwards if configured.

use super::UplinkError;
use super::stream::connect;
use kvasir_proto::convert::{Registration, WorkerAddress};
use kvasir_proto::pb::indexer_client::IndexerClient;
use kvasir_proto::pb::{RegisterWorkerRequest, RemoveWorkerRequest};
use kvasir_tls::Dialer;
use std::time::Duration;
use tokio::time::timeout;
use tonic::{Code, Status};

/// Maximum time of a registration or removal, once connected.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

async fn within<T>(call: impl Future<Output = Result<T, Status>>) -> Result<T, UplinkError> {
    let answer = timeout(CALL_TIMEOUT, call).await;
    let answer = answer.map_err(|_late| UplinkError::Silent(CALL_TIMEOUT))?;
    answer.map_err(|status| UplinkError::Status(Box::new(status)))
}

/// Registers a worker at an index. Replaces a worker of the same name whose registration differs.
pub(super) async fn register(
    to: (&Dialer, &str),
    registration: &Registration,
) -> Result<(), UplinkError> {
    let mut index = IndexerClient::new(connect(to).await?);
    let request = RegisterWorkerRequest { replace: true, ..registration.into() };
    match within(index.register_worker(request)).await {
        Err(UplinkError::Status(status)) if status.code() == Code::Unimplemented => {
            Err(UplinkError::NoRegistry)
        }
        registered => registered.map(drop),
    }
}

/// Removes a worker from an index. Succeeds if the worker is unknown there.
pub(super) async fn remove(to: (&Dialer, &str), worker: &WorkerAddress) -> Result<(), UplinkError> {
    let mut index = IndexerClient::new(connect(to).await?);
    let request = RemoveWorkerRequest {
        worker_id: worker.worker.as_str().to_owned(),
        model: worker.partition.model().to_owned(),
        tenant: worker.partition.tenant().to_owned(),
    };
    match within(index.remove_worker(request)).await {
        Err(UplinkError::Status(status)) if status.code() == Code::NotFound => Ok(()),
        removed => removed.map(drop),
    }
}
