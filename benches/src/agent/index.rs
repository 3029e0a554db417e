//! A minimal index: it registers every worker, acknowledges each batch and records its arrival.

use super::stream::block;
use anyhow::Result;
use futures::future::{self, BoxFuture};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use kvasir_proto::pb;
use kvasir_proto::pb::event_ingest_server::{EventIngest, EventIngestServer};
use kvasir_proto::pb::publish_events_request::Message as Sent;
use kvasir_proto::pb::publish_events_response::Message as Answered;
use kvasir_proto::pb::published_event::Event;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::Service;

/// The last block stored by each batch, and the batch's arrival time.
type Arrivals = Vec<(u64, Instant)>;

/// Counters of the minimal index.
#[derive(Debug, Clone, Default)]
pub struct Index {
    operations: Arc<AtomicU64>,
    /// Arrivals, if recorded.
    arrivals: Option<Arc<Mutex<Arrivals>>>,
}

impl Index {
    /// Creates an index that records the arrivals of batches.
    pub fn noting() -> Self {
        Self { arrivals: Some(Arc::default()), ..Self::default() }
    }

    /// Number of blocks stored and removed so far.
    pub const fn operations(&self) -> &Arc<AtomicU64> {
        &self.operations
    }

    /// Arrivals since the last call.
    pub fn take_arrivals(&self) -> Arrivals {
        let arrivals = self.arrivals.iter();
        let mut taken = arrivals.map(|all| all.lock().unwrap_or_else(PoisonError::into_inner));
        taken.next().map(|mut all| std::mem::take(&mut *all)).unwrap_or_default()
    }

    /// Serves the index on a free port.
    pub async fn start(&self, tasks: &mut JoinSet<()>) -> Result<SocketAddr> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let ingest = EventIngestServer::new(self.clone());
        tasks.spawn(async move {
            let server = Server::builder().add_service(ingest).add_service(Register);
            // The publisher detects the end of the server.
            drop(server.serve_with_incoming(incoming).await);
        });
        Ok(address)
    }

    fn take(&self, batch: &pb::PublishBatch) {
        let now = Instant::now();
        let mut operations = 0;
        let mut last = None;
        for event in &batch.events {
            match &event.event {
                Some(Event::Stored(stored)) => {
                    operations += stored.names.len();
                    last = stored.names.last().or(last);
                }
                Some(Event::Removed(removed)) => operations += removed.names.len(),
                Some(Event::Cleared(_)) | None => {}
            }
        }
        self.operations.fetch_add(operations as u64, Ordering::Release);
        if let (Some(arrivals), Some(&name)) = (&self.arrivals, last) {
            let mut arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
            arrivals.push((block(name), now));
        }
    }

    fn answer(&self, request: pb::PublishEventsRequest) -> Option<pb::PublishEventsResponse> {
        let message = match request.message? {
            Sent::Hello(_) => Answered::Accepted(pb::PublishAccepted::default()),
            Sent::Batch(batch) => {
                self.take(&batch);
                let sequence = batch.sequence;
                Answered::Ack(pb::PublishAck { sequence, ..Default::default() })
            }
            Sent::Heartbeat(_) => return None,
        };
        Some(pb::PublishEventsResponse { message: Some(message) })
    }
}

#[tonic::async_trait]
impl EventIngest for Index {
    type PublishEventsStream = BoxStream<'static, Result<pb::PublishEventsResponse, Status>>;

    async fn publish_events(
        &self,
        request: Request<Streaming<pb::PublishEventsRequest>>,
    ) -> Result<Response<Self::PublishEventsStream>, Status> {
        let index = self.clone();
        let answer = move |request| future::ready(Ok(index.answer(request)));
        Ok(Response::new(request.into_inner().try_filter_map(answer).boxed()))
    }
}

/// Implements only `RegisterWorker` of its service.
#[derive(Debug, Clone)]
struct Register;

impl UnaryService<pb::RegisterWorkerRequest> for Register {
    type Response = pb::RegisterWorkerResponse;
    type Future = future::Ready<Result<Response<Self::Response>, Status>>;

    fn call(&mut self, _: Request<pb::RegisterWorkerRequest>) -> Self::Future {
        future::ready(Ok(Response::new(pb::RegisterWorkerResponse::default())))
    }
}

impl NamedService for Register {
    const NAME: &'static str = "kvasir.v1.Indexer";
}

impl Service<http::Request<Body>> for Register {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        type Answers = ProstCodec<pb::RegisterWorkerResponse, pb::RegisterWorkerRequest>;
        Box::pin(async move { Ok(Grpc::new(Answers::default()).unary(Self, request).await) })
    }
}
