//! Calls with messages that are encoded already and answers that are not decoded: what the load
//! generator itself does is the same for every server, and little.

use anyhow::Result;
use bytes::{Buf, BufMut, Bytes};
use std::net::SocketAddr;
use std::time::Duration;
use tokio_stream::Stream;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder, Streaming};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes in, bytes out.
#[derive(Debug, Clone, Copy, Default)]
pub struct RawCodec;

impl Codec for RawCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.reserve(message.len());
        out.put(message);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(source.copy_to_bytes(source.remaining())))
    }
}

/// One connection to a server, and the two calls that it is measured by.
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

    /// Over a connection that is there.
    pub fn over(channel: Channel, unary: &'static str, stream: &'static str) -> Self {
        Self {
            grpc: Grpc::new(channel),
            unary: PathAndQuery::from_static(unary),
            stream: PathAndQuery::from_static(stream),
        }
    }

    /// One question, one answer.
    pub async fn ask(&mut self, message: Bytes) -> Result<Bytes, Status> {
        self.grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let answer = self.grpc.unary(Request::new(message), self.unary.clone(), RawCodec).await;
        answer.map(tonic::Response::into_inner)
    }

    /// A stream of questions and one of answers.
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
