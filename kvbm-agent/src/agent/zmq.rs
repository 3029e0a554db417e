use super::AgentError;
use crate::zmq::{ZmqConfig, ZmqEndpoints, ZmqSockets, ZmqStatus};
use kvasir_feed::feed::Feed;
use kvasir_tasks::group::TaskGroup;
use std::sync::Arc;
use tokio::sync::watch;

/// ZMQ sockets of a running agent.
#[derive(Debug)]
pub(super) struct Zmq {
    pub(super) endpoints: ZmqEndpoints,
    pub(super) status: watch::Receiver<ZmqStatus>,
}

impl Zmq {
    /// Binds the ZMQ sockets, and starts a publishing and a replaying task. Returns `None` if ZMQ is off.
    pub(super) async fn start(
        feed: &Arc<Feed>,
        config: Option<ZmqConfig>,
        publishers: &mut TaskGroup,
        services: &mut TaskGroup,
    ) -> Result<Option<Self>, AgentError> {
        let Some(config) = config else { return Ok(None) };
        let sockets = ZmqSockets::bind(config).await?;
        let endpoints = sockets.endpoints();
        let (sender, status) = watch::channel(ZmqStatus::new(feed.status().incarnation));
        let (publishing, replaying) =
            sockets.tasks(feed, sender, publishers.token(), services.token());
        publishers.spawn("ZMQ publisher", publishing);
        services.spawn("ZMQ replay", replaying);
        Ok(Some(Self { endpoints, status }))
    }
}
