//! Runs the process: NATS subscriber, advice rounds and HTTP side port, started together and stopped in order.

use crate::config::Config;
use crate::hook::{HOOKS_QUEUED_MAX, run_hooks};
use crate::metrics::AdvisorMetrics;
use crate::state::{Advice, Rules, StreamState, Streams, Told, Tree, advise};
use crate::subscriber::{Known, Subscriber};
use kvasir_process::http::{self, OwnPage};
use kvasir_process::program::{ListenError, Program, listen};
use kvasir_process::telemetry::{Metrics, Readiness, encode_counter, encode_gauge, new_registry};
use kvasir_tasks::tasks::{EndError, Tasks};
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::select;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

/// Maximum number of blocks that `/tree` lists for one place.
pub const BLOCKS_SHOWN_MAX: usize = 65_536;

/// Why the process ends, other than by a signal.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The side port cannot be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A task failed, or the shutdown exceeded its deadline.
    #[error(transparent)]
    End(#[from] EndError),
}

/// Runs an advisor until `signal` is ready, then stops in order: the subscriber and advice, the hook, the side port.
///
/// # Errors
/// If the port cannot be opened, a task fails, or the shutdown exceeds its deadline.
pub async fn run(config: Config, signal: impl Future<Output = ()>) -> Result<(), RunError> {
    let (listener, http) = listen("http-listen", config.http.listen).await?;
    tracing::info!(%http, "listening");
    let drain_timeout = config.drain_timeout;
    Ok(start(config, listener).run(signal, drain_timeout).await?)
}

fn start(config: Config, listener: TcpListener) -> Program {
    let tree = Tree::new(config.blocks_max, config.half_life);
    let known = Arc::new(Mutex::new(Known { tree, streams: Streams::default() }));
    let mut registry = new_registry();
    let metrics = Arc::new(AdvisorMetrics::registered(&mut registry));
    metrics.set_outage(Some("there is no connection to NATS yet".to_owned()));
    registry.register_collector(Box::new(Figures(Arc::clone(&known))));
    let outages = Arc::clone(&metrics);
    let readiness = Readiness::with_problems(move || outages.outage().into_iter().collect());
    let stop = CancellationToken::new();
    let stop_side = CancellationToken::new();
    let mut tasks = Tasks::default();
    let mut side = Tasks::default();
    let began = Instant::now();
    let subscriber = Subscriber {
        servers: config.servers,
        known: Arc::clone(&known),
        metrics: Arc::clone(&metrics),
        began,
        ask_interval: config.ask_interval,
        worker_timeout: config.worker_timeout,
    };
    let following = subscriber.run(stop.clone());
    tasks.spawn("subscriber", async {
        following.await.map_err(|error| io::Error::other(error.to_string()).into())
    });
    let hook = config.hook.map(|hook| {
        let (lines, queued) = mpsc::channel(HOOKS_QUEUED_MAX);
        tasks.spawn("hooks", run_hooks(hook, queued, Arc::clone(&metrics), stop.clone()));
        lines
    });
    let adviser = Adviser {
        known: Arc::clone(&known),
        rules: config.rules,
        repeat_after: config.repeat_after,
        metrics,
        began,
        hook,
    };
    tasks.spawn("advice", adviser.run(config.advice_interval, stop.clone()));
    let pages = vec![OwnPage::new("/tree", move |request| tree_page(&known, request))];
    let http = http::serve(
        listener,
        config.http.guard,
        Metrics::new(registry),
        readiness.clone(),
        pages,
        stop_side.clone(),
    );
    side.spawn("http", async { Ok(http.await?) });
    Program { tasks, stop, side, stop_side, readiness }
}

/// Computes advice at a fixed interval.
struct Adviser {
    known: Arc<Mutex<Known>>,
    rules: Rules,
    repeat_after: Duration,
    metrics: Arc<AdvisorMetrics>,
    began: Instant,
    hook: Option<mpsc::Sender<String>>,
}

impl Adviser {
    async fn run(self, every: Duration, stop: CancellationToken) {
        let mut rounds = interval_at(Instant::now() + every, every);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let adviser = Arc::new(self);
        let mut told = Told::default();
        loop {
            select! {
                () = stop.cancelled() => return,
                _ = rounds.tick() => {}
            }
            let round = Arc::clone(&adviser);
            // A round visits every block, and standard output may block. Both run on a blocking thread.
            let given = spawn_blocking(move || {
                let now = round.began.elapsed();
                let advice = advise(&round.known.lock().tree, &round.rules, now);
                let advice = told.new_only(advice, now, round.repeat_after);
                round.give(&advice);
                told
            });
            let Ok(back) = given.await else { return };
            told = back;
        }
    }

