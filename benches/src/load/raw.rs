//! Calls with pre-encoded messages and undecoded answers, so that the load generator's own cost is small and equal for
//! every server.

use anyhow::Result;
use bytes::Bytes;
use kvasir_tests::raw_codec::RawCodec;
use std::net::SocketAddr;
use std::time::Duration;
use tokio_stream::Stream;
use tonic::client::Grpc;
use tonic::codec::Streaming;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// One connection to a server, with its two measured calls.
#[derive(Debug, Clone)]
pub struct Caller {
    grpc: Grpc<Channel>,
    unary: PathAndQuery,
    stream: PathAndQuery,
}

impl Caller {
    /// Connects.
    pub async fn connect(
        address: SocketAddr,
        unary: &'static str,
        stream: &'static str,
    ) -> Result<Self> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
        let endpoint = endpoint.connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true);
        Ok(Self::over(endpoint.connect().await?, unary, stream))
    }

    /// Wraps an existing connection.
    pub fn over(channel: Channel, unary: &'static str, stream: &'static str) -> Self {
        Self {
            grpc: Grpc::new(channel),
            unary: PathAndQuery::from_static(unary),
            stream: PathAndQuery::from_static(stream),
        }
    }

    /// Sends one query and returns its answer.
    pub async fn ask(&mut self, message: Bytes) -> Result<Bytes, Status> {
        self.grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let answer = self.grpc.unary(Request::new(message), self.unary.clone(), RawCodec).await;
        answer.map(tonic::Response::into_inner)
    }

    /// Opens a stream of queries and answers.
    pub async fn open(
        &mut self,
        questions: impl Stream<Item = Bytes> + Send + 'static,
    ) -> Result<Streaming<Bytes>, Status> {
        self.grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let request = Request::new(questions);
        let answers = self.grpc.streaming(request, self.stream.clone(), RawCodec).await;
        answers.map(tonic::Response::into_inner)
    }
}
