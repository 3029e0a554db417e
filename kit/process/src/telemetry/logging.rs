use super::VERSION;
use opentelemetry::{KeyValue, trace::TracerProvider};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use std::{
    fmt,
    io::{self, IsTerminal},
    str::FromStr,
    time::Duration,
};
use tracing::{Level, Metadata};
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    filter::{FilterExt, FilterFn, LevelFilter, filter_fn},
    layer::SubscriberExt,
    util::{SubscriberInitExt, TryInitError},
};

/// The client library of NATS. Below the level INFO it logs addresses of servers with their passwords.
const NATS_CLIENT: &str = "async_nats";

/// How log lines are written to standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
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

/// What is logged, how, and where spans go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// Form of the lines.
    pub format: LogFormat,
    /// Which lines are written: a level, or module=level pairs with commas between them.
    pub filter: String,
    /// Where spans are exported to (OTLP over gRPC), if anywhere.
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
    /// A subscriber is installed already.
    #[error("logging: {0}")]
    Taken(#[from] TryInitError),
}

/// Logging and export of spans, once started.
#[derive(Debug)]
pub struct Logging {
    spans: Option<SdkTracerProvider>,
}

/// The finest spans and events that are exported, independent of the log filter. Finer ones also come from the
/// exporter's own connection, which would then export itself.
const EXPORT_LEVEL: LevelFilter = LevelFilter::INFO;

/// Longest wait for the last spans to be exported.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Starts logging to standard error and, given an OTLP endpoint, the export of spans to it, under the process
/// name `name`. The filter applies to lines, not to spans.
///
/// # Errors
/// If the filter or the endpoint is malformed, or logging was started before.
pub fn start_logging(name: &'static str, config: &LogConfig) -> Result<Logging, LoggingError> {
    // First: a filter that cannot be read makes no exporter.
    let filter: EnvFilter = config.filter.parse()?;
    let spans = config.otlp_endpoint.as_deref().map(|at| span_exporter(name, at)).transpose()?;
    let layers = layers(name, config.format, filter, spans.as_ref());
    tracing_subscriber::registry().with(layers).try_init()?;
    Ok(Logging { spans })
}

/// Lines and, if there is an exporter, spans.
fn layers(
    name: &'static str,
    format: LogFormat,
    filter: EnvFilter,
    spans: Option<&SdkTracerProvider>,
) -> Vec<Box<dyn Layer<Registry> + Send + Sync>> {
    let colours = io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(colours);
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    let mut layers = vec![lines.with_filter(filter.and(without_secrets())).boxed()];
    // Without an exporter no layer rather than an empty one: that has no filter, so all spans of the transport would be
    // made for it, which cost a fifth of a call's processor time.
    layers.extend(spans.map(|provider| {
        let exported = tracing_opentelemetry::layer().with_tracer(provider.tracer(name));
        exported.with_filter(EXPORT_LEVEL.and(without_secrets())).boxed()
    }));
    layers
}

/// The filter of what may be logged, whatever the other filter says.
fn without_secrets() -> FilterFn<impl Fn(&Metadata<'_>) -> bool> {
    // Without a hint, both filters together have none, so every record of libraries that use `log` is made and dropped: the
    // tokenizer has one for each piece, which took a third of the gateway's processor time.
    filter_fn(shows_no_secret).with_max_level_hint(LevelFilter::TRACE)
}

/// Whether an event or a span may be logged.
fn shows_no_secret(of: &Metadata<'_>) -> bool {
    // TRACE is the greatest level.
    *of.level() <= Level::INFO || !of.target().starts_with(NATS_CLIENT)
}

fn span_exporter(
    name: &'static str,
    endpoint: &str,
) -> Result<SdkTracerProvider, ExporterBuildError> {
    let exporter = SpanExporter::builder().with_tonic().with_endpoint(endpoint).build()?;
    let resource = Resource::builder()
        .with_service_name(name)
        .with_attribute(KeyValue::new("service.version", VERSION))
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
    use tracing::{info_span, subscriber::with_default, trace_span};

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
                let layers = layers("test", LogFormat::Text, filter, spans);
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
            let layers = layers("test", LogFormat::Text, filter, spans);
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
}
