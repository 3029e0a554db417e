use super::metrics::BrokerMetrics;
use async_nats::{Client, ConnectError, Event};
use kvasir_process::nats::NatsServers;
use kvasir_proto::broker::Namespace;
use kvasir_tasks::causes::causes;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{sync::watch, task::JoinSet, time::Instant};

/// Messages of one subscription that wait to be read. With more, the newest are dropped and counted, and
/// what they said is asked for at the agents.
const MESSAGES_QUEUED_MAX: usize = 8_192;
/// Commands to the connection that wait; whoever gives more waits.
const COMMANDS_QUEUED_MAX: usize = 1_024;

/// Least time between two attempts to find out why there is no connection.
const DIAGNOSIS_INTERVAL: Duration = Duration::from_secs(10);

/// A connection to a NATS server, which comes back by itself. Clones share it.
#[derive(Debug, Clone)]
pub struct Connection {
    pub(super) client: Client,
    pub(super) link: watch::Receiver<Link>,
    /// What stands before all names there.
    pub(super) namespace: Arc<Namespace>,
}

/// How the connection stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Link {
    pub(super) up: bool,
    /// Times that it came up.
    pub(super) times: u64,
}

/// A connection that is there as soon as the server is.
///
/// # Errors
/// If the address cannot be understood.
pub(super) async fn connect(
    servers: &NatsServers,
    metrics: BrokerMetrics,
) -> Result<Connection, ConnectError> {
    let (state, link) = watch::channel(Link::default());
    let reasons = servers.clone();
    let note = move |event: &Event| match event {
        Event::Connected => {
            tracing::info!("the broker is there");
            state.send_modify(|link| *link = Link { up: true, times: link.times + 1 });
            metrics.connected.set(1);
        }
        Event::Disconnected | Event::Closed => {
            tracing::warn!("the broker is gone");
            state.send_modify(|link| link.up = false);
            metrics.connected.set(0);
        }
        Event::SlowConsumer(_) => {
            metrics.dropped.inc();
        }
        Event::ClientError(error) => {
            let error = reasons.explain(&error.to_string());
            tracing::warn!(error, "broker");
        }
        Event::LameDuckMode | Event::Draining | Event::ServerError(_) => {
            tracing::warn!(%event, "broker")
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

/// Finds out why no connection with TLS can be made: the client library names only the kind of error while it tries by
/// itself. Now and then while an outage lasts.
struct Diagnosis {
    servers: Arc<NatsServers>,
    last: Mutex<Option<Instant>>,
}

impl Diagnosis {
    fn new(servers: &NatsServers) -> Self {
        Self { servers: Arc::new(servers.clone()), last: Mutex::new(None) }
    }

    fn is_due(&self) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last.is_none_or(|at| at.elapsed() >= DIAGNOSIS_INTERVAL);
        if is_due {
            *last = Some(Instant::now());
        }
        is_due
    }

    fn after(&self, event: &Event) -> impl Future<Output = ()> + use<> {
        let failed = matches!(event, Event::ClientError(_)) && self.servers.uses_tls();
        let servers = (failed && self.is_due()).then(|| Arc::clone(&self.servers));
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
