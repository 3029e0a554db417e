//! Sends one HTTP/1.1 request on a connection of its own.

use anyhow::{Context, Result, anyhow};
use bytes::{Bytes, BytesMut};
use futures::future::join;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::handshake;
use hyper::header::HOST;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Maximum size of an answer, in bytes.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Sends a request to `HOST:PORT` and reads the complete response. Fails after `time`.
///
/// # Errors
/// If no response arrives in time, or it is too long.
pub async fn call(
    method: Method,
    address: (&str, u16),
    path: &str,
    body: impl Into<Bytes>,
    time: Duration,
) -> Result<(StatusCode, Bytes)> {
    call_with(method, address, path, (body.into(), time), |_part| {}).await
}

/// Like [`call`], and passes on each part of the response's body as it arrives.
///
/// # Errors
/// As [`call`].
pub async fn call_with(
    method: Method,
    (host, port): (&str, u16),
    path: &str,
    (body, time): (Bytes, Duration),
    mut on_part: impl FnMut(&[u8]),
) -> Result<(StatusCode, Bytes)> {
    let request =
        Request::builder().method(method).uri(path).header(HOST, format!("{host}:{port}"));
    let request = request.body(Full::new(body))?;
    let exchange = async {
        let stream = TcpStream::connect((host, port)).await.context("connect")?;
        stream.set_nodelay(true)?;
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
        let answered = async move {
            let response = sender.send_request(request).await?;
            let status = response.status();
            let mut parts = Limited::new(response.into_body(), ANSWER_BYTES_MAX);
            let mut body = BytesMut::new();
            while let Some(part) = parts.frame().await {
                let part = part.map_err(|why| anyhow!("read the answer: {why}"))?;
                if let Ok(part) = part.into_data() {
                    on_part(&part);
                    body.extend_from_slice(&part);
                }
            }
            anyhow::Ok((status, body.freeze()))
        };
        // The connection ends when the sender is dropped. The answer reports a failure of the connection.
        let (answered, _connection) = join(answered, connection).await;
        answered
    };
    let exchange = timeout(time, exchange).await;
    exchange.with_context(|| format!("no answer of {host}:{port} within {time:?}"))?
}
