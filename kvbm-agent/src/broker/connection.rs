use super::config::{
    COMMANDS_QUEUED_MAX, CONNECT_TIMEOUT, MESSAGES_QUEUED_MAX, PING_INTERVAL, REQUEST_TIMEOUT,
    read_servers,
};
use super::error::BrokerError;
use async_nats::client::RequestErrorKind;
use async_nats::{Auth, AuthError, Client, ConnectOptions, Event, ServerAddr};
use bytes::Bytes;
use kvasir_process::causes::causes;
use kvasir_process::text::ServerUrl;
use kvasir_proto::limits::BROKER_MESSAGE_BYTES_MAX;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::select;
use tokio_util::sync::CancellationToken;

/// A connection, until it breaks.
#[derive(Debug)]
pub(super) struct Connection {
    client: Client,
    closed: CancellationToken,
}

impl Connection {
    /// Makes a connection to one of the servers of a URL.
    pub(super) async fn open(url: &ServerUrl) -> Result<Self, BrokerError> {
        let servers = read_servers(url.expose()).map_err(BrokerError::Connect)?;
        let closed = CancellationToken::new();
        let made = Arc::new(AtomicBool::new(false));
        let connected = options(&servers, &closed, &made).connect(servers).await;
        let client = connected.map_err(|error| BrokerError::Connect(causes(&error)))?;
        made.store(true, Ordering::Release);
        let taken = client.max_payload();
        if taken < BROKER_MESSAGE_BYTES_MAX {
            let wanted = BROKER_MESSAGE_BYTES_MAX;
            tracing::warn!(taken, wanted, "the NATS server's max_payload is too small");
        }
        Ok(Self { client, closed })
    }

    pub(super) const fn client(&self) -> &Client {
        &self.client
    }

    /// Waits until it is broken.
    pub(super) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Does something that waits for the server, unless the connection breaks.
    pub(super) async fn with<T>(&self, doing: impl Future<Output = T>) -> Result<T, BrokerError> {
        select! {
            biased;
            () = self.closed() => Err(BrokerError::Lost),
            done = doing => Ok(done),
        }
    }

    /// Waits until the server has processed all that was sent before.
    pub(super) async fn flush(&self) -> Result<(), BrokerError> {
        // It answers in order, and itself reports that there is no responder.
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

fn options(
    servers: &[ServerAddr],
    closed: &CancellationToken,
    made: &Arc<AtomicBool>,
) -> ConnectOptions {
    let mut auth = Auth::new();
    for server in servers {
        let user = server.username().map(str::to_owned);
        match server.password().map(str::to_owned) {
            Some(password) => (auth.username, auth.password) = (user, Some(password)),
            None => auth.token = user.or(auth.token),
        }
    }
    let (made, closed) = (Arc::clone(made), closed.clone());
    // The client has no switch against making a connection again. So it may not sign on twice.
    let sign_on = move |_nonce| {
        let again = made.load(Ordering::Acquire).then(|| AuthError::new("it is not made again"));
        let answer = again.map_or_else(|| Ok(auth.clone()), Err);
        async move { answer }
    };
    let note = move |event| {
        if matches!(event, Event::Disconnected | Event::Closed) {
            closed.cancel();
        }
        async {}
    };
    ConnectOptions::with_auth_callback(sign_on)
        .event_callback(note)
        .max_reconnects(servers.len().max(1))
        .connection_timeout(CONNECT_TIMEOUT)
        .request_timeout(Some(REQUEST_TIMEOUT))
        .ping_interval(PING_INTERVAL)
        .client_capacity(COMMANDS_QUEUED_MAX)
        .subscription_capacity(MESSAGES_QUEUED_MAX)
}
