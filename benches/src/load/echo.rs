//! The bare echo: plain tonic and plain protobuf, with the server's HTTP/2 settings.

use anyhow::Result;
use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use prost::Message;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_stream::Stream;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::{Grpc, NamedService, StreamingService, UnaryService};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::Service;

/// Path of the call with one answer.
pub const UNARY: &str = "/load.Echo/Unary";
/// Path of the stream.
pub const STREAM: &str = "/load.Echo/Stream";

/// Maximum size of an answer.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Maximum size of a message, equal to the indexer-server's.
const MESSAGE_BYTES_MAX: usize = 8 << 20;
const CONNECTION_STREAMS_MAX: u32 = 256;
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// A query to the echo.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Question {
    /// Padding.
    #[prost(bytes = "bytes", tag = "1")]
    pub payload: Bytes,
    /// Size of the answer's payload.
    #[prost(uint32, tag = "2")]
    pub answer_bytes: u32,
}

/// An answer of the echo.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Answer {
    /// Padding.
    #[prost(bytes = "bytes", tag = "1")]
    pub payload: Bytes,
}

#[derive(Clone)]
struct Echo {
    payload: Bytes,
}

impl Echo {
    fn answer(&self, question: &Question) -> Answer {
        let size = usize::try_from(question.answer_bytes).unwrap_or(usize::MAX);
        Answer { payload: self.payload.slice(..size.min(self.payload.len())) }
    }
}

impl UnaryService<Question> for Echo {
    type Response = Answer;
    type Future = futures::future::Ready<Result<Response<Answer>, Status>>;

    fn call(&mut self, request: Request<Question>) -> Self::Future {
        futures::future::ready(Ok(Response::new(self.answer(request.get_ref()))))
    }
}

type Answers = Pin<Box<dyn Stream<Item = Result<Answer, Status>> + Send>>;

impl StreamingService<Question> for Echo {
    type Response = Answer;
    type ResponseStream = Answers;
    type Future = futures::future::Ready<Result<Response<Answers>, Status>>;

    fn call(&mut self, request: Request<Streaming<Question>>) -> Self::Future {
        let echo = self.clone();
        let answers = request.into_inner().map(move |question| Ok(echo.answer(&question?)));
        futures::future::ready(Ok(Response::new(Box::pin(answers) as Answers)))
    }
}

impl NamedService for Echo {
    const NAME: &'static str = "load.Echo";
}

impl Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let echo = self.clone();
        let mut grpc = Grpc::new(ProstCodec::<Answer, Question>::default())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        if request.uri().path() == UNARY {
            Box::pin(async move { Ok(grpc.unary(echo, request).await) })
        } else {
            Box::pin(async move { Ok(grpc.streaming(echo, request).await) })
        }
    }
}

/// Serves on a free port until `stop` is ready. Reports the address through `listening`.
pub async fn serve(
    listening: impl FnOnce(SocketAddr),
    stop: impl Future<Output = ()>,
) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    listening(listener.local_addr()?);
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let echo = Echo { payload: vec![b'x'; ANSWER_BYTES_MAX].into() };
    Server::builder()
        .max_concurrent_streams(CONNECTION_STREAMS_MAX)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .add_service(echo)
        .serve_with_incoming_shutdown(incoming, stop)
        .await?;
    Ok(())
}
