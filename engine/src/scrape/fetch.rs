//! Fetches a page with one GET on its own connection.

use super::FetchError;
use super::target::Target;
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use std::pin::pin;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::select;
use tokio::time::timeout;

/// Maximum bytes of an answer's head.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Fetches a body of at most `body_bytes_max` within `limit`.
///
/// # Errors
/// If no complete answer with status 200 comes within the limits.
pub async fn fetch(
    target: &Target,
    limit: Duration,
    body_bytes_max: usize,
) -> Result<Bytes, FetchError> {
    let fetched = timeout(limit, exchange(target, body_bytes_max)).await;
    fetched.unwrap_or_else(|_late| Err(FetchError::TooSlow(limit)))
}

/// Connects and requests the page once.
async fn exchange(target: &Target, body_bytes_max: usize) -> Result<Bytes, FetchError> {
    let stream = TcpStream::connect(&target.address).await.map_err(FetchError::Connect)?;
    let mut builder = Builder::new();
    builder.max_buf_size(HEAD_BYTES_MAX);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
    let mut answer = pin!(request_page(sender, target, body_bytes_max));
    let connection = pin!(connection);
    select! {
        biased;
        answer = &mut answer => answer,
        // The bytes read before the connection ended are still available.
        _ended = connection => answer.await,
    }
}

/// Sends the request and reads the body. Fails for any status but 200, and for a body over `body_bytes_max`.
async fn request_page(
    mut sender: SendRequest<Empty<Bytes>>,
    target: &Target,
    body_bytes_max: usize,
) -> Result<Bytes, FetchError> {
    let response = sender.send_request(target.request()).await?;
    if response.status() != StatusCode::OK {
        return Err(FetchError::Status(response.status().as_u16()));
    }
    let body = Limited::new(response.into_body(), body_bytes_max).collect().await;
    let body = body.map_err(|error| {
        if error.is::<LengthLimitError>() {
            FetchError::TooLarge { limit: body_bytes_max }
        } else {
            FetchError::Body(error.to_string())
        }
    })?;
    Ok(body.to_bytes())
}
