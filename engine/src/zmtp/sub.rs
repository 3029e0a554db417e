use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::{Instant, sleep_until};

use super::backoff::Backoff;
use super::connection::{Connection, ConnectionEvent, dial};
use super::{Attach, Endpoint, Limits, LinkError, Message, Role};

/// Maximum number of connections that wait while another one is served.
const LISTEN_BACKLOG: u32 = 16;

/// An event of a subscription.
#[derive(Debug)]
pub enum SubEvent {
    /// A publisher is connected and the subscription was sent. Messages follow.
    Connected,
    /// One message, in the order sent.
    Message(Message),
    /// The connection ended, or an attempt to connect failed. Failed attempts repeat this event without a
    /// [`SubEvent::Connected`]. The next call makes a new attempt.
    Disconnected(LinkError),
}

/// A subscription to one publisher that reconnects automatically.
///
/// No tasks are spawned: dialling, heartbeats and reconnecting happen while [`SubSocket::next`] is awaited. A
/// caller that stays away for long delays the replies to the peer's PINGs, and the peer may disconnect.
pub struct SubSocket {
    attach: Attach,
    topic: Bytes,
    limits: Limits,
    listener: Option<Arc<TcpListener>>,
    backoff: Backoff,
    random: RandomState,
    attempts: u64,
    state: State,
}

type Opening = Pin<Box<dyn Future<Output = Result<TcpStream, LinkError>> + Send>>;

enum State {
    /// Backoff: the next attempt starts at this time.
    Waiting {
        until: Instant,
    },
    /// Dialling or accepting. Boxed, so that a cancelled call does not restart it.
    Opening(Opening),
    Open {
        connection: Box<Connection>,
        since: Instant,
    },
}

// === impl SubSocket ===

impl SubSocket {
    /// Creates a subscription to `topic` (a prefix of the first frame; empty for all topics) without opening
    /// a connection.
    #[must_use]
    pub fn new(attach: Attach, topic: Bytes, limits: Limits) -> Self {
        let backoff = Backoff::new(limits.backoff_min, limits.backoff_max);
        Self {
            attach,
            topic,
            limits,
            listener: None,
            backoff,
            random: RandomState::new(),
            attempts: 0,
            state: State::Waiting { until: Instant::now() },
        }
    }

    /// The listening address of [`Attach::Bind`], once [`SubSocket::next`] has been polled.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.listener.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// The next event; never ends. Cancel-safe: a dropped call loses neither messages nor progress.
    pub async fn next(&mut self) -> SubEvent {
        match self.advance().await {
            Ok(event) => event,
            Err(error) => {
                self.schedule_attempt();
                SubEvent::Disconnected(error)
            }
        }
    }

    /// The next event, if it is in bytes that were already read. A caller that checks these first waits once
    /// per read, not once per message.
    pub fn buffered(&mut self) -> Option<SubEvent> {
        let State::Open { connection, .. } = &mut self.state else { return None };
        match connection.buffered_event() {
            Ok(event) => event.map(SubEvent::from),
            Err(error) => {
                self.schedule_attempt();
                Some(SubEvent::Disconnected(error))
            }
        }
    }

    /// Returns the next event. Waits for the backoff and opens a connection first, if none is open. Fails if the
    /// connection ends or cannot be opened; then call `schedule_attempt`.
    async fn advance(&mut self) -> Result<SubEvent, LinkError> {
        loop {
            match &mut self.state {
                State::Waiting { until } => {
                    sleep_until(*until).await;
                    self.state = State::Opening(self.start_opening()?);
                }
                State::Opening(opening) => {
                    let stream = opening.await?;
                    let role = Role::Subscriber { topic: self.topic.clone() };
                    let connection = Connection::start(stream, role, self.limits.clone())?;
                    let connection = Box::new(connection);
                    self.state = State::Open { connection, since: Instant::now() };
                }
                State::Open { connection, .. } => {
                    return connection.next().await.map(SubEvent::from);
                }
            }
        }
    }

    /// Schedules the next attempt. Only a connection that lasted resets the backoff. A peer that completes
    /// handshakes and then fails is dialled as rarely as one that refuses.
    fn schedule_attempt(&mut self) {
        let now = Instant::now();
        if let State::Open { since, .. } = &self.state
            && now.duration_since(*since) >= self.limits.backoff_max
        {
            self.backoff.reset();
        }
        self.attempts = self.attempts.wrapping_add(1);
        let [.., a, b, c, d] = self.random.hash_one(self.attempts).to_le_bytes();
        let delay = self.backoff.next_delay(u32::from_le_bytes([a, b, c, d]));
        self.state = State::Waiting { until: now + delay };
    }

    /// Starts to connect, or to accept a connection.
    fn start_opening(&mut self) -> Result<Opening, LinkError> {
        match &self.attach {
            Attach::Connect(endpoint) => {
                let endpoint = endpoint.clone();
                let limits = self.limits.clone();
                Ok(Box::pin(async move { dial(&endpoint, &limits).await }))
            }
            Attach::Bind(endpoint) => {
                let listener = match &self.listener {
                    Some(listener) => Arc::clone(listener),
                    None => Arc::new(listen(endpoint)?),
                };
                self.listener = Some(Arc::clone(&listener));
                Ok(Box::pin(async move { Ok(listener.accept().await?.0) }))
            }
        }
    }
}

impl From<ConnectionEvent> for SubEvent {
    fn from(event: ConnectionEvent) -> Self {
        match event {
            ConnectionEvent::Ready => Self::Connected,
            ConnectionEvent::Message(message) => Self::Message(message),
        }
    }
}

impl fmt::Debug for SubSocket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Waiting { .. } => "waiting",
            State::Opening(_) => "opening",
            State::Open { .. } => "open",
        };
        formatter
            .debug_struct("SubSocket")
            .field("attach", &self.attach)
            .field("state", &state)
            .finish_non_exhaustive()
    }
}

fn listen(endpoint: &Endpoint) -> Result<TcpListener, LinkError> {
    let listening = || {
        let address = endpoint
            .listen_address()
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(LISTEN_BACKLOG)
    };
    listening().map_err(|source| LinkError::Listen { endpoint: endpoint.to_string(), source })
}
