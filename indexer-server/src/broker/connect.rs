use super::metrics::BrokerMetrics;
use async_nats::{Client, ConnectError, Event};
use kvasir_process::nats::NatsServers;
use std::{future::ready, time::Duration};
use tokio::sync::watch;

/// Messages of one subscription that wait to be read. With more, the newest are dropped and counted, and
/// what they said is asked for at the agents.
const MESSAGES_QUEUED_MAX: usize = 8_192;
/// Commands to the connection that wait; whoever gives more waits.
const COMMANDS_QUEUED_MAX: usize = 1_024;
/// A connection is tried again after this, doubling,
const RECONNECT_MIN: Duration = Duration::from_millis(50);
/// up to this.
const RECONNECT_MAX: Duration = Duration::from_secs(2);

/// A connection to a NATS server, which comes back by itself. Clones share it.
#[derive(Debug, Clone)]
pub struct Connection {
    pub(super) client: Client,
    pub(super) link: watch::Receiver<Link>,
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
        Event::LameDuckMode | Event::Draining | Event::ServerError(_) | Event::ClientError(_) => {
            tracing::warn!(%event, "broker")
        }
    };
    let client = servers
        .options(|| true)
        .name("indexer-server")
        .retry_on_initial_connect()
        .subscription_capacity(MESSAGES_QUEUED_MAX)
        .client_capacity(COMMANDS_QUEUED_MAX)
        .reconnect_delay_callback(|attempts| {
            let doublings = u32::try_from(attempts).unwrap_or(u32::MAX).min(8);
            RECONNECT_MIN.saturating_mul(1 << doublings).min(RECONNECT_MAX)
        })
        .event_callback(move |event| {
            note(&event);
            ready(())
        })
        .connect(servers.addresses())
        .await?;
    Ok(Connection { client, link })
}
