use std::io;
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};

use socket2::{SockRef, TcpKeepalive};

use super::heartbeat::{Due, Heartbeat};
use super::{Endpoint, Limits, LinkError, Message, Role, Session, SessionEvent};

/// Minimum keepalive time that systems accept.
const KEEPALIVE_MIN: Duration = Duration::from_secs(1);
/// Maximum keepalive time that Linux accepts.
const KEEPALIVE_MAX: Duration = Duration::from_secs(32_767);
/// Unanswered TCP keepalive probes before the system ends the connection.
const KEEPALIVE_RETRIES: u32 = 3;

/// A session on its socket, with its deadlines.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    session: Session,
    limits: Limits,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Handshake {
        deadline: Instant,
    },
    /// The peer is ready. Our subscription is still being written.
    Subscribing {
        deadline: Instant,
        pings: bool,
    },
    Traffic(Heartbeat),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum ConnectionEvent {
    /// The handshake is complete, and the system has all our bytes.
    Ready,
    Message(Message),
}

/// Opens a TCP connection within `limits.connect_timeout`.
pub(super) async fn dial(endpoint: &Endpoint, limits: &Limits) -> Result<TcpStream, LinkError> {
    let after = limits.connect_timeout;
    let connecting = TcpStream::connect((endpoint.host(), endpoint.port()));
    match tokio::time::timeout(after, connecting).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(source)) => Err(LinkError::Connect { endpoint: endpoint.to_string(), source }),
        Err(_elapsed) => Err(LinkError::ConnectTimeout { endpoint: endpoint.to_string(), after }),
    }
}

// === impl Connection ===

impl Connection {
    /// Starts a handshake on a new stream.
    pub(super) fn start(stream: TcpStream, role: Role, limits: Limits) -> Result<Self, LinkError> {
        stream.set_nodelay(true)?;
        let interval = limits.heartbeat_interval.clamp(KEEPALIVE_MIN, KEEPALIVE_MAX);
        let keepalive = TcpKeepalive::new()
            .with_time(interval)
            .with_interval(interval)
            .with_retries(KEEPALIVE_RETRIES);
        SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        let session = Session::new(role, &limits);
        let phase = Phase::Handshake { deadline: Instant::now() + limits.handshake_timeout };
        Ok(Self { stream, session, limits, phase })
    }

    /// The next event. Cancel-safe: partial reads and writes stay in `self`.
    pub(super) async fn next(&mut self) -> Result<ConnectionEvent, LinkError> {
        loop {
            if let Some(event) = self.buffered_event()? {
                return Ok(event);
            }
            self.handle_next().await?;
        }
    }

    /// Writes `frames` as one message. If cancelled, the message is not torn: the next call of any method
    /// writes its remainder.
    pub(super) async fn send(&mut self, frames: &[&[u8]]) -> Result<(), LinkError> {
        self.session.queue_message(frames);
        while !self.write()? {
            self.stream.writable().await?;
        }
        Ok(())
    }

    /// An event that is available without reading.
    pub(super) fn buffered_event(&mut self) -> Result<Option<ConnectionEvent>, LinkError> {
        if let Phase::Subscribing { pings, .. } = self.phase {
            if !self.write()? {
                return Ok(None);
            }
            self.phase = Phase::Traffic(Heartbeat::new(&self.limits, pings, Instant::now()));
            return Ok(Some(ConnectionEvent::Ready));
        }
        match self.session.next_event()? {
            Some(SessionEvent::Message(message)) => Ok(Some(ConnectionEvent::Message(message))),
            Some(SessionEvent::Ready { pings }) => {
                let deadline = self.deadline();
                self.phase = Phase::Subscribing { deadline, pings };
                self.buffered_event()
            }
            None => Ok(None),
        }
    }

    /// Waits for the socket or a deadline, and handles it.
    async fn handle_next(&mut self) -> Result<(), LinkError> {
        let interest = if self.write()? {
            Interest::READABLE
        } else {
            Interest::READABLE | Interest::WRITABLE
        };
        tokio::select! {
            biased;
            ready = self.stream.ready(interest) => ready.map(drop)?,
            // The caller may have been away for longer than the deadline. Let the I/O driver first report
            // what arrived meanwhile.
            () = sleep_until(self.deadline()) => yield_now().await,
        }
        let received = self.read_chunk()?;
        self.check_deadline(received)
    }

    fn deadline(&self) -> Instant {
        match &self.phase {
            Phase::Handshake { deadline } | Phase::Subscribing { deadline, .. } => *deadline,
            Phase::Traffic(heartbeat) => heartbeat.deadline(),
        }
    }

    /// Checks the deadline of the current phase, if it is reached. A handshake fails, unless the peer has just sent
    /// bytes (`received`): then it is checked after the next read. In traffic, queues a PING, or fails if the peer is
    /// silent for too long.
    fn check_deadline(&mut self, received: bool) -> Result<(), LinkError> {
        let now = Instant::now();
        match &mut self.phase {
            Phase::Handshake { deadline } | Phase::Subscribing { deadline, .. } => {
                if received || now < *deadline {
                    return Ok(());
                }
                Err(LinkError::HandshakeTimeout { after: self.limits.handshake_timeout })
            }
            Phase::Traffic(heartbeat) => match heartbeat.next_action(now) {
                Due::Nothing => Ok(()),
                Due::Ping => {
                    self.session.queue_ping(self.limits.heartbeat_timeout);
                    Ok(())
                }
                Due::Dead(after) => Err(LinkError::Silent { after }),
            },
        }
    }

    /// Reads one chunk. Returns `false` if no bytes are available.
    fn read_chunk(&mut self) -> Result<bool, LinkError> {
        let read = self.stream.try_read_buf(&mut self.session.read_buffer());
        match read {
            Ok(0) => Err(LinkError::Closed),
            Ok(_) => {
                if let Phase::Traffic(heartbeat) = &mut self.phase {
                    heartbeat.received(Instant::now());
                }
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.session.release_buffer();
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Writes as much as possible. Returns `true` if all output is written.
    fn write(&mut self) -> Result<bool, LinkError> {
        while !self.session.output().is_empty() {
            match self.stream.try_write(self.session.output()) {
                Ok(count) => self.session.written(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }
}
