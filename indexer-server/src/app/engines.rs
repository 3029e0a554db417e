//! Follows a list of engines, and registers those of this shard.

use crate::grpc::{Parts, local};
use crate::ingest::Ingest;
use kvasir_discovery::{EngineSource, Engines, Observer, Registrar, Shard, Watch};
use kvasir_engine_http::{EngineClient, EngineKeys};
use kvasir_proto::hash::bucket;
use kvasir_proto::types::WorkerId;
use kvasir_tls::{Dialer, IN_PROCESS};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Maximum wait for a connection to an engine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The list of engines, and where their problems are shown.
#[derive(Debug)]
pub(super) struct FollowedList {
    pub(super) source: EngineSource,
    pub(super) problems: watch::Sender<Vec<String>>,
    pub(super) hangup: Signal,
}

impl Shard for Ingest {
    fn owns(&self, worker: &WorkerId) -> bool {
        let Some(shard) = self.shard() else { return true };
        shard.map.accepts(shard.place.shard(), bucket(worker))
    }
}

/// Shows the engines' problems in `/readyz`.
struct Shown(watch::Sender<Vec<String>>);

impl Observer for Shown {
    fn end_round(&mut self, watch: &Watch) {
        self.0.send_replace(watch.problems());
    }
}

impl FollowedList {
    /// Creates the list. From now on SIGHUP does not end the process. Shows its problems in `problems`.
    ///
    /// # Errors
    /// If the signal handler cannot be installed.
    pub(super) fn new(
        source: EngineSource,
        problems: watch::Sender<Vec<String>>,
    ) -> io::Result<Self> {
        Ok(Self { source, problems, hangup: signal(SignalKind::hangup())? })
    }

    /// Follows the engines until `stop` is cancelled.
    ///
    /// # Errors
    /// If the index cannot be called, which is a bug.
    pub(super) async fn run(
        self,
        parts: Parts,
        (dialer, timeout): (Dialer, Duration),
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        let shard: Arc<dyn Shard> = Arc::clone(&parts.ingest) as _;
        let dialled = Dialer::default().with_local(local(parts));
        let registrar = Registrar::new(dialled.lazy(IN_PROCESS)?, Some(shard));
        let keys = EngineKeys::default();
        let engines = Engines {
            named: Vec::new(),
            source: Some(self.source),
            client: EngineClient::new(dialer, CONNECT_TIMEOUT, keys.clone()),
            keys,
            registrar,
            timeout,
        };
        let following = Box::pin(engines.follow(self.hangup, Shown(self.problems)));
        let _stopped = stop.run_until_cancelled(following).await;
        Ok(())
    }
}
