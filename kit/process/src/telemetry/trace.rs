//! Spans of requests, which continue the traces of their callers.

use hyper::StatusCode;
use kvasir_trace::{TARGET, extract, fail};
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

pub(super) fn exports() -> bool {
    EXPORTS.load(Ordering::Relaxed)
}

/// A span that starts a trace, from `make`. Without an exporter, no span is made.
#[must_use]
pub fn root_span(make: impl FnOnce() -> Span) -> Span {
    if exports() { make() } else { Span::none() }
}

/// Creates the span of a request with this path. The span continues the trace in the request's headers, which `get` reads
/// by name, or the current one. Log lines in the span contain its trace id. Without an exporter, no span is made.
#[must_use]
pub fn request_span<'h>(path: &str, get: impl Fn(&str) -> Option<&'h str>) -> Span {
    if !exports() {
        return Span::none();
    }
    // The highest level: every filter that admits a log line admits the span, which labels the line.
    let span = tracing::error_span!(
        target: TARGET,
        "request",
        otel.name = path,
        otel.kind = "server",
        otel.status_code = Empty,
        otel.status_description = Empty,
        http.response.status_code = Empty,
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
        fail(span, &status);
    }
}
