//! Ends an answer early, with a status of the server's choice, although its stream has more messages.

use futures::future::BoxFuture;
use http_body::{Body as HttpBody, Frame, SizeHint};
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use tonic::Status;
use tonic::codegen::Bytes;
use tonic::codegen::http::HeaderMap;

/// An answer body that ends with a status as soon as `end` is ready, between two frames of the inner body. Tonic's
/// frames contain complete messages.
pub struct Ending<B> {
    body: B,
    end: Option<BoxFuture<'static, Status>>,
}

impl<B> Ending<B> {
    /// Wraps a body until `end` is ready.
    pub const fn new(body: B, end: BoxFuture<'static, Status>) -> Self {
        Self { body, end: Some(end) }
    }
}

impl<B> HttpBody for Ending<B>
where
    B: HttpBody<Data = Bytes, Error = Status> + Unpin,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(end) = &mut self.end else { return Poll::Ready(None) };
        if let Poll::Ready(status) = end.as_mut().poll(context) {
            self.end = None;
            let mut trailers = HeaderMap::new();
            let added = status.add_header(&mut trailers);
            return Poll::Ready(Some(added.map(|()| Frame::trailers(trailers))));
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.end.is_none() || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // The body may end early, so its size is unknown.
        SizeHint::default()
    }
}

impl<B> fmt::Debug for Ending<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ending").field("is_over", &self.end.is_none()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use futures::channel::mpsc::unbounded;
    use http_body_util::{BodyExt, StreamBody};
    use tokio_util::sync::CancellationToken;
    use tonic::Code;

    #[tokio::test]
    async fn an_answer_ends_between_messages_with_the_status_that_is_ready() {
        for code in [Code::Ok, Code::DeadlineExceeded] {
            let (frames, source) = unbounded::<Result<Frame<Bytes>, Status>>();
            let over = CancellationToken::new();
            let is_over = over.clone();
            let end = async move {
                is_over.cancelled().await;
                Status::new(code, "")
            };
            let mut body = Ending::new(StreamBody::new(source), end.boxed());
            let message = Frame::data(Bytes::from_static(b"message"));
            frames.unbounded_send(Ok(message)).expect("a reader");
            let first = body.frame().await.expect("a frame").expect("no error");
            assert_eq!(first.into_data().ok().as_deref(), Some(&b"message"[..]));
            assert!(body.frame().now_or_never().is_none(), "it goes on");
            over.cancel();
            let last = body.frame().await.expect("an end").expect("no error");
            let trailers = last.into_trailers().expect("trailers");
            let status = Status::from_header_map(&trailers).expect("a status");
            assert_eq!(status.code(), code);
            assert!(body.is_end_stream() && body.frame().await.is_none());
        }
    }
}
