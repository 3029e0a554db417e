use super::{
    Parts,
    status::{status, stopping},
};
use crate::ingest::{Accepted, AgentStream, BatchAnswer, Refusal, SourceSession};
use futures::FutureExt;
use kvasir_process::publish::{self, Answer, Answers, PendingAnswer};
use kvasir_proto::{
    convert::{Heartbeat, Hello, PublishedBatch},
    pb::{self, event_ingest_server::EventIngest},
    types::Cursor,
};
use std::{fmt, net::SocketAddr, sync::Arc};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

/// The service `kvasir.v1.EventIngest`.
pub(super) struct EventIngestService(Arc<EventSources>);

/// Where its events go.
struct EventSources(Parts);

impl EventIngestService {
    pub(super) fn new(parts: Parts) -> Self {
        Self(Arc::new(EventSources(parts)))
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
        let Parts { tasks, stop, .. } = &self.0.0;
        Ok(publish::publish_events(Arc::clone(&self.0), request, (tasks, stop), ()))
    }
}

impl publish::Sources for EventSources {
    type Session = OpenSession;

    async fn open(
        &self,
        hello: &Hello,
        _peer: Option<SocketAddr>,
    ) -> Result<(OpenSession, Option<Cursor>), Status> {
        let Accepted { session, applied } =
            self.0.ingest.open(hello, false).await.map_err(status)?;
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
