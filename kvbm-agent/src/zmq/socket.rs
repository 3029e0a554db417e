use super::config::{TOPIC_BYTES_MAX, ZmqConfig, ZmqConfigError, ZmqStatus};
use super::publish::ZmqPublisher;
use super::replay::Replayer;
use bytes::Bytes;
use kvasir_feed::feed::Feed;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use zeromq::{PubSocket, RouterSocket, Socket};

/// Addresses of an agent's ZMQ sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZmqEndpoints {
    /// Address of the PUB socket.
    pub live: SocketAddr,
    /// Address of the ROUTER socket that replays.
    pub replay: SocketAddr,
}

/// Both sockets, bound.
pub struct ZmqSockets {
    live: PubSocket,
    replay: RouterSocket,
    topic: Bytes,
    endpoints: ZmqEndpoints,
}

impl fmt::Debug for ZmqSockets {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("ZmqSockets");
        shown.field("topic", &self.topic).field("endpoints", &self.endpoints);
        shown.finish_non_exhaustive()
    }
}

impl ZmqSockets {
    /// Binds both sockets. Peers may connect, but receive nothing before the tasks run.
    ///
    /// # Errors
    /// If the topic is too long, or a port cannot be opened.
    pub async fn bind(config: ZmqConfig) -> Result<Self, ZmqConfigError> {
        let bytes = config.topic.len();
        let limit = TOPIC_BYTES_MAX;
        if bytes > limit {
            return Err(ZmqConfigError::Topic { bytes, limit });
        }
        let mut live = PubSocket::new();
        let mut replay = RouterSocket::new();
        let endpoints = ZmqEndpoints {
            live: listen(&mut live, "zmq listen", config.listen).await?,
            replay: listen(&mut replay, "zmq replay-listen", config.replay).await?,
        };
        Ok(Self { live, replay, topic: config.topic.into(), endpoints })
    }

    /// Addresses of the sockets.
    #[must_use]
    pub const fn endpoints(&self) -> ZmqEndpoints {
        self.endpoints
    }

    /// Returns two futures: the first publishes `feed`, the second answers replay requests. Each runs until its token
    /// stops it, and reports its progress in `status`.
    pub fn tasks(
        self,
        feed: &Arc<Feed>,
        status: watch::Sender<ZmqStatus>,
        stop_live: CancellationToken,
        stop_replay: CancellationToken,
    ) -> (impl Future<Output = ()> + Send + use<>, impl Future<Output = ()> + Send + use<>) {
        let status = Arc::new(status);
        let topic = self.topic.clone();
        let publisher = ZmqPublisher::new(Arc::clone(feed), self.live, topic, Arc::clone(&status));
        let replayer = Replayer::new(Arc::clone(feed), self.replay, self.topic, status);
        (publisher.run(stop_live), replayer.run(stop_replay))
    }
}

/// Binds a socket, and returns the address with the assigned port.
async fn listen(
    socket: &mut impl Socket,
    field: &'static str,
    address: SocketAddr,
) -> Result<SocketAddr, ZmqConfigError> {
    let failed = |error| ZmqConfigError::Bind { field, address, error };
    let listener = TcpListener::bind(address).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let listening = socket.bind_listener(listener).await;
    listening.map_err(|error| failed(io::Error::other(error)))?;
    Ok(bound)
}
