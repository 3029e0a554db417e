//! An engine that publishes directly to an index over gRPC.

use super::stream::{BLOCK_SIZE, Batch, NAME};
use crate::load::fleet::{applied, batch, ingest_client};
use anyhow::{Context, Result};
use kvasir_proto::pb;
use kvasir_proto::pb::publish_events_request::Message as Request;
use kvasir_sim::client;
use std::net::SocketAddr;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;

/// Maximum number of published batches that are not sent yet.
const WAITING_MAX: usize = 256;

/// The engine's stream of batches.
pub struct GrpcPublisher {
    requests: mpsc::Sender<pb::PublishEventsRequest>,
    sequence: u64,
}

impl GrpcPublisher {
    /// Registers the worker and opens the stream. Its task ends with the stream, and immediately if a batch is
    /// rejected.
    pub async fn start(index: SocketAddr, tasks: &mut JoinSet<()>) -> Result<Self> {
        let registration = pb::RegisterWorkerRequest {
            worker_id: NAME.to_owned(),
            model: NAME.to_owned(),
            block_size: BLOCK_SIZE as u32,
            ..Default::default()
        };
        client::connect(index).await?.register_worker(registration).await?;
        let endpoint = Endpoint::from_shared(format!("http://{index}"))?.tcp_nodelay(true);
        let mut ingest = ingest_client(endpoint.connect().await?);
        let (requests, waiting) = mpsc::channel(WAITING_MAX);
        let hello = pb::PublishHello {
            worker_id: NAME.to_owned(),
            model: NAME.to_owned(),
            source: "bench".to_owned(),
            block_size: BLOCK_SIZE as u32,
            incarnation: vec![1; 16].into(),
            ..Default::default()
        };
        let hello = pb::PublishEventsRequest { message: Some(Request::Hello(hello)) };
        requests.send(hello).await.context("the stream")?;
        let answers = ingest.publish_events(ReceiverStream::new(waiting)).await?;
        let mut answers = answers.into_inner();
        tasks.spawn(async move {
            let end = loop {
                match answers.message().await.map(|answer| answer.map(applied)) {
                    Ok(Some(Ok(_blocks))) => {}
                    Ok(None) => return,
                    Ok(Some(Err(refusal))) => break refusal,
                    Err(status) => break status.into(),
                }
            };
            eprintln!("the index ends the engine's stream: {end:#}");
        });
        Ok(Self { requests, sequence: 0 })
    }

    /// Publishes a batch.
    pub async fn publish(&mut self, events: &Batch) -> Result<()> {
        let request = batch(self.sequence, events.published());
        self.sequence += 1;
        self.requests.send(request).await.context("the index ended the stream")
    }
}
