use super::metrics::BrokerMetrics;
use async_nats::{Client, ConnectError, Event};
use kvasir_process::nats::NatsServers;
use kvasir_proto::broker::Namespace;
use kvasir_tasks::causes::causes;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Maximum queued messages of one subscription. If the queue is full, the newest messages are dropped and counted, and
/// their content is requested from the agents.
const MESSAGES_QUEUED_MAX: usize = 8_192;
/// Maximum queued commands to the connection. Further callers wait (backpressure).
const COMMANDS_QUEUED_MAX: usize = 1_024;

/// Minimum interval between two diagnoses of a missing connection.
const DIAGNOSIS_INTERVAL: Duration = Duration::from_secs(10);

/// A connection to a NATS server. Reconnects automatically. Clones share it.
#[derive(Debug, Clone)]
pub struct Connection {
    pub(super) client: Client,
    pub(super) link: watch::Receiver<Link>,
    /// Prefix of all names in the broker.
    pub(super) namespace: Arc<Namespace>,
}

/// State of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Link {
    pub(super) up: bool,
    /// Number of times that the connection was established.
    pub(super) times: u64,
}

/// Creates a connection to the broker, which is established as soon as the server is reachable.
///
/// # Errors
/// If the address is invalid.
pub(super) async fn connect(
    servers: &NatsServers,
    metrics: BrokerMetrics,
) -> Result<Connection, ConnectError> {
    let (state, link) = watch::channel(Link::default());
    let reasons = servers.clone();
    let note = move |event: &Event| match event {
        Event::Connected => {
            tracing::info!("connected to the broker");
            state.send_modify(|link| *link = Link { up: true, times: link.times + 1 });
            metrics.connected.set(1);
        }
        Event::Disconnected | Event::Closed => {
            tracing::warn!("lost the connection to the broker");
            state.send_modify(|link| link.up = false);
            metrics.connected.set(0);
        }
        Event::SlowConsumer(_) => {
            metrics.dropped.inc();
        }
        Event::ClientError(error) => {
            let error = reasons.explain(&error.to_string());
            tracing::warn!(error, "the client of the broker reports an error");
        }
        Event::LameDuckMode | Event::Draining | Event::ServerError(_) => {
            tracing::warn!(%event, "the broker reports an event")
        }
    };
    let diagnosis = Diagnosis::new(servers);
    let client = servers
        .reconnecting()
        .name("indexer-server")
        .subscription_capacity(MESSAGES_QUEUED_MAX)
        .client_capacity(COMMANDS_QUEUED_MAX)
        .event_callback(move |event| {
            note(&event);
            diagnosis.after(&event)
        })
        .connect(servers.addresses())
        .await?;
    Ok(Connection { client, link, namespace: Arc::new(servers.namespace().clone()) })
}

/// Diagnoses why no TLS connection succeeds: during its own retries, the client library reports only the kind of error.
/// Runs from time to time during an outage.
struct Diagnosis {
    servers: Arc<NatsServers>,
    last: Mutex<Option<Instant>>,
}

impl Diagnosis {
    fn new(servers: &NatsServers) -> Self {
        Self { servers: Arc::new(servers.clone()), last: Mutex::new(None) }
    }

    /// Returns true, and records the time, if the last diagnosis was long ago.
    fn begin_if_due(&self) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last.is_none_or(|at| at.elapsed() >= DIAGNOSIS_INTERVAL);
        if is_due {
            *last = Some(Instant::now());
        }
        is_due
    }

    /// Logs why a connection over TLS failed, by connecting once more. Does nothing for another event, or shortly after
    /// the last log line.
    fn after(&self, event: &Event) -> impl Future<Output = ()> + use<> {
        let failed = matches!(event, Event::ClientError(_)) && self.servers.uses_tls();
        let servers = (failed && self.begin_if_due()).then(|| Arc::clone(&self.servers));
        async move {
            let Some(servers) = servers else { return };
            let mut trying = JoinSet::new();
            trying.spawn(async move {
                let tried = servers.options(|| true).connect(servers.addresses()).await;
                if let Err(error) = tried {
                    let error = servers.explain(&causes(&error));
                    tracing::warn!(error, "no connection to the broker");
                }
            });
            let _ended = trying.join_next().await;
        }
    }
}
