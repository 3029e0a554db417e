//! Continues a trace from process to process, in the headers of [W3C Trace Context](https://www.w3.org/TR/trace-context/).
//!
//! A program that exports spans sets the global propagator of `opentelemetry`. Otherwise, headers are neither sent nor
//! read. A program that links `router-client` and exports its own spans gets its traces continued in the index.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::Context;
use opentelemetry::global::get_text_map_propagator;
use opentelemetry::propagation::{Extractor, Injector};
use opentelemetry::trace::{TraceContextExt, TraceId};
use std::fmt::Display;
use std::marker::PhantomData;
use tracing::Span;

/// Target of the spans of traces, which are exported.
pub const TARGET: &str = "kvasir::trace";

/// Trace id of the current span, if its trace is sampled.
#[must_use]
pub fn sampled() -> Option<TraceId> {
    Context::map_current(|current| {
        let span = current.span();
        let at = span.span_context();
        at.is_sampled().then(|| at.trace_id())
    })
}

/// A span of a step of the current trace, with a name and fields as in `tracing::info_span!`. Without a sampled trace, no
/// span is made.
#[macro_export]
macro_rules! step {
    ($name:literal $(, $($fields:tt)*)?) => {
        if $crate::sampled().is_some() {
            $crate::span!($name $(, $($fields)*)?)
        } else {
            ::tracing::Span::none()
        }
    };
}

/// A span of a trace, with a name and fields as in `tracing::info_span!`.
#[macro_export]
macro_rules! span {
    ($name:literal $(, $($fields:tt)*)?) => {
        ::tracing::info_span!(
            target: $crate::TARGET,
            $name,
            otel.status_code = ::tracing::field::Empty,
            otel.status_description = ::tracing::field::Empty
            $(, $($fields)*)?
        )
    };
}

/// Marks a span of a trace as failed.
pub fn fail(span: &Span, why: &dyn Display) {
    span.record("otel.status_code", "ERROR");
    span.record("otel.status_description", tracing::field::display(why));
}

/// Adds the current span to the headers of a call, so that the called process continues the trace. Without a current
/// span, the headers stay as they are.
pub fn inject(headers: &mut HeaderMap) {
    inject_with(|name, value| {
        let name = HeaderName::try_from(name);
        if let (Ok(name), Ok(value)) = (name, HeaderValue::try_from(value)) {
            headers.insert(name, value);
        }
    });
}

/// [`inject`] for headers that are not HTTP headers: calls `set` with each name and value.
pub fn inject_with(set: impl FnMut(&str, String)) {
    Context::map_current(|current| {
        if current.has_active_span() {
            let mut writer = Writer(set);
            get_text_map_propagator(|propagator| propagator.inject_context(current, &mut writer));
        }
    });
}

/// Reads the caller's span from the headers of its call, through `get`. Returns an empty context without a valid one.
#[must_use]
pub fn extract<'h>(get: impl Fn(&str) -> Option<&'h str>) -> Context {
    let reader = Reader(get, PhantomData);
    get_text_map_propagator(|propagator| propagator.extract_with_context(&Context::new(), &reader))
}

struct Writer<F>(F);

impl<F: FnMut(&str, String)> Injector for Writer<F> {
    fn set(&mut self, key: &str, value: String) {
        (self.0)(key, value);
    }
}

struct Reader<'h, F>(F, PhantomData<&'h str>);

impl<'h, F: Fn(&str) -> Option<&'h str>> Extractor for Reader<'h, F> {
    fn get(&self, key: &str) -> Option<&str> {
        (self.0)(key)
    }

    /// Propagators of W3C Trace Context do not list keys.
    fn keys(&self) -> Vec<&str> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use opentelemetry::global::set_text_map_propagator;
    use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceState};
    use opentelemetry_sdk::propagation::TraceContextPropagator;

    const TRACE: u128 = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;

    fn context(flags: TraceFlags) -> Context {
        let state = TraceState::default();
        let span = SpanContext::new(TRACE.into(), SpanId::from(7), flags, true, state);
        Context::new().with_remote_span_context(span)
    }

    /// One test, because the propagator is global.
    #[test]
    fn the_called_process_continues_the_trace() {
        let mut headers = HeaderMap::new();
        let guard = context(TraceFlags::SAMPLED).attach();
        inject(&mut headers);
        assert!(headers.is_empty(), "without a propagator, nothing is sent: {headers:?}");
        drop(guard);
        set_text_map_propagator(TraceContextPropagator::new());
        inject(&mut headers);
        assert!(headers.is_empty(), "without a span, nothing is sent: {headers:?}");
        assert_eq!(sampled(), None);

        for (flags, trace) in
            [(TraceFlags::SAMPLED, Some(TraceId::from(TRACE))), (TraceFlags::default(), None)]
        {
            let guard = context(flags).attach();
            assert_eq!(sampled(), trace);
            assert_eq!(step!("step", at = 7).is_none(), trace.is_none());
            inject(&mut headers);
            drop(guard);
            let read = extract(|name| headers.get(name)?.to_str().ok());
            let read = read.span().span_context().clone();
            assert_eq!((read.trace_id(), read.span_id()), (TRACE.into(), SpanId::from(7)));
            assert_eq!(read.is_sampled(), trace.is_some());
        }
        for malformed in ["", "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", "x-y"] {
            let read = extract(|name| (name == "traceparent").then_some(malformed));
            assert!(!read.has_active_span(), "{malformed:?}");
        }
    }
}
