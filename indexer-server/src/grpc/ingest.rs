use super::Parts;
use super::status::{status, stopping};
use crate::ingest::{Accepted, AgentStream, Arrival, BatchAnswer, Refusal, SourceSession};
use futures::FutureExt;
use kvasir_access::Principal;
use kvasir_process::access::check_worker;
use kvasir_process::port::principal;
use kvasir_process::publish::{self, Answer, Answers, PendingAnswer};
use kvasir_proto::convert::{Heartbeat, Hello, PublishedBatch};
use kvasir_proto::pb;
use kvasir_proto::pb::event_ingest_server::EventIngest;
use kvasir_proto::types::Cursor;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

/// The service `kvasir.v1.EventIngest`.
pub(super) struct EventIngestService(Parts);

/// Target of a stream's events, and its owner.
struct EventSources {
    parts: Parts,
    principal: Arc<Principal>,
}

impl EventIngestService {
    pub(super) fn new(parts: Parts) -> Self {
        Self(parts)
    }
}

/// An accepted stream.
struct OpenSession {
    session: SourceSession,
    _agent_stream: Option<AgentStream>,
}

#[tonic::async_trait]
impl EventIngest for EventIngestService {
    type PublishEventsStream = Answers;

    async fn publish_events(
        &self,
        request: Request<Streaming<pb::PublishEventsRequest>>,
    ) -> Result<Response<Answers>, Status> {
        let Parts { tasks, stop, .. } = &self.0;
        let principal = principal(&request)?;
        let sources = EventSources { parts: self.0.clone(), principal };
        Ok(publish::publish_events(Arc::new(sources), request, (tasks, stop), ()))
    }
}

impl publish::Sources for EventSources {
    type Session = OpenSession;

    async fn open(
        &self,
        hello: &Hello,
        _peer: Option<SocketAddr>,
    ) -> Result<(OpenSession, Option<Cursor>), Status> {
        check_worker(&self.principal, &hello.address)?;
        let Accepted { session, applied } =
            self.parts.ingest.open(hello, Arrival::default()).await.map_err(status)?;
        let _agent_stream = session.agent_stream(hello);
        Ok((OpenSession { session, _agent_stream }, applied))
    }

    fn note_no_hello(&self, _peer: Option<SocketAddr>, _error: &Status) {}

    fn stopping(&self) -> Status {
        stopping()
    }
}

impl publish::Session for OpenSession {
    fn fenced(&self) -> &CancellationToken {
        self.session.fenced()
    }

    fn block_size(&self) -> u32 {
        self.session.block_size()
    }

    async fn apply(&self, batch: PublishedBatch) -> PendingAnswer {
        let mut pending = self.session.apply(batch).await;
        async move { pending.wait().await.map(|answer| answer_of(&answer)).map_err(status) }.boxed()
    }

    async fn heartbeat(&self, heartbeat: Heartbeat) {
        self.session.heartbeat(heartbeat).await;
    }

    async fn expected(&self) -> u64 {
        self.session.expected().await
    }

    fn note_unreadable(&self, _sequence: u64, _error: &dyn fmt::Display) {
        self.session.count_invalid();
    }

    fn note_malformed(&self, _error: &dyn fmt::Display) {}

    async fn close(self) {
        self.session.close().await;
    }
}

/// Converts the answer to a batch. Conflicting blocks count as applied.
fn answer_of(answer: &BatchAnswer) -> Answer {
    match *answer {
        BatchAnswer::Acked { duplicate, counts } => Answer::Acked {
            duplicate,
            applied: counts.applied + counts.conflict,
            noop: counts.noop,
            rejected: counts.rejected,
        },
        BatchAnswer::Refused(Refusal::Gap { expected }) => Answer::Gap { expected },
        BatchAnswer::Refused(Refusal::Fenced) => Answer::Fenced,
    }
}
