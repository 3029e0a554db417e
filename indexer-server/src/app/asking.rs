//! Whom to ask for what publishers' streams lack, by what their registrations say.

use crate::{
    broker::LocalByBroker,
    grpc::LocalClients,
    ingest::{AskError, LocalIndexers, Parts},
};
use futures::{StreamExt, future::ready, stream};
use kvasir_proto::convert::{
    DigestsPart, DigestsQuery, EventsPart, EventsQuery, LOCAL_INDEXER_BY_BROKER, LocalDumpPart,
    LocalDumpQuery,
};

/// Local indexers at addresses, and those behind the broker.
#[derive(Debug)]
pub(super) struct Asking {
    pub(super) broker: Option<LocalByBroker>,
}

impl Asking {
    /// Who asks at a URL.
    fn way(&self, url: &str) -> Result<&dyn LocalIndexers, AskError> {
        if url != LOCAL_INDEXER_BY_BROKER {
            return Ok(&LocalClients);
        }
        let missing = || {
            let text = "the worker's agent is to be asked over NATS, and nats-url is not set";
            AskError::Refused(text.to_owned())
        };
        let broker = self.broker.as_ref().ok_or_else(missing)?;
        Ok(broker)
    }
}

fn refused<P: Send + 'static>(error: AskError) -> Parts<P> {
    stream::once(ready(Err(error))).boxed()
}

impl LocalIndexers for Asking {
    fn events(&self, url: &str, query: EventsQuery, block_size: u32) -> Parts<EventsPart> {
        self.way(url).map_or_else(refused, |way| way.events(url, query, block_size))
    }

    fn dump(&self, url: &str, query: LocalDumpQuery) -> Parts<LocalDumpPart> {
        self.way(url).map_or_else(refused, |way| way.dump(url, query))
    }

    fn digests(&self, url: &str, query: DigestsQuery) -> Parts<DigestsPart> {
        self.way(url).map_or_else(refused, |way| way.digests(url, query))
    }
}
