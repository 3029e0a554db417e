use super::config::LinkConfig;
use super::frames::{self, Malformed, Payload, Reply};
use crate::sequence::Received;
use crate::zmtp::{DealerSocket, Endpoint, Excess, Limits, LinkError};
use bytes::Bytes;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

/// Why a round of replay failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReplayError {
    #[error("replay permits are gone")]
    NoPermit,
    #[error("no reply for {after:?}")]
    Timeout { after: Duration },
    #[error("connection to the replay socket: {0}")]
    Link(#[from] LinkError),
    #[error("malformed reply: {0}")]
    Malformed(#[from] Malformed),
    #[error("replies are of other topics: batches of this engine may be missing between them")]
    OtherTopics,
    #[error("replies state no topic, and the socket has several: they may be another engine's")]
    NoTopic,
}

impl ReplayError {
    /// The exceeded limit, if that caused the failure.
    pub(super) const fn excess(&self) -> Option<Excess> {
        match self {
            Self::Link(error) => error.excess(),
            Self::NoPermit
            | Self::Timeout { .. }
            | Self::Malformed(_)
            | Self::OtherTopics
            | Self::NoTopic => None,
        }
    }
}

/// An event of a round of replay.
#[derive(Debug)]
pub(super) enum ReplayEvent {
    Batch { received: Received<Payload>, topic: Bytes },
    End,
    Failed(ReplayError),
}

/// Address, limits and timeout of a replay request.
pub(super) struct Target {
    endpoint: Endpoint,
    limits: Limits,
    reply_timeout: Duration,
}

impl Target {
    /// The target in `config`; `None` if the publisher has no replay socket.
    pub(super) fn from(config: &LinkConfig) -> Option<Self> {
        Some(Self {
            endpoint: config.replay.clone()?,
            limits: config.zmtp.clone(),
            reply_timeout: config.replay_reply_timeout,
        })
    }
}

type Opening = Pin<Box<dyn Future<Output = Result<Open, ReplayError>> + Send>>;

/// One round of replay, on its own connection.
pub(super) struct Replay {
    pub(super) round: u64,
    /// Number of replies with another topic.
    pub(super) others: u64,
    stage: Stage,
}

enum Stage {
    /// Waits for a permit, connects and sends the request. Boxed, so that a dropped call does not restart it.
    Opening(Opening),
    Reading(Box<Open>),
}

struct Open {
    socket: DealerSocket,
    deadline: Instant,
    reply_timeout: Duration,
    /// The round's permit, released at its end.
    _permit: OwnedSemaphorePermit,
}

impl Replay {
    /// Starts a round that requests all batches from `from` on, once it has a permit.
    pub(super) fn start(round: u64, from: u64, target: Target, permits: Arc<Semaphore>) -> Self {
        let Target { endpoint, limits, reply_timeout } = target;
        let opening = async move {
            let permit = permits.acquire_owned().await.map_err(|_closed| ReplayError::NoPermit)?;
            let deadline = Instant::now() + reply_timeout;
            let connecting = async {
                let mut socket = DealerSocket::connect(&endpoint, &limits).await?;
                socket.send(&[b"", &frames::request(from)]).await?;
                Ok::<_, LinkError>(socket)
            };
            let connected = timeout_at(deadline, connecting).await;
            let socket =
                connected.map_err(|_elapsed| ReplayError::Timeout { after: reply_timeout })??;
            Ok(Open { socket, deadline, reply_timeout, _permit: permit })
        };
        Self { round, others: 0, stage: Stage::Opening(Box::pin(opening)) }
    }

    /// Restarts the timeout of the next reply, because the link was not reading.
    pub(super) fn restart_timeout(&mut self) {
        if let Stage::Reading(open) = &mut self.stage {
            open.deadline = Instant::now() + open.reply_timeout;
        }
    }

    /// The next event. Cancel-safe. Must not be called after the end or a failure.
    pub(super) async fn next(&mut self) -> ReplayEvent {
        match self.advance().await {
            Ok(Reply::Batch { received, topic }) => ReplayEvent::Batch { received, topic },
            Ok(Reply::End) => ReplayEvent::End,
            Err(error) => ReplayEvent::Failed(error),
        }
    }

    /// Waits for the next reply: opens the socket first, then reads one message within the reply timeout.
    async fn advance(&mut self) -> Result<Reply, ReplayError> {
        loop {
            match &mut self.stage {
                Stage::Opening(opening) => self.stage = Stage::Reading(Box::new(opening.await?)),
                Stage::Reading(open) => {
                    let received = timeout_at(open.deadline, open.socket.recv()).await;
                    let message = received
                        .map_err(|_elapsed| ReplayError::Timeout { after: open.reply_timeout })??;
                    open.deadline = Instant::now() + open.reply_timeout;
                    return Ok(frames::reply(&message)?);
                }
            }
        }
    }
}

impl fmt::Debug for Replay {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Replay").field("round", &self.round).finish_non_exhaustive()
    }
}
