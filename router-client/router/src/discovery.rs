//! Worker discovery: polls the index for its workers.
//!
//! Each shard's workers are listed periodically at one of its replicas. If no replica of a shard answers, its workers
//! stay unchanged. Workers missing from the first list of a new server process stay for 30 s. So a restarted index
//! removes no worker before it could register again.
//!
//! The block capacity of a rank comes from its worker's profile, else the engine's report. Otherwise [`HeldBlocks`]
//! estimates it from the blocks that the index lists.

use crate::fleet::{Fleet, Listing, RankBlocks};
use crate::reports::{KvMetricsAggregator, ReportedBlocks};
use kvasir_process::telemetry::NotReady;
use kvasir_proto::types::{PartitionKey, WorkerId, WorkerKey};
use parking_lot::Mutex;
use router_client::route::HeldBlocks;
use router_client::{
    ClientConfig, ClientError, Dialer, IndexerClient, LISTED_WORKERS_MAX, ListedWorker, WorkerList,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// How long workers stay listed that a restarted index may have lost.
const RESTART_GRACE: Duration = Duration::from_secs(30);

/// Maximum interval of listing while there is no worker: requests fail until the first one.
const EMPTY_INTERVAL: Duration = Duration::from_millis(100);

/// Lists the workers of all shards.
#[derive(Debug)]
pub struct Discovery {
    shards: Vec<Shard>,
    fleet: Arc<Fleet>,
    reports: Arc<KvMetricsAggregator>,
    listed: watch::Sender<Arc<Listing>>,
    problems: Mutex<Vec<String>>,
    held: Mutex<Held>,
}

/// Observed block counts of each rank.
type Held = BTreeMap<PartitionKey, BTreeMap<WorkerKey, HeldBlocks>>;

/// The replicas of one shard.
#[derive(Debug)]
struct Shard {
    replicas: Vec<(String, IndexerClient)>,
    /// Number of the replica that answered last.
    last: Mutex<usize>,
    known: Mutex<Known>,
}

/// The workers of a shard.
#[derive(Debug, Default)]
struct Known {
    /// `None` before the first list.
    workers: Option<Vec<ListedWorker>>,
    /// Id of the server process that sent the list.
    server_id: u64,
    /// For workers that a restarted index may have lost, the time since which they are missing.
    missing_since: BTreeMap<(PartitionKey, WorkerId), Instant>,
}

impl Discovery {
    /// Creates a discovery that has listed no workers yet.
    ///
    /// # Errors
    /// If a server's address is invalid, which the options have already checked.
    pub fn new(
        shards: &[Vec<String>],
        dialer: &Dialer,
        fleet: Arc<Fleet>,
        reports: Arc<KvMetricsAggregator>,
    ) -> Result<Self, ClientError> {
        let connect = |url: &String| {
            let config = ClientConfig { dialer: dialer.clone(), ..ClientConfig::default() };
            let client = IndexerClient::connect(url, config)?;
            Ok::<_, ClientError>((url.clone(), client))
        };
        let shard = |urls: &Vec<String>| {
            let replicas = urls.iter().map(connect).collect::<Result<_, _>>()?;
            Ok::<_, ClientError>(Shard { replicas, last: Mutex::new(0), known: Mutex::default() })
        };
        let shards = shards.iter().map(shard).collect::<Result<_, _>>()?;
        let listed = watch::Sender::new(Arc::default());
        let problems = Mutex::default();
        let held = Mutex::default();
        Ok(Self { shards, fleet, reports, listed, problems, held })
    }

    /// Receives changes of the workers.
    #[must_use]
    pub fn listed(&self) -> watch::Receiver<Arc<Listing>> {
        self.listed.subscribe()
    }

    /// Current problems, one line each.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        self.problems.lock().clone()
    }

    /// Lists all shards every `every`. Drops `unlisted` once each shard was listed.
    pub async fn run(&self, every: Duration, unlisted: NotReady) {
        let mut unlisted = Some(unlisted);
        loop {
            let began = Instant::now();
            self.round().await;
            if self.shards.iter().all(|shard| shard.known.lock().workers.is_some()) {
                drop(unlisted.take());
            }
            let is_empty = self.listed.borrow().is_empty();
            let pause = if is_empty { every.min(EMPTY_INTERVAL) } else { every };
            sleep(pause.saturating_sub(began.elapsed())).await;
        }
    }

    /// Lists the workers of all shards, and updates routers and reports. Workers beyond [`LISTED_WORKERS_MAX`] are
    /// ignored.
    async fn round(&self) {
        let mut problems = Vec::new();
        for (number, shard) in self.shards.iter().enumerate() {
            if let Err(problem) = shard.list().await {
                problems.push(format!("shard {number}: {problem}"));
            }
        }
        self.set_problems(problems);
        let mut all = Listing::new();
        let mut count = 0;
        let mut before = std::mem::take(&mut *self.held.lock());
        let mut held = Held::new();
        for shard in &self.shards {
            for at in shard.known.lock().workers.iter().flatten() {
                if count < LISTED_WORKERS_MAX {
                    observe(at, &mut before, &mut held);
                    // A worker's blocks change constantly, which is not a change of the workers.
                    let listed = ListedWorker { held_blocks: BTreeMap::new(), ..at.clone() };
                    let workers = all.entry(at.partition.clone()).or_default();
                    count += usize::from(workers.insert(at.worker.clone(), listed).is_none());
                }
            }
        }
        let blocks = |key: &PartitionKey, rank: &WorkerKey| {
            let ReportedBlocks { total, active } = self.reports.blocks_of(key, rank);
            let held = || held.get(key)?.get(rank)?.capacity();
            RankBlocks { total: total.or_else(held), active }
        };
        if let Err(error) = self.fleet.set_workers(&all, blocks) {
            tracing::error!(%error, "the routers were not updated: their settings are invalid");
        }
        *self.held.lock() = held;
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

impl Discovery {
    /// Sets the current problems, and logs the new ones.
    fn set_problems(&self, problems: Vec<String>) {
        let mut current = self.problems.lock();
        for problem in problems.iter().filter(|problem| !current.contains(problem)) {
            tracing::warn!(problem, "the index does not list its workers");
        }
        if problems.is_empty() && !current.is_empty() {
            tracing::info!("the index lists its workers");
        }
        *current = problems;
    }
}

impl Known {
    /// Applies a list. If it comes from a new server process, missing workers stay for the grace period, counted from
    /// when each was first missing: they may not have registered there yet.
    fn apply_list(&mut self, list: WorkerList, now: Instant) {
        let WorkerList { workers: mut listed, server_id } = list;
        let is_other_process = std::mem::replace(&mut self.server_id, server_id) != server_id;
        let before = self.workers.take().unwrap_or_default();
        let is_listed: BTreeSet<_> = listed.iter().map(key).collect();
        let sizes: BTreeMap<_, _> =
            listed.iter().map(|at| (at.partition.clone(), at.block_size)).collect();
        let mut missing = before;
        missing.retain(|at| !is_listed.contains(&key(at)));
        let mut since = std::mem::take(&mut self.missing_since);
        for at in missing {
            let known = since.remove(&key(&at));
            let is_in_doubt = is_other_process || known.is_some();
            let first = known.unwrap_or(now);
            // A fleet with another block size replaces the old one.
            let is_other = sizes.get(&at.partition).is_some_and(|size| *size != at.block_size);
            if is_in_doubt && !is_other && now.duration_since(first) < RESTART_GRACE {
                self.missing_since.insert(key(&at), first);
                listed.push(at);
            }
        }
        self.workers = Some(listed);
    }
}

/// Records the current block counts of a worker's ranks in `held`, together with the earlier ones in `before`.
fn observe(worker: &ListedWorker, before: &mut Held, held: &mut Held) {
    let key = &worker.partition;
    for (&rank, &blocks) in &worker.held_blocks {
        let rank = WorkerKey { worker: worker.worker.clone(), rank };
        let known = before.get_mut(key).and_then(|ranks| ranks.remove(&rank));
        let mut known = known.unwrap_or_default();
        known.observe(blocks);
        held.entry(key.clone()).or_default().insert(rank, known);
    }
}

fn key(listed: &ListedWorker) -> (PartitionKey, WorkerId) {
    (listed.partition.clone(), listed.worker.clone())
}

impl Shard {
    /// Lists the workers at the replica that answered last, or at the next replica if that one fails. The error names
    /// the last replica.
    async fn list(&self) -> Result<(), String> {
        let first = *self.last.lock();
        let mut failed = Ok(());
        for turn in 0..self.replicas.len() {
            let number = (first + turn) % self.replicas.len();
            let Some((url, client)) = self.replicas.get(number) else { continue };
            match client.worker_list(None).await {
                Ok(list) => {
                    *self.last.lock() = number;
                    self.known.lock().apply_list(list, Instant::now());
                    return Ok(());
                }
                Err(error) => {
                    tracing::debug!(%url, %error, "a replica does not list its workers");
                    failed = Err(format!("{url}: {error}"));
                }
            }
        }
        failed
    }
}

/// Returns the addresses of the workers' agents, each with its worker. Skips agents that are reached over NATS.
#[must_use]
pub fn agents(listing: &Listing) -> BTreeSet<(String, PartitionKey, WorkerId)> {
    let mut agents = BTreeSet::new();
    for (key, workers) in listing {
        for (id, listed) in workers {
            // Other agents are reached over NATS.
            if let Some(agent) = listed.agent.as_ref().filter(|url| url.contains("://")) {
                agents.insert((agent.clone(), key.clone(), id.clone()));
            }
        }
    }
    agents
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_proto::convert::{ImageTokens, WorkerProfile};

    fn workers(numbers: impl IntoIterator<Item = u32>) -> Vec<ListedWorker> {
        let worker = |number: u32| ListedWorker {
            partition: PartitionKey::new("m", "").expect("a name"),
            worker: WorkerId::new(&number.to_string()).expect("a name"),
            block_size: 16,
            ranks: [0].into(),
            profile: WorkerProfile::default(),
            image_tokens: ImageTokens::Identifier,
            adapters: [].into(),
            agent: None,
            has_blocks: false,
            held_blocks: [].into(),
        };
        numbers.into_iter().map(worker).collect()
    }

    fn count(known: &Known) -> usize {
        known.workers.as_ref().map_or(0, Vec::len)
    }

    fn list(server_id: u64, workers: Vec<ListedWorker>) -> WorkerList {
        WorkerList { workers, server_id }
    }

    /// An index restarts, and its workers register again one after the other.
    #[test]
    fn workers_stay_while_they_register_again() {
        let begin = Instant::now();
        for at_first in [0, 1, 5] {
            let mut known = Known::default();
            known.apply_list(list(1, workers(0..6)), begin);
            for (seconds, registered) in [(1, at_first), (5, at_first.max(3)), (12, 5)] {
                let now = begin + Duration::from_secs(seconds);
                known.apply_list(list(2, workers(0..registered)), now);
                assert_eq!(count(&known), 6, "{registered} have registered again");
            }
            // One worker does not return.
            known.apply_list(list(2, workers(0..5)), begin + Duration::from_secs(30));
            assert_eq!(count(&known), 6);
            known.apply_list(list(2, workers(0..5)), begin + Duration::from_secs(31));
            assert_eq!(count(&known), 5);
        }
    }

    /// Each worker has its own grace period: a worker that never returns does not shorten another's.
    #[test]
    fn a_second_restart_has_a_grace_of_its_own() {
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut known = Known::default();
        known.apply_list(list(1, workers(0..6)), begin);
        known.apply_list(list(2, workers(0..0)), after(1));
        known.apply_list(list(2, workers(0..5)), after(5));
        known.apply_list(list(3, workers(0..0)), after(45));
        assert_eq!(count(&known), 5, "the sixth is gone, the others have 30 s");
        known.apply_list(list(3, workers(0..0)), after(76));
        assert_eq!(count(&known), 0);
    }

    #[test]
    fn a_new_fleet_with_other_blocks_takes_the_place_of_the_old_one() {
        let begin = Instant::now();
        let mut known = Known::default();
        known.apply_list(list(1, workers(0..6)), begin);
        let mut other = workers(6..8);
        other.iter_mut().for_each(|at| at.block_size = 32);
        known.apply_list(list(2, other), begin);
        assert_eq!(count(&known), 2);
    }

    #[test]
    fn workers_that_are_removed_go_at_once() {
        let begin = Instant::now();
        let mut known = Known::default();
        known.apply_list(list(1, workers(0..6)), begin);
        known.apply_list(list(1, workers(0..5)), begin);
        assert_eq!(count(&known), 5);
        known.apply_list(list(1, workers(0..0)), begin);
        assert_eq!(count(&known), 0, "however many");
        known.apply_list(list(2, workers(0..8)), begin);
        known.apply_list(list(2, workers(0..7)), begin);
        assert_eq!(count(&known), 7, "nothing was missing when the process changed");
    }
}
