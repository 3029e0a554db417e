//! Between an agent and an index: what changes batches on their way, and what counts bytes.

use futures::{Stream, stream};
use kvasir_proto::pb;
use kvasir_proto::pb::event_ingest_client::EventIngestClient;
use kvasir_proto::pb::event_ingest_server::{EventIngest, EventIngestServer};
use kvasir_proto::pb::publish_events_request::Message;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{self, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

type Change = Arc<Mutex<dyn FnMut(&mut pb::PublishBatch) + Send>>;

/// Hands streams on to an index, each batch changed: the index is told other than what the agent said.
#[derive(Clone)]
struct Tamper {
    index: String,
    change: Change,
    /// Whether heartbeats get through.
    beats: Arc<AtomicBool>,
    streams: Arc<Mutex<JoinSet<()>>>,
}

fn connections(
    listener: TcpListener,
) -> impl Stream<Item = Result<TcpStream, Infallible>> + Send + 'static {
    stream::unfold(listener, |listener| async {
        let (connection, _) = listener.accept().await.expect("a connection");
        Some((Ok(connection), listener))
    })
}

/// Starts one before the index at `index`.
pub async fn tamper(
    index: String,
    change: impl FnMut(&mut pb::PublishBatch) + Send + 'static,
    beats: Arc<AtomicBool>,
    tasks: &mut JoinSet<()>,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let change = Arc::new(Mutex::new(change));
    let streams = Arc::default();
    let service = EventIngestServer::new(Tamper { index, change, beats, streams });
    tasks.spawn(async move {
        let server = Server::builder().add_service(service);
        server.serve_with_incoming(connections(listener)).await.expect("a server");
    });
    address
}

#[tonic::async_trait]
impl EventIngest for Tamper {
    type PublishEventsStream = Streaming<pb::PublishEventsResponse>;

    async fn publish_events(
        &self,
        request: Request<Streaming<pb::PublishEventsRequest>>,
    ) -> Result<Response<Self::PublishEventsStream>, Status> {
        let unreachable = |error: tonic::transport::Error| Status::unavailable(error.to_string());
        let client = EventIngestClient::connect(self.index.clone()).await.map_err(unreachable)?;
        let change = Arc::clone(&self.change);
        let beats = Arc::clone(&self.beats);
        let mut incoming = request.into_inner();
        let (outgoing, requests) = mpsc::channel(1);
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).spawn(async move {
            while let Ok(Some(mut request)) = incoming.message().await {
                if let Some(Message::Batch(batch)) = &mut request.message {
                    change.lock().unwrap_or_else(PoisonError::into_inner)(batch);
                }
                let is_beat = matches!(request.message, Some(Message::Heartbeat(_)));
                if is_beat && !beats.load(Ordering::Acquire) {
                    continue;
                }
                if outgoing.send(request).await.is_err() {
                    return;
                }
            }
        });
        let requests = ReceiverStream::new(requests);
        client.max_encoding_message_size(usize::MAX).publish_events(requests).await
    }
}

/// Hands connections on, and counts the bytes that come back.
pub async fn count_bytes(to: SocketAddr, tasks: &mut JoinSet<()>) -> (SocketAddr, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let bytes = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&bytes);
    tasks.spawn(async move {
        let mut pairs = JoinSet::new();
        loop {
            let (near, _) = listener.accept().await.expect("a connection");
            let far = TcpStream::connect(to).await.expect("it listens");
            let bytes = Arc::clone(&counted);
            pairs.spawn(async move {
                let ((mut near_read, near_write), (far_read, mut far_write)) =
                    (near.into_split(), far.into_split());
                // Either side may go whenever it likes.
                let there = async { io::copy(&mut near_read, &mut far_write).await.map(drop) };
                let back = count(far_read, near_write, &bytes);
                let _gone = futures::future::try_join(there, back).await;
            });
        }
    });
    (address, bytes)
}

async fn count(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    bytes: &AtomicU64,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        bytes.fetch_add(read as u64, Ordering::Relaxed);
        to.write_all(&buffer[..read]).await?;
    }
}
