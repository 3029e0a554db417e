//! Exports spans, and logs when the collector stops and begins to take them.

use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// An exporter that logs the first failure, and the first success after it.
#[derive(Debug)]
pub(super) struct LoggedExporter<E> {
    exporter: E,
    endpoint: String,
    fails: AtomicBool,
}

impl<E> LoggedExporter<E> {
    pub(super) fn new(exporter: E, endpoint: &str) -> Self {
        Self { exporter, endpoint: endpoint.to_owned(), fails: AtomicBool::new(false) }
    }
}

impl<E: SpanExporter> SpanExporter for LoggedExporter<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let exported = self.exporter.export(batch).await;
        let failed = self.fails.swap(exported.is_err(), Ordering::Relaxed);
        let endpoint = &self.endpoint;
        match &exported {
            Err(error) if !failed => {
                tracing::warn!(endpoint, %error, "spans are lost: the collector does not take them");
            }
            Ok(()) if failed => tracing::info!(endpoint, "the collector takes spans again"),
            Err(_) | Ok(()) => {}
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use opentelemetry_sdk::error::OTelSdkError;
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};
    use tracing::subscriber::with_default;

    /// Fails every call but the third and the fourth.
    #[derive(Debug, Default)]
    struct Failing(Mutex<u32>);

    impl SpanExporter for Failing {
        async fn export(&self, _batch: Vec<SpanData>) -> OTelSdkResult {
            let mut calls = self.0.lock().expect("a number");
            *calls += 1;
            match *calls {
                3 | 4 => Ok(()),
                _ => Err(OTelSdkError::InternalFailure("refused".to_owned())),
            }
        }
    }

    /// Lines of a log.
    #[derive(Debug, Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("lines").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_collector_that_takes_no_spans_is_logged_once() {
        let lines = Lines::default();
        let to = lines.clone();
        let exporter = LoggedExporter::new(Failing::default(), "http://a:4317");
        let log = tracing_subscriber::fmt().with_writer(move || to.clone()).with_ansi(false);
        with_default(log.finish(), || {
            for call in 1..=6 {
                let exported = futures::executor::block_on(exporter.export(Vec::new()));
                assert_eq!(exported.is_ok(), [3, 4].contains(&call));
            }
        });
        let text = String::from_utf8(lines.0.lock().expect("lines").clone()).expect("text");
        let levels: Vec<_> =
            text.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
        assert_eq!(levels, ["WARN", "INFO", "WARN"], "{text}");
        assert!(text.contains("http://a:4317") && text.contains("refused"), "{text}");
    }
}
