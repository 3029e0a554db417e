use super::export::LoggedExporter;
use super::{COMMIT, VERSION, trace};
use kvasir_trace::TARGET;
use opentelemetry::KeyValue;
use opentelemetry::global::set_text_map_propagator;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use std::fmt;
use std::io::{self, IsTerminal};
use std::str::FromStr;
use std::time::Duration;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::{FilterExt, FilterFn, LevelFilter, filter_fn};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{EnvFilter, Layer, Registry};

/// The NATS client library. Below INFO, it logs server addresses with their passwords.
const NATS_CLIENT: &str = "async_nats";

/// Format of log lines on standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(format!("{text:?} is not one of text, json")),
        }
    }
}

/// Logging and export of spans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// Format of log lines.
    pub format: LogFormat,
    /// Log filter: a level, or module=level pairs separated by commas.
    pub filter: String,
    /// OTLP endpoint (gRPC) that receives spans. If not set: spans are dropped.
    pub otlp_endpoint: Option<String>,
}

/// Why logging cannot start.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    /// The filter is malformed.
    #[error("log-filter: {0}")]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    /// Spans cannot be exported.
    #[error("otlp-endpoint: {0}")]
    Exporter(#[from] ExporterBuildError),
    /// A subscriber is already installed.
    #[error("logging: {0}")]
    Taken(#[from] TryInitError),
}

/// Active logging and export of spans.
#[derive(Debug)]
pub struct Logging {
    spans: Option<SdkTracerProvider>,
}

/// Finest level of exported spans and events, independent of the log filter. The exporter's own connection also creates
/// finer ones, so exporting these would never end.
const EXPORT_LEVEL: LevelFilter = LevelFilter::INFO;

/// Timeout for the export of the last spans.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Starts logging to standard error and, with an OTLP endpoint, the export of spans under the process name `name`. The
/// filter applies to log lines, not to spans.
///
/// # Errors
/// If the filter or the endpoint is malformed, or logging was started before.
pub fn start_logging(name: &'static str, config: &LogConfig) -> Result<Logging, LoggingError> {
    // Parse the filter first: with an invalid filter, no exporter is started.
    let filter: EnvFilter = config.filter.parse()?;
    let spans = config.otlp_endpoint.as_deref().map(|at| span_exporter(name, at)).transpose()?;
    let layers = layers(name, config.format, filter, spans.as_ref(), io::stderr);
    tracing_subscriber::registry().with(layers).try_init()?;
    if spans.is_some() {
        set_text_map_propagator(TraceContextPropagator::new());
        trace::set_exports();
    }
    Ok(Logging { spans })
}

/// Returns the layer for log lines and, with an exporter, the layer for spans.
fn layers<W>(
    name: &'static str,
    format: LogFormat,
    filter: EnvFilter,
    spans: Option<&SdkTracerProvider>,
    writer: W,
) -> Vec<Box<dyn Layer<Registry> + Send + Sync>>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let colours = io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(colours);
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    let mut layers =
        vec![lines.with_filter(filter.and(without_secrets()).and(without_steps())).boxed()];
    // Without an exporter, add no layer. An empty layer has no filter, so all spans of the transport would be created
    // for it, which costs a fifth of a call's processor time.
    layers.extend(spans.map(|provider| {
        let exported = tracing_opentelemetry::layer().with_tracer(provider.tracer(name));
        exported.with_filter(EXPORT_LEVEL.and(without_secrets()).and(only_traces())).boxed()
    }));
    layers
}

/// Filter that hides secrets, independent of the log filter.
fn without_secrets() -> FilterFn<impl Fn(&Metadata<'_>) -> bool> {
    // Without a level hint here, both filters together have none. Then every record of libraries that use `log` is
    // created and dropped. The tokenizer has one for each piece, which took a third of the gateway's processor time.
    filter_fn(shows_no_secret).with_max_level_hint(LevelFilter::TRACE)
}

/// Filter that admits spans of traces, and all events. Other spans label the log lines of a task, which may run for days.
fn only_traces() -> FilterFn<impl Fn(&Metadata<'_>) -> bool> {
    filter_fn(|of| of.is_event() || of.target() == TARGET).with_max_level_hint(LevelFilter::TRACE)
}

