use super::{
    config::LinkConfig,
    frames::{self, Malformed, Payload, Reply},
};
use crate::{
    sequence::Received,
    zmtp::{DealerSocket, Endpoint, Excess, Limits, LinkError},
};
use bytes::Bytes;
use std::{fmt, pin::Pin, sync::Arc, time::Duration};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};

/// Why a round of replay broke off.
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
    /// The limit that the engine went beyond, if that is why.
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

/// What a round of replay brings.
#[derive(Debug)]
pub(super) enum ReplayEvent {
    Batch { received: Received<Payload>, topic: Bytes },
    End,
    Failed(ReplayError),
}

/// Where to request a replay, and how long to wait.
pub(super) struct Target {
    endpoint: Endpoint,
    limits: Limits,
    reply_timeout: Duration,
}

impl Target {
    /// None if the publisher has no replay socket.
    pub(super) fn from(config: &LinkConfig) -> Option<Self> {
        Some(Self {
            endpoint: config.replay.clone()?,
            limits: config.zmtp.clone(),
            reply_timeout: config.replay_reply_timeout,
        })
    }
}

type Opening = Pin<Box<dyn Future<Output = Result<Open, ReplayError>> + Send>>;

/// One round of replay, over a connection of its own.
pub(super) struct Replay {
    pub(super) round: u64,
    /// Replies that are of other topics.
    pub(super) others: u64,
    stage: Stage,
}

enum Stage {
    /// Waiting for a permit, then connecting and sending the request; boxed, so that a dropped call does not start it over.
    Opening(Opening),
    Reading(Box<Open>),
}

struct Open {
    socket: DealerSocket,
    deadline: Instant,
    reply_timeout: Duration,
    /// Held until the round is over.
    _permit: OwnedSemaphorePermit,
}

impl Replay {
    /// A round that requests everything from `from` on, once there is a permit.
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

    /// Starts the timeout of the next reply over: nobody was reading.
    pub(super) fn restart_timeout(&mut self) {
        if let Stage::Reading(open) = &mut self.stage {
            open.deadline = Instant::now() + open.reply_timeout;
        }
    }

    /// The next reply. Cancel-safe. Not to be called again after the end or a failure.
    pub(super) async fn next(&mut self) -> ReplayEvent {
        match self.advance().await {
            Ok(Reply::Batch { received, topic }) => ReplayEvent::Batch { received, topic },
            Ok(Reply::End) => ReplayEvent::End,
            Err(error) => ReplayEvent::Failed(error),
        }
    }

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
