use super::AgentError;
use crate::zmq::{ZmqConfig, ZmqEndpoints, ZmqSockets, ZmqStatus};
use kvasir_feed::feed::Feed;
use kvasir_tasks::tasks::Tasks;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// ZMQ sockets of a running agent.
#[derive(Debug)]
pub(super) struct Zmq {
    pub(super) endpoints: ZmqEndpoints,
    pub(super) status: watch::Receiver<ZmqStatus>,
}

impl Zmq {
    /// Binds the ZMQ sockets, and starts a publishing and a replaying task, each with its own stop token. Returns
    /// `None` if ZMQ is off.
    pub(super) async fn start(
        feed: &Arc<Feed>,
        config: Option<ZmqConfig>,
        (publishers, stop_publishing): (&mut Tasks, &CancellationToken),
        (services, stop_replaying): (&mut Tasks, &CancellationToken),
    ) -> Result<Option<Self>, AgentError> {
        let Some(config) = config else { return Ok(None) };
        let sockets = ZmqSockets::bind(config).await?;
        let endpoints = sockets.endpoints();
        let (sender, status) = watch::channel(ZmqStatus::new(feed.status().incarnation));
        let stops = (stop_publishing.clone(), stop_replaying.clone());
        let (publishing, replaying) = sockets.tasks(feed, sender, stops.0, stops.1);
        publishers.spawn("ZMQ publisher", publishing);
        services.spawn("ZMQ replay", replaying);
        Ok(Some(Self { endpoints, status }))
    }
}
