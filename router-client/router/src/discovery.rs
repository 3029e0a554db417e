//! Which workers there are, by the index.
//!
//! Each shard's workers are listed at one of its replicas, again and again. The workers of a shard of which no replica
//! answers stay as they were: an index that restarts takes no worker away.

use crate::fleet::{Fleet, Listed, Listing};
use crate::reports::KvMetricsAggregator;
use kvasir_proto::convert::{ConvertError, Registration};
use kvasir_proto::limits::GRPC_MESSAGE_BYTES_MAX;
use kvasir_proto::pb;
use kvasir_proto::pb::indexer_client::IndexerClient;
use kvasir_proto::target::{TargetError, endpoint};
use kvasir_proto::types::{PartitionKey, WorkerId};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tonic::Status;
use tonic::transport::Channel;

/// Longest time for the list of one shard.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);
/// Most workers of all shards together; of more, those that come last in their shard are left out.
const WORKERS_MAX: usize = 16_384;

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
    replicas: Vec<(String, IndexerClient<Channel>)>,
    /// The replica that answered last.
    last: Mutex<usize>,
    /// What it answered.
    workers: Mutex<Option<Listing>>,
}

/// Why a shard's workers are not known.
#[derive(Debug, thiserror::Error)]
enum ListError {
    #[error("{} ({:?})", .0.message(), .0.code())]
    Status(#[from] Status),
    #[error("no answer within {} s", LIST_TIMEOUT.as_secs())]
    Timeout,
    #[error("malformed answer: {0}")]
    Malformed(#[from] ConvertError),
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
    ) -> Result<Self, TargetError> {
        let connect = |url: &String| {
            let channel = endpoint(url)?.connect_lazy();
            let client =
                IndexerClient::new(channel).max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX);
            Ok::<_, TargetError>((url.clone(), client))
        };
        let shard = |urls: &Vec<String>| {
            let replicas = urls.iter().map(connect).collect::<Result<_, _>>()?;
            Ok::<_, TargetError>(Shard { replicas, last: Mutex::new(0), workers: Mutex::default() })
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

    /// Whether every shard has been listed once.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.shards.iter().all(|shard| shard.workers.lock().is_some())
    }

    /// What is not well, a line each.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        self.problems.lock().clone()
    }

    /// Lists all shards again and again.
    pub async fn run(&self, every: Duration) {
        let mut rounds = interval(every);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            rounds.tick().await;
            self.round().await;
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
            for (key, workers) in shard.workers.lock().iter().flatten() {
                let room = WORKERS_MAX.saturating_sub(count);
                let at = all.entry(key.clone()).or_default();
                at.extend(workers.iter().take(room).map(|(id, at)| (id.clone(), at.clone())));
                count += workers.len().min(room);
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
    /// Lists the workers at the replica that answered last, or else at another one.
    async fn list(&self) -> Result<(), ListError> {
        let first = *self.last.lock();
        let mut failed = ListError::Timeout;
        for turn in 0..self.replicas.len() {
            let number = (first + turn) % self.replicas.len();
            let Some((url, client)) = self.replicas.get(number) else { continue };
            let pages = timeout(LIST_TIMEOUT, pages(client.clone())).await;
            match pages.unwrap_or(Err(ListError::Timeout)) {
                Ok(workers) => {
                    *self.last.lock() = number;
                    *self.workers.lock() = Some(workers);
                    return Ok(());
                }
                Err(error) => {
                    tracing::debug!(%url, %error, "a replica does not list its workers");
                    failed = error;
                }
            }
        }
        Err(failed)
    }
}

async fn pages(mut client: IndexerClient<Channel>) -> Result<Listing, ListError> {
    let mut listing = Listing::new();
    let mut page_token = String::new();
    let mut count = 0;
    loop {
        let request = pb::ListWorkersRequest { page_token, ..Default::default() };
        let page = client.list_workers(request).await?.into_inner();
        for info in page.workers {
            let (key, worker, listed) = read(info)?;
            listing.entry(key).or_default().insert(worker, listed);
            count += 1;
        }
        page_token = page.next_page_token;
        if page_token.is_empty() || count >= WORKERS_MAX {
            return Ok(listing);
        }
    }
}

fn read(info: pb::WorkerInfo) -> Result<(PartitionKey, WorkerId, Listed), ConvertError> {
    let registration = Registration::try_from(info.registration.unwrap_or_default())?;
    // Ranks that publish, and those that are to.
    let mut ranks: BTreeSet<u32> = info.ranks.iter().map(|rank| rank.dp_rank).collect();
    ranks.extend(registration.endpoints.iter().map(|at| at.rank));
    if ranks.is_empty() {
        ranks.insert(0);
    }
    let listed = Listed {
        block_size: registration.block_size,
        ranks,
        adapters: registration.lora_names.values().cloned().collect(),
        profile: registration.profile,
        agent: registration.local_indexer,
    };
    Ok((registration.partition, registration.worker, listed))
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
