//! The HTTP side port: `/metrics`, `/livez`, `/readyz`. Knows telemetry only, of what the server does nothing.

use crate::{
    net::{Connection, LimitedListener, Patience},
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
use prometheus_client::{
    encoding::text,
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};
use std::{fmt, io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Most connections at a time.
pub const CONNECTIONS_MAX: usize = 64;
/// How long a connection may be silent: scrapers that keep theirs use it more often.
const PATIENCE: Patience =
    Patience { first_byte: Duration::from_secs(10), idle: Duration::from_secs(90) };

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
    let (open, refused) = (Gauge::default(), Counter::default());
    let shown = Shown { server: metrics, port: Arc::new(register(&open, &refused)) };
    let router = Router::new()
        .route("/metrics", get(show_metrics).with_state(shown))
        .route("/livez", get("ok\n"))
        .route("/readyz", get(show_readiness).with_state(readiness));
    let limited = LimitedListener::new(listener, CONNECTIONS_MAX, PATIENCE, open, refused);
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

/// All that `/metrics` shows: the port counts its own connections.
#[derive(Debug, Clone)]
struct Shown {
    server: Metrics,
    port: Arc<Registry>,
}

fn register(open: &Gauge, refused: &Counter) -> Registry {
    let mut registry = Registry::with_prefix("kvasir");
    registry.register("http_connections", "Open HTTP connections", open.clone());
    registry.register(
        "http_connections_refused",
        "HTTP connections closed at once: the most were open",
        refused.clone(),
    );
    registry
}

impl Shown {
    /// The port's metrics, then the server's, which end the text.
    fn encode(&self) -> Result<String, fmt::Error> {
        let mut shown = String::new();
        text::encode_registry(&mut shown, &self.port)?;
        shown.push_str(&self.server.encode()?);
        Ok(shown)
    }
}

async fn show_metrics(State(shown): State<Shown>) -> Response {
    match shown.encode() {
        Ok(text) => ([(CONTENT_TYPE_HEADER, CONTENT_TYPE)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "the metrics cannot be written as text");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

async fn show_readiness(State(readiness): State<Readiness>) -> Response {
    let reasons = readiness.reasons();
    let (status, mut text) = if reasons.is_empty() {
        (StatusCode::OK, "ready\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {}\n", reasons.join("; ")))
    };
    for complaint in readiness.complaints() {
        text.push_str(&format!("not well: {complaint}\n"));
    }
    (status, text).into_response()
}
