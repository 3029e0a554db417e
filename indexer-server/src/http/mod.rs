//! The HTTP side port: `/metrics`, `/livez`, `/readyz`. Knows telemetry only, of what the server does nothing.

use crate::{
    net::{Connection, LimitedListener},
    telemetry::{CONTENT_TYPE, Metrics, Readiness},
};
use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE as CONTENT_TYPE_HEADER},
    response::{IntoResponse, Response},
    routing::get,
    serve::Listener,
};
use prometheus_client::metrics::{counter::Counter, gauge::Gauge};
use std::{io, net::SocketAddr};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Most connections at a time.
pub const CONNECTIONS_MAX: usize = 64;

/// The side port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpConfig {
    /// Address to listen on.
    pub listen: SocketAddr,
}

/// Serves the port until `stop` is cancelled and the requests under way are answered.
///
/// # Errors
/// If the socket fails.
pub async fn serve(
    listener: TcpListener,
    metrics: Metrics,
    readiness: Readiness,
    stop: CancellationToken,
) -> io::Result<()> {
    let router = Router::new()
        .route("/metrics", get(show_metrics).with_state(metrics))
        .route("/livez", get("ok\n"))
        .route("/readyz", get(show_readiness).with_state(readiness));
    let limited =
        LimitedListener::new(listener, CONNECTIONS_MAX, Gauge::default(), Counter::default());
    axum::serve(limited, router).with_graceful_shutdown(stop.cancelled_owned()).await
}

impl Listener for LimitedListener {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        Self::accept(self).await
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Self::local_addr(self)
    }
}

async fn show_metrics(State(metrics): State<Metrics>) -> Response {
    match metrics.encode() {
        Ok(text) => ([(CONTENT_TYPE_HEADER, CONTENT_TYPE)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "the metrics cannot be written as text");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

async fn show_readiness(State(readiness): State<Readiness>) -> Response {
    if readiness.is_ready() {
        "ready\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready\n").into_response()
    }
}