/// Filter that admits no spans of steps of a trace. Spans of requests label log lines.
fn without_steps() -> FilterFn<impl Fn(&Metadata<'_>) -> bool> {
    filter_fn(|of| of.target() != TARGET || *of.level() == Level::ERROR)
        .with_max_level_hint(LevelFilter::TRACE)
}

/// Whether an event or a span may be logged.
fn shows_no_secret(of: &Metadata<'_>) -> bool {
    // TRACE is the greatest level.
    *of.level() <= Level::INFO || !of.target().starts_with(NATS_CLIENT)
}

/// Creates the exporter that sends spans to an OpenTelemetry collector.
fn span_exporter(
    name: &'static str,
    endpoint: &str,
) -> Result<SdkTracerProvider, ExporterBuildError> {
    let exporter = SpanExporter::builder().with_tonic().with_endpoint(endpoint).build()?;
    let exporter = LoggedExporter::new(exporter, endpoint);
    let resource = Resource::builder()
        .with_service_name(name)
        .with_attribute(KeyValue::new("service.version", VERSION))
        .with_attribute(KeyValue::new("vcs.ref.head.revision", COMMIT))
        .build();
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}

impl Logging {
    /// Exports the remaining spans. Blocks for a bounded time.
    pub fn flush(self) {
        let Some(spans) = self.spans else { return };
        if let Err(error) = spans.shutdown_with_timeout(FLUSH_TIMEOUT) {
            tracing::warn!(%error, "the last spans were not exported");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::{Arc, Mutex, PoisonError};
    use tracing::subscriber::with_default;
    use tracing::{info_span, trace_span};

    #[test]
    fn records_below_the_filter_are_not_made() {
        let provider = SdkTracerProvider::builder().build();
        for spans in [None, Some(&provider)] {
            for (filter, level) in [
                ("info", LevelFilter::INFO),
                ("warn,kvasir=info", LevelFilter::INFO),
                ("info,h2=trace", LevelFilter::TRACE),
            ] {
                let filter = filter.parse().expect("a filter");
                let layers = layers("test", LogFormat::Text, filter, spans, io::stderr);
                assert_eq!(layers.max_level_hint(), Some(level));
            }
        }
    }

    /// The transport has spans for each frame, which cost a fifth of a call's processor time.
    #[test]
    fn spans_that_nobody_wants_are_not_made() {
        let provider = SdkTracerProvider::builder().build();
        for spans in [None, Some(&provider)] {
            let filter = "info".parse().expect("a filter");
            let layers = layers("test", LogFormat::Text, filter, spans, io::stderr);
            with_default(tracing_subscriber::registry().with(layers), || {
                assert!(
                    trace_span!("frame").is_disabled(),
                    "with an exporter: {}",
                    spans.is_some()
                );
                assert!(!info_span!("call").is_disabled());
            });
        }
    }

    /// Lines of a log.
    #[derive(Debug, Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What is logged in a step of a request with this header.
    fn log_in_request(traceparent: &str, format: LogFormat, filter: &str) -> String {
        let get = |name: &str| (name == "traceparent").then_some(traceparent);
        let provider = SdkTracerProvider::builder().build();
        let lines = Lines::default();
        let to = lines.clone();
        let filter = filter.parse().expect("a filter");
        let layers = layers("test", format, filter, Some(&provider), move || to.clone());
        with_default(tracing_subscriber::registry().with(layers), || {
            let request = trace::request_span("/v1/models", get);
            let in_step = || kvasir_trace::span!("step").in_scope(|| tracing::warn!("late"));
            request.in_scope(in_step);
        });
        let lines = lines.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        String::from_utf8(lines).expect("text")
    }

    /// Also with a filter that admits no span of a lower level.
    #[test]
    fn log_lines_of_a_request_name_its_trace() {
        const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
        set_text_map_propagator(TraceContextPropagator::new());
        trace::set_exports();
        let traceparent = format!("00-{TRACE}-00f067aa0ba902b7-00");
        for format in [LogFormat::Text, LogFormat::Json] {
            for filter in ["info", "warn", "error,kvasir_process=warn"] {
                let lines = log_in_request(&traceparent, format, filter);
                assert!(lines.contains("late") && lines.contains(TRACE), "{lines}");
                assert!(!lines.contains("step"), "a step labels no lines: {lines}");
            }
        }
    }
}
