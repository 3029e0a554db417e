//! Which workers there are, by the index.
//!
//! Each shard's workers are listed at one of its replicas, again and again. The workers of a shard of which no replica
//! answers stay as they were, and so do, for 30 s, those of a shard that suddenly lists none: an index that restarts with
//! nothing takes no worker away until its workers have registered again.

use crate::fleet::{Fleet, Listing};
use crate::reports::KvMetricsAggregator;
use kvasir_process::telemetry::NotReady;
use kvasir_proto::types::{PartitionKey, WorkerId};
use parking_lot::Mutex;
use router_client::{ClientConfig, ClientError, IndexerClient, LISTED_WORKERS_MAX, ListedWorker};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// How long the workers of a shard stay that suddenly lists none.
const EMPTY_GRACE: Duration = Duration::from_secs(30);

/// Lists workers.
#[derive(Debug)]
pub struct Discovery {
    shards: Vec<Shard>,
    fleet: Arc<Fleet>,
    reports: Arc<KvMetricsAggregator>,
    listed: watch::Sender<Arc<Listing>>,
    problems: Mutex<Vec<String>>,
}

/// The replicas of one shard.
#[derive(Debug)]
struct Shard {
    replicas: Vec<(String, IndexerClient)>,
    /// The replica that answered last.
    last: Mutex<usize>,
    /// What it answered.
    workers: Mutex<Option<Vec<ListedWorker>>>,
    /// Since when it lists no workers, though it listed some before.
    empty_since: Mutex<Option<Instant>>,
}

impl Discovery {
    /// Nothing is listed yet.
    ///
    /// # Errors
    /// If the address of a server cannot be one, which the options have checked.
    pub fn new(
        shards: &[Vec<String>],
        fleet: Arc<Fleet>,
        reports: Arc<KvMetricsAggregator>,
    ) -> Result<Self, ClientError> {
        let connect = |url: &String| {
            let client = IndexerClient::connect(url, ClientConfig::default())?;
            Ok::<_, ClientError>((url.clone(), client))
        };
        let shard = |urls: &Vec<String>| {
            let replicas = urls.iter().map(connect).collect::<Result<_, _>>()?;
            Ok::<_, ClientError>(Shard {
                replicas,
                last: Mutex::new(0),
                workers: Mutex::default(),
                empty_since: Mutex::default(),
            })
        };
        let shards = shards.iter().map(shard).collect::<Result<_, _>>()?;
        let listed = watch::Sender::new(Arc::default());
        Ok(Self { shards, fleet, reports, listed, problems: Mutex::default() })
    }

    /// Changes of the workers.
    #[must_use]
    pub fn listed(&self) -> watch::Receiver<Arc<Listing>> {
        self.listed.subscribe()
    }

    /// What is not well, a line each.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        self.problems.lock().clone()
    }

    /// Lists all shards again and again. `unlisted` is dropped once each of them has been listed.
    pub async fn run(&self, every: Duration, unlisted: NotReady) {
        let mut unlisted = Some(unlisted);
        let mut rounds = interval(every);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            rounds.tick().await;
            self.round().await;
            if self.shards.iter().all(|shard| shard.workers.lock().is_some()) {
                drop(unlisted.take());
            }
        }
    }

    async fn round(&self) {
        let mut problems = Vec::new();
        for (number, shard) in self.shards.iter().enumerate() {
            if let Err(error) = shard.list().await {
                problems.push(format!("shard {number}: {error}"));
            }
        }
        *self.problems.lock() = problems;
        let mut all = Listing::new();
        let mut count = 0;
        for shard in &self.shards {
            for at in shard.workers.lock().iter().flatten() {
                if count < LISTED_WORKERS_MAX {
                    let workers = all.entry(at.partition.clone()).or_default();
                    count += usize::from(workers.insert(at.worker.clone(), at.clone()).is_none());
                }
            }
        }
        if let Err(error) = self.fleet.set_workers(&all) {
            tracing::error!(%error, "the settings cannot be used");
        }
        self.reports.retain(|key, rank| {
            let workers = all.get(key);
            workers.is_some_and(|workers| workers.contains_key(&rank.worker))
        });
        if **self.listed.borrow() != all {
            tracing::info!(workers = count, models = all.len(), "workers");
            self.listed.send_replace(Arc::new(all));
        }
    }
}

impl Shard {
    /// Takes a list, unless it is suddenly empty.
    fn listed(&self, workers: Vec<ListedWorker>) {
        let mut known = self.workers.lock();
        let mut empty_since = self.empty_since.lock();
        let had_some = known.as_ref().is_some_and(|known| !known.is_empty());
        if workers.is_empty() && had_some {
            let since = *empty_since.get_or_insert_with(Instant::now);
            if since.elapsed() < EMPTY_GRACE {
                return;
            }
        }
        *empty_since = None;
        *known = Some(workers);
    }

    /// Lists the workers at the replica that answered last, or else at another one.
    async fn list(&self) -> Result<(), ClientError> {
        let first = *self.last.lock();
        let mut failed = Ok(());
        for turn in 0..self.replicas.len() {
            let number = (first + turn) % self.replicas.len();
            let Some((url, client)) = self.replicas.get(number) else { continue };
            match client.list_workers(None).await {
                Ok(workers) => {
                    *self.last.lock() = number;
                    self.listed(workers);
                    return Ok(());
                }
                Err(error) => {
                    tracing::debug!(%url, %error, "a replica does not list its workers");
                    failed = Err(error);
                }
            }
        }
        failed
    }
}

/// The agents of the workers: their addresses, each with its worker.
#[must_use]
pub fn agents(listing: &Listing) -> BTreeSet<(String, PartitionKey, WorkerId)> {
    let mut agents = BTreeSet::new();
    for (key, workers) in listing {
        for (id, listed) in workers {
            // Others are reached over NATS.
            if let Some(agent) = listed.agent.as_ref().filter(|url| url.starts_with("http://")) {
                agents.insert((agent.clone(), key.clone(), id.clone()));
            }
        }
    }
    agents
}