    /// Prints advice, and queues it for the hook.
    fn give(&self, advice: &[Advice]) {
        let mut out = io::stdout().lock();
        for piece in advice {
            self.metrics.advised(piece.kind);
            let Ok(line) = serde_json::to_string(piece) else { continue };
            // Ignored: standard output may have no reader.
            drop(writeln!(out, "{line}"));
            let queued = self.hook.as_ref().map(|hook| hook.try_send(format!("{line}\n")));
            if let Some(Err(_full)) = queued {
                self.metrics.hooked("dropped");
            }
        }
        drop(out.flush());
    }
}

/// Metrics of the tree for `/metrics`.
#[derive(Debug)]
struct Figures(Arc<Mutex<Known>>);

impl Collector for Figures {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let (blocks, refused, places, bytes) = {
            let known = self.0.lock();
            let place = |state: StreamState| {
                let label = vec![("state", state.as_str().to_owned())];
                (label, known.streams.count(state) as u64)
            };
            let places = StreamState::ALL.map(place);
            let bytes = known.tree.places().map(|at| at.bytes).fold(0, u64::saturating_add);
            (known.tree.len() as u64, known.tree.refused(), places, bytes)
        };
        let alone = |value: u64| vec![(Vec::new(), value)];
        let help = "Distinct blocks stored in any place";
        encode_gauge(&mut to, "advisor_blocks", help, alone(blocks))?;
        let help = "Bytes stored in all places, counting every copy of a block";
        encode_gauge(&mut to, "advisor_stored_bytes", help, alone(bytes))?;
        let help = "Places (workers' storage locations) by the state of their event stream";
        encode_gauge(&mut to, "advisor_places", help, places.into())?;
        let help = "Blocks that the advisor refused because its limit on blocks was reached";
        encode_counter(&mut to, "advisor_refused_blocks", help, alone(refused))
    }
}

/// A place in the answer of `/tree`.
#[derive(Debug, Serialize)]
struct ShownPlace {
    model: String,
    tenant: String,
    worker: String,
    location: String,
    state: &'static str,
    blocks: usize,
    bytes: u64,
}

/// Request to `/tree`: selects the place whose blocks are listed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AskedPlace {
    model: String,
    #[serde(default)]
    tenant: String,
    worker: String,
    location: String,
}

#[derive(Debug, Serialize)]
struct ShownBlocks {
    state: &'static str,
    blocks: usize,
    sequence_hashes: Vec<String>,
}

/// Answers `/tree`: all places without a request, else at most [`BLOCKS_SHOWN_MAX`] blocks of the requested place.
fn tree_page(known: &Mutex<Known>, request: Option<&str>) -> Result<String, String> {
    let written = match request {
        None => serde_json::to_string(&shown_places(&known.lock())),
        Some(text) => {
            let asked = serde_json::from_str(text).map_err(|error| error.to_string())?;
            serde_json::to_string(&shown_blocks(&known.lock(), &asked)?)
        }
    };
    written.map_err(|error| error.to_string())
}

fn shown_places(Known { tree, streams }: &Known) -> Vec<ShownPlace> {
    let shown = tree.places().map(|at| ShownPlace {
        model: at.address.partition.model().to_owned(),
        tenant: at.address.partition.tenant().to_owned(),
        worker: at.address.worker.as_str().to_owned(),
        location: at.location.to_owned(),
        state: streams.state(at.id).map_or("", StreamState::as_str),
        blocks: at.blocks,
        bytes: at.bytes,
    });
    shown.collect()
}

fn shown_blocks(
    Known { tree, streams }: &Known,
    asked: &AskedPlace,
) -> Result<ShownBlocks, String> {
    let place = tree.places().find(|at| {
        let partition = &at.address.partition;
        let worker = at.address.worker.as_str();
        (partition.model(), partition.tenant()) == (&*asked.model, &*asked.tenant)
            && (worker, at.location) == (&*asked.worker, &*asked.location)
    });
    let place = place.ok_or("there is no such place: see /tree")?;
    let sequences = tree.blocks_of(place.id).into_iter().take(BLOCKS_SHOWN_MAX);
    Ok(ShownBlocks {
        state: streams.state(place.id).map_or("", StreamState::as_str),
        blocks: place.blocks,
        sequence_hashes: sequences.map(|sequence| format!("{sequence:016x}")).collect(),
    })
}
