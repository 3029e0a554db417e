//! Requests to local indexers (agents) over gRPC, each over its own connection.

use crate::ingest::{AskError, LocalIndexers, Parts};
use futures::{StreamExt, TryFutureExt, TryStreamExt};
use kvasir_proto::convert::{
    DigestsPart, DigestsQuery, EventsPart, EventsQuery, LocalDumpPart, LocalDumpQuery,
};
use kvasir_proto::limits::GRPC_MESSAGE_BYTES_MAX;
use kvasir_proto::pb;
use kvasir_proto::pb::local_indexer_client::LocalIndexerClient;
use kvasir_tls::{Channel, Dialer};
use tonic::Status;

/// Clients of the service `kvasir.v1.LocalIndexer`, at any address.
#[derive(Debug, Clone)]
pub struct LocalClients(pub Dialer);

impl LocalIndexers for LocalClients {
    fn events(&self, url: &str, query: EventsQuery, block_size: u32) -> Parts<EventsPart> {
        let connecting = connect(self.0.clone(), url.to_owned());
        let answers = async move {
            let request = pb::GetEventsRequest::from(query);
            let answers = connecting.await?.get_events(request).await.map_err(refused)?;
            Ok(answers.into_inner().map_err(refused))
        };
        let parts = answers.try_flatten_stream();
        parts.map(move |part| Ok(EventsPart::read(part?, block_size)?)).boxed()
    }

    fn dump(&self, url: &str, query: LocalDumpQuery) -> Parts<LocalDumpPart> {
        let connecting = connect(self.0.clone(), url.to_owned());
        let answers = async move {
            let request = pb::LocalDumpRequest::from(query);
            let answers = connecting.await?.dump(request).await.map_err(refused)?;
            Ok(answers.into_inner().map_err(refused))
        };
        let parts = answers.try_flatten_stream();
        parts.map(|part| Ok(LocalDumpPart::try_from(part?)?)).boxed()
    }

    fn digests(&self, url: &str, query: DigestsQuery) -> Parts<DigestsPart> {
        let connecting = connect(self.0.clone(), url.to_owned());
        let answers = async move {
            let request = pb::GetDigestsRequest::from(query);
            let answers = connecting.await?.get_digests(request).await.map_err(refused)?;
            Ok(answers.into_inner().map_err(refused))
        };
        let parts = answers.try_flatten_stream();
        parts.map(|part| Ok(DigestsPart::try_from(part?)?)).boxed()
    }
}

async fn connect(dialer: Dialer, url: String) -> Result<LocalIndexerClient<Channel>, AskError> {
    let channel = dialer.connect(&url).await;
    let channel = channel.map_err(|error| AskError::Unreachable(error.to_string()))?;
    Ok(LocalIndexerClient::new(channel).max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX))
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn refused(status: Status) -> AskError {
    AskError::Refused(format!("{} ({:?})", status.message(), status.code()))
}
