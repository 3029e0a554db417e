use super::config::{COMMANDS_QUEUED_MAX, MESSAGES_QUEUED_MAX};
use super::error::BrokerError;
use async_nats::client::RequestErrorKind;
use async_nats::{Client, ConnectOptions, Event};
use bytes::Bytes;
use kvasir_process::nats::NatsServers;
use kvasir_proto::limits::BROKER_MESSAGE_BYTES_MAX;
use kvasir_tasks::causes::causes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::select;
use tokio_util::sync::CancellationToken;

/// A NATS connection that is used until it breaks.
#[derive(Debug)]
pub(super) struct Connection {
    client: Client,
    closed: CancellationToken,
}

impl Connection {
    /// Connects to one of the configured servers. Logs a warning if the server's message limit is below
    /// [`BROKER_MESSAGE_BYTES_MAX`].
    pub(super) async fn connect(servers: &NatsServers) -> Result<Self, BrokerError> {
        let closed = CancellationToken::new();
        let has_connected = Arc::new(AtomicBool::new(false));
        let connected =
            options(servers, &closed, &has_connected).connect(servers.addresses()).await;
        let refused = |error| BrokerError::Connect(servers.explain(&causes(&error)));
        let client = connected.map_err(refused)?;
        has_connected.store(true, Ordering::Release);
        let limit = client.max_payload();
        if limit < BROKER_MESSAGE_BYTES_MAX {
            let wanted = BROKER_MESSAGE_BYTES_MAX;
            tracing::warn!(limit, wanted, "the NATS server's max_payload is too small");
        }
        Ok(Self { client, closed })
    }

    pub(super) const fn client(&self) -> &Client {
        &self.client
    }

    /// Waits until the connection breaks.
    pub(super) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Awaits `doing`, unless the connection breaks first.
    pub(super) async fn with<T>(&self, doing: impl Future<Output = T>) -> Result<T, BrokerError> {
        select! {
            biased;
            () = self.closed() => Err(BrokerError::Lost),
            done = doing => Ok(done),
        }
    }

    /// Waits until the server has processed all earlier messages of this connection.
    pub(super) async fn flush(&self) -> Result<(), BrokerError> {
        // The server answers in order, and itself reports that the subject has no responder.
        let nobody = self.client.new_inbox();
        let answer = self.with(self.client.request(nobody, Bytes::new())).await?;
        match answer {
            Err(error) if error.kind() != RequestErrorKind::NoResponders => {
                Err(BrokerError::Publish(error.to_string()))
            }
            _ => Ok(()),
        }
    }
}

/// Returns options of a connection that is made once: the client may not authenticate again, and the connection's end
/// cancels `closed`.
fn options(
    servers: &NatsServers,
    closed: &CancellationToken,
    has_connected: &Arc<AtomicBool>,
) -> ConnectOptions {
    let has_connected = Arc::clone(has_connected);
    let closed = closed.clone();
    let note = move |event| {
        if matches!(event, Event::Disconnected | Event::Closed) {
            closed.cancel();
        }
        async {}
    };
    // The client cannot disable reconnecting, so a second authentication is refused.
    servers
        .options(move || !has_connected.load(Ordering::Acquire))
        .event_callback(note)
        .max_reconnects(servers.addresses().len().max(1))
        .client_capacity(COMMANDS_QUEUED_MAX)
        .subscription_capacity(MESSAGES_QUEUED_MAX)
}
