//! Spans of requests, which continue the traces of their callers.

use hyper::StatusCode;
use kvasir_trace::extract;
use opentelemetry::trace::{TraceContextExt, TraceId};
use std::sync::atomic::{AtomicBool, Ordering};
use tracing::Span;
use tracing::field::{Empty, display};
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Whether this process exports spans. Without an exporter, requests have no spans: they would only cost time.
static EXPORTS: AtomicBool = AtomicBool::new(false);

pub(super) fn set_exports() {
    EXPORTS.store(true, Ordering::Relaxed);
}

/// A span that starts a trace, from `make`. Without an exporter, no span is made.
#[must_use]
pub fn root_span(make: impl FnOnce() -> Span) -> Span {
    if EXPORTS.load(Ordering::Relaxed) { make() } else { Span::none() }
}

/// Creates the span of a request with this path. The span continues the trace in the request's headers, which `get` reads
/// by name. Log lines in the span contain its trace id. Without an exporter, no span is made.
#[must_use]
pub fn request_span<'h>(path: &str, get: impl Fn(&str) -> Option<&'h str>) -> Span {
    if !EXPORTS.load(Ordering::Relaxed) {
        return Span::none();
    }
    let span = tracing::info_span!(
        "request",
        otel.name = path,
        otel.kind = "server",
        http.response.status_code = Empty,
        otel.status_code = Empty,
        trace_id = Empty,
    );
    let caller = extract(get);
    if caller.has_active_span() {
        // Fails if another layer has filtered the span out: then nothing is exported.
        let _filtered = span.set_parent(caller);
    }
    let trace_id = span.context().span().span_context().trace_id();
    if trace_id != TraceId::INVALID {
        span.record("trace_id", display(trace_id));
    }
    span
}

/// Records the status of a request's answer in its span.
pub fn record_status(span: &Span, status: StatusCode) {
    span.record("http.response.status_code", status.as_u16());
    if status.is_server_error() {
        span.record("otel.status_code", "ERROR");
    }
}
