use super::connection::{Connection, ConnectionEvent, dial};
use super::{Endpoint, Limits, LinkError, Message, Role};

/// A request stream to one ROUTER: the client of an engine's replay socket.
///
/// It never reconnects. After the first error every call fails with [`LinkError::Closed`]. A new request
/// needs a new socket, so one answer never mixes two peers.
#[derive(Debug)]
pub struct DealerSocket {
    connection: Option<Connection>,
}

// === impl DealerSocket ===

impl DealerSocket {
    /// Connects and completes the handshake, within their timeouts.
    ///
    /// # Errors
    /// Any [`LinkError`].
    pub async fn connect(endpoint: &Endpoint, limits: &Limits) -> Result<Self, LinkError> {
        let stream = dial(endpoint, limits).await?;
        let mut connection = Connection::start(stream, Role::Dealer, limits.clone())?;
        loop {
            // `Ready` is always first: the session yields no message before it.
            if connection.next().await? == ConnectionEvent::Ready {
                return Ok(Self { connection: Some(connection) });
            }
        }
    }

    /// Sends one message, and returns when the system has all of it. Without a deadline of its own. If the
    /// call is dropped, the next call sends the rest of the message.
    ///
    /// # Errors
    /// Any [`LinkError`]; the socket is unusable afterwards.
    pub async fn send(&mut self, frames: &[&[u8]]) -> Result<(), LinkError> {
        let connection = self.connection.as_mut().ok_or(LinkError::Closed)?;
        let sent = connection.send(frames).await;
        self.keep_if_ok(sent)
    }

    /// The next message. Cancel-safe. A peer that dies causes an error within the heartbeat limits. For a
    /// live peer that does not answer, the caller needs a deadline.
    ///
    /// # Errors
    /// Any [`LinkError`]; the socket is unusable afterwards.
    pub async fn recv(&mut self) -> Result<Message, LinkError> {
        let connection = self.connection.as_mut().ok_or(LinkError::Closed)?;
        let received = loop {
            match connection.next().await {
                Ok(ConnectionEvent::Message(message)) => break Ok(message),
                Ok(ConnectionEvent::Ready) => {}
                Err(error) => break Err(error),
            }
        };
        self.keep_if_ok(received)
    }

    fn keep_if_ok<T>(&mut self, result: Result<T, LinkError>) -> Result<T, LinkError> {
        if result.is_err() {
            self.connection = None;
        }
        result
    }
}
