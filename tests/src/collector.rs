//! A real OpenTelemetry collector as a child process: Streamfold's Rotel, from PyPI. It prints each span that it
//! receives.

use crate::wheel::program;
use anyhow::{Context, Result, ensure};
use kvasir_sim::place::free_port;
use kvasir_sim::server::{Output, last_lines, read_lines};
use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Version of the wheel `rotel`.
const VERSION: &str = "0.0.1a15";
/// Timeout for a span to arrive: exporters send every 5 s.
const TIMEOUT: Duration = Duration::from_secs(60);
/// First words of a collector that listens.
const READY: &str = "Starting Rotel";
/// Last attribute of a span from the `tracing` library.
const LAST_ATTRIBUTE: &str = "idle_ns";

/// A span, as the collector understands it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Span {
    /// Name of the program.
    pub service: String,
    /// Name of the span.
    pub name: String,
    /// Id of the trace, as 32 hexadecimal digits.
    pub trace: String,
    /// Id of the span, as 16 hexadecimal digits.
    pub id: String,
    /// Id of the parent; "" for none.
    pub parent: String,
    /// `STATUS_CODE_ERROR` if it failed.
    pub status: String,
    /// Attributes, as text.
    pub attributes: BTreeMap<String, String>,
}

/// A running collector. It is killed when dropped.
#[derive(Debug)]
pub struct Collector {
    port: u16,
    output: Output,
    spans: watch::Receiver<Vec<Span>>,
    _child: Child,
    _readers: JoinSet<()>,
}

/// Reads spans from the collector's lines.
#[derive(Debug, Default)]
struct Reader {
    service: String,
    span: Option<Span>,
}

impl Collector {
    /// Starts a collector, and waits until it listens.
    ///
    /// # Errors
    /// If it cannot be fetched or does not start.
    pub async fn start() -> Result<Self> {
        let program = program("rotel-agent", "rotel", VERSION).await?;
        let (port, http_port) = (free_port()?, free_port()?);
        let mut child = Command::new(program)
            .args(["start", "--exporter=blackhole", "--debug-log=traces"])
            .args(["--debug-log-verbosity=detailed", "--batch-timeout=50ms"])
            .arg(format!("--otlp-grpc-endpoint=127.0.0.1:{port}"))
            .arg(format!("--otlp-http-endpoint=127.0.0.1:{http_port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("start the collector")?;
        let (sent, spans) = watch::channel(Vec::new());
        let output = Output::default();
        let reader = Mutex::new(Reader::default());
        let (ready, mut is_ready) = watch::channel(false);
        let mut readers = JoinSet::new();
        let stdout = child.stdout.take().context("standard output")?;
        readers.spawn(read_lines(stdout, Arc::clone(&output), move |line| {
            if line.contains(READY) {
                ready.send_replace(true);
            }
            if let Some(span) = reader.lock().unwrap_or_else(PoisonError::into_inner).read(line) {
                sent.send_modify(|spans| spans.push(span));
            }
        }));
        let started = timeout(TIMEOUT, is_ready.wait_for(|is_ready| *is_ready)).await;
        ensure!(matches!(started, Ok(Ok(_))), "no collector: {}", last_lines(&output));
        Ok(Self { port, output, spans, _child: child, _readers: readers })
    }

    /// The option of a program that exports its spans here.
    #[must_use]
    pub fn option(&self) -> String {
        format!("--otlp-endpoint=http://127.0.0.1:{}", self.port)
    }

    /// Waits until the spans received are as wanted.
    ///
    /// # Errors
    /// If this takes too long.
    pub async fn wait_for<T>(&self, mut find: impl FnMut(&[Span]) -> Option<T>) -> Result<T> {
        let mut spans = self.spans.clone();
        let mut found = None;
        let seen = timeout(
            TIMEOUT,
            spans.wait_for(|spans| {
                found = find(spans);
                found.is_some()
            }),
        )
        .await;
        ensure!(
            matches!(seen, Ok(Ok(_))),
            "the collector has {:#?}\n{}",
            self.spans.borrow(),
            last_lines(&self.output)
        );
        found.context("spans")
    }
}

impl Reader {
    /// Reads a line. Returns a span after its last attribute.
    fn read(&mut self, line: &str) -> Option<Span> {
        let line = line.trim();
        if line.starts_with("Span #") {
            self.span = Some(Span { service: self.service.clone(), ..Span::default() });
            return None;
        }
        if let Some((name, value)) = line.strip_prefix("-> ").and_then(|at| at.split_once(": ")) {
            let value = value
                .split_once('(')
                .map_or(value, |(_type, rest)| rest.strip_suffix(')').unwrap_or(rest));
            match &mut self.span {
                Some(span) => drop(span.attributes.insert(name.to_owned(), value.to_owned())),
                // Attributes of the program, or of an event in a span.
                None if name == "service.name" => value.clone_into(&mut self.service),
                None => {}
            }
            return if name == LAST_ATTRIBUTE { self.span.take() } else { None };
        }
        let (name, value) = line.split_once(':')?;
        let (span, value) = (self.span.as_mut()?, value.trim());
        let field = match name.trim() {
            "Trace ID" => &mut span.trace,
            "Parent ID" => &mut span.parent,
            "ID" => &mut span.id,
            "Name" => &mut span.name,
            "Status code" => &mut span.status,
            _ => return None,
        };
        value.clone_into(field);
        None
    }
}
