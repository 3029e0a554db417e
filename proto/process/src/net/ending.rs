//! Answers that end before their source does.

use futures::future::BoxFuture;
use http_body::{Body as HttpBody, Frame, SizeHint};
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};
use tonic::{
    Status,
    codegen::{Bytes, http::HeaderMap},
};

/// The body of an answer that ends with a status when that is ready, between two of the frames of the body within: tonic's
/// have whole messages.
pub struct Ending<B> {
    body: B,
    end: Option<BoxFuture<'static, Status>>,
}

impl<B> Ending<B> {
    /// The same body, until `end` is ready.
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
        // It may end earlier, so nothing is promised.
        SizeHint::default()
    }
}

impl<B> fmt::Debug for Ending<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ending").field("is_over", &self.end.is_none()).finish_non_exhaustive()
    }
}
