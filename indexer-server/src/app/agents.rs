//! Requests to agents, over gRPC or the broker, according to their registrations.

use crate::broker::LocalByBroker;
use crate::grpc::LocalClients;
use crate::ingest::{AskError, LocalIndexers, Parts};
use futures::future::ready;
use futures::{StreamExt, stream};
use kvasir_process::telemetry::root_span;
use kvasir_proto::convert::{
    DigestsPart, DigestsQuery, EventsPart, EventsQuery, LOCAL_INDEXER_BY_BROKER, LocalDumpPart,
    LocalDumpQuery,
};
use kvasir_trace::{fail, span};
use std::task::{Context, Poll};

/// Agents at URLs, and agents behind the broker.
#[derive(Debug)]
pub(super) struct Agents {
    pub(super) dialled: LocalClients,
    pub(super) broker: Option<LocalByBroker>,
}

impl Agents {
    /// Returns the client for the URL of an agent's local indexer: over NATS, or over gRPC. Fails for a URL over NATS
    /// if `nats-url` is unset.
    fn client_for(&self, url: &str) -> Result<&dyn LocalIndexers, AskError> {
        if url != LOCAL_INDEXER_BY_BROKER {
            return Ok(&self.dialled);
        }
        let missing = || {
            let text = "the worker's agent is reachable only over NATS, and nats-url is not set";
            AskError::Refused(text.to_owned())
        };
        let broker = self.broker.as_ref().ok_or_else(missing)?;
        Ok(broker)
    }
}

fn refused<P: Send + 'static>(error: AskError) -> Parts<P> {
    stream::once(ready(Err(error))).boxed()
}

/// Receives an answer in a span of its own. The agent continues its trace.
fn traced<P: Send + 'static>(call: &'static str, agent: &str, mut parts: Parts<P>) -> Parts<P> {
    let span = root_span(|| span!("ask_agent", otel.kind = "client", call, agent));
    let next = move |context: &mut Context<'_>| {
        let polled = span.in_scope(|| parts.poll_next_unpin(context));
        if let Poll::Ready(Some(Err(error))) = &polled {
            fail(&span, error);
        }
        polled
    };
    stream::poll_fn(next).boxed()
}

impl LocalIndexers for Agents {
    fn events(&self, url: &str, query: EventsQuery, block_size: u32) -> Parts<EventsPart> {
        let asked = |agents: &dyn LocalIndexers| agents.events(url, query, block_size);
        traced("events", url, self.client_for(url).map_or_else(refused, asked))
    }

    fn dump(&self, url: &str, query: LocalDumpQuery) -> Parts<LocalDumpPart> {
        let asked = |agents: &dyn LocalIndexers| agents.dump(url, query);
        traced("dump", url, self.client_for(url).map_or_else(refused, asked))
    }

    fn digests(&self, url: &str, query: DigestsQuery) -> Parts<DigestsPart> {
        let asked = |agents: &dyn LocalIndexers| agents.digests(url, query);
        traced("digests", url, self.client_for(url).map_or_else(refused, asked))
    }
}
