//! An index that takes notes and does as it is told.

use futures::stream::BoxStream;
use futures::{StreamExt, future, stream};
use kvasir_proto::convert::{Heartbeat, Hello, Publication};
use kvasir_proto::pb;
use kvasir_proto::pb::event_ingest_server::{EventIngest, EventIngestServer};
use kvasir_proto::pb::publish_events_response::Message;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

/// Answers that may be worked on at a time: more than any agent sends ahead.
const ANSWERS_MAX: usize = 1_024;

/// What it does.
#[derive(Debug, Clone, Copy, Default)]
pub struct Script {
    /// It says that it stands here at first.
    pub applied: Option<u64>,
    /// It answers so many batches of each stream, then ends the stream with an error.
    pub breaks_after: Option<usize>,
    /// It answers nothing until it is allowed to.
    pub gated: bool,
}

/// What it has seen.
#[derive(Debug, Default)]
pub struct Notes {
    pub hellos: Vec<Hello>,
    /// All batches, in the order in which they came.
    pub received: Vec<u64>,
    /// Those that it has: each once, in order.
    pub applied: Vec<u64>,
    /// Numbers that heartbeats named.
    pub heartbeats: Vec<Option<u64>>,
    /// Streams whose first batch came before any heartbeat.
    pub silent_streams: usize,
}

/// The index.
#[derive(Debug, Clone)]
pub struct Index {
    script: Script,
    notes: Arc<Mutex<Notes>>,
    /// Batches received so far.
    pub received: watch::Sender<usize>,
    /// Heartbeats received so far.
    pub beats: watch::Sender<usize>,
    /// One permit for each answer.
    pub gate: Arc<Semaphore>,
}

impl Index {
    /// Serves it on a free port.
    pub async fn start(script: Script, tasks: &mut JoinSet<()>) -> (Self, SocketAddr) {
        let index = Self {
            script,
            notes: Arc::default(),
            received: watch::Sender::new(0),
            beats: watch::Sender::new(0),
            gate: Arc::new(Semaphore::new(if script.gated { 0 } else { Semaphore::MAX_PERMITS })),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let service = EventIngestServer::new(index.clone());
        let connections = stream::unfold(listener, |listener| async {
            let (connection, _) = listener.accept().await.expect("a connection");
            Some((Ok::<_, Infallible>(connection), listener))
        });
        tasks.spawn(async move {
            let server = Server::builder().add_service(service);
            server.serve_with_incoming(connections).await.expect("a server");
        });
        (index, address)
    }

    pub fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().expect("nobody panicked")
    }

    fn begin(&self, hello: Hello) -> Message {
        let mut notes = self.notes();
        let sequence = notes.applied.last().copied().or(self.script.applied);
        let incarnation = pb::PublishHello::from(hello.clone()).incarnation;
        notes.hellos.push(hello);
        let applied = sequence.map(|sequence| pb::Cursor { incarnation, sequence });
        Message::Accepted(pb::PublishAccepted { applied })
    }

    /// Takes a batch; `at` is its place in the stream.
    fn note(&self, batch: &pb::PublishBatch, at: usize) {
        let mut notes = self.notes();
        notes.received.push(batch.sequence);
        let dropped = self.script.breaks_after.is_some_and(|count| at > count);
        if !dropped {
            notes.applied.push(batch.sequence);
        }
        drop(notes);
        self.received.send_modify(|received| *received += 1);
    }

    async fn answer(
        self,
        request: Result<pb::PublishEventsRequest, Status>,
        at: usize,
    ) -> Option<Answer> {
        let publication = match request {
            Ok(request) => Publication::try_from(request).expect("a valid message"),
            Err(status) => return Some(Err(status)),
        };
        if let Publication::Heartbeat(Heartbeat { head_sequence, .. }) = publication {
            self.notes().heartbeats.push(head_sequence);
            self.beats.send_modify(|beats| *beats += 1);
            return None;
        }
        Some(self.answer_to(publication, at).await)
    }

    async fn answer_to(self, publication: Publication, at: usize) -> Answer {
        let message = match publication {
            Publication::Hello(hello) => self.begin(hello),
            Publication::Batch(batch) => {
                self.gate.acquire().await.expect("an open gate").forget();
                if self.script.breaks_after.is_some_and(|count| at > count) {
                    return Err(Status::unavailable("told to break off"));
                }
                let sequence = batch.sequence;
                Message::Ack(pb::PublishAck { sequence, ..Default::default() })
            }
            Publication::Heartbeat(_) => return Err(Status::internal("is not answered")),
        };
        Ok(pb::PublishEventsResponse { message: Some(message) })
    }
}

type Answer = Result<pb::PublishEventsResponse, Status>;

#[tonic::async_trait]
impl EventIngest for Index {
    type PublishEventsStream = BoxStream<'static, Answer>;

    async fn publish_events(
        &self,
        request: Request<Streaming<pb::PublishEventsRequest>>,
    ) -> Result<Response<Self::PublishEventsStream>, Status> {
        let index = self.clone();
        let mut others = 0;
        let mut batches = 0;
        let answers = request.into_inner().enumerate().map(move |(at, request)| {
            // Heartbeats come when they like.
            let is_heartbeat = matches!(
                &request,
                Ok(pb::PublishEventsRequest {
                    message: Some(pb::publish_events_request::Message::Heartbeat(_))
                })
            );
            let at = at - others;
            others += usize::from(is_heartbeat);
            if let Ok(pb::PublishEventsRequest { message: Some(message) }) = &request
                && let pb::publish_events_request::Message::Batch(batch) = message
            {
                index.note(batch, at);
                index.notes().silent_streams += usize::from(batches == 0 && others == 0);
                batches += 1;
            }
            index.clone().answer(request, at)
        });
        let answers = answers.buffered(ANSWERS_MAX).filter_map(future::ready);
        Ok(Response::new(answers.boxed()))
    }
}
