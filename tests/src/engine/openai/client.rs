//! One HTTP/1.1 request on a connection of its own.

use anyhow::{Context, Result};
use axum::body::Bytes;
use futures::future::join;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::handshake;
use hyper::{Method, Request, StatusCode, header::HOST};
use hyper_util::rt::TokioIo;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Most bytes of an answer.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Sends a request to `HOST:PORT` and reads the whole response. Fails if that takes longer than `time`.
///
/// # Errors
/// If there is none in time, or it is too long.
pub async fn call(
    method: Method,
    (host, port): (&str, u16),
    path: &str,
    body: impl Into<Bytes>,
    time: Duration,
) -> Result<(StatusCode, Bytes)> {
    let request =
        Request::builder().method(method).uri(path).header(HOST, format!("{host}:{port}"));
    let request = request.body(Full::new(body.into()))?;
    let exchange = async {
        let stream = TcpStream::connect((host, port)).await.context("connect")?;
        stream.set_nodelay(true)?;
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
        let answered = async move {
            let response = sender.send_request(request).await?;
            let status = response.status();
            let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|why| anyhow::anyhow!("read the answer: {why}"))?;
            anyhow::Ok((status, body.to_bytes()))
        };
        // The connection ends once the sender is dropped. What is wrong with it, the answer says.
        let (answered, _connection) = join(answered, connection).await;
        answered
    };
    let exchange = timeout(time, exchange).await;
    exchange.with_context(|| format!("no answer of {host}:{port} within {time:?}"))?
}
