//! Sends each query to one replica of every shard (scatter-gather) and merges the answers.

mod shard;

use crate::client::check_length;
use crate::config::ClientConfig;
use crate::error::ClientError;
use crate::merge::merge;
use crate::overlap::Answer;
use crate::prompt::{HashedPrompt, Prompt};
use crate::replicas::{HedgeConfig, REPLICAS_MAX, ShardCounts};
use futures::future::join_all;
use kvasir_proto::convert::{self, Owner, ReuseReport};
use kvasir_proto::hash::bucket;
use kvasir_proto::pb::Tier;
use kvasir_proto::shard::{ShardCount, ShardMap};
use kvasir_proto::types::{WorkerId, WorkerKey};
use shard::{Clock, Outcome, Shard, ShardReport};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Fraction of the deadline for the shards' answers; the rest is for merging.
const SHARD_SHARE: f64 = 0.9;

/// Configuration of a [`ShardedClient`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ShardedConfig {
    /// Limits over all servers together; `connect_timeout` and `calls` apply to each server.
    pub client: ClientConfig,
    /// Hedging between replicas, backoff and probes.
    pub hedge: HedgeConfig,
}

/// Client of an index with shards and replicas; cheap to clone. If a shard is down, the answer lacks its workers.
#[derive(Debug, Clone)]
pub struct ShardedClient {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shards: Vec<Shard>,
    /// Which shard owns which workers, corrected when a server refuses a placement.
    map: Mutex<ShardMap>,
    in_flight: Semaphore,
    clock: Clock,
    deadline: Duration,
}

/// No code panics while it has the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ShardedClient {
    /// A client of the servers at `shards`: for each shard, in order from shard 0, the endpoints of its replicas
    /// (`host:port`, `http://host:port` or `https://host:port`). It connects on first use and reconnects after a lost
    /// connection.
    ///
    /// # Errors
    /// If there are no shards or more than 256, a shard has no replicas or more than
    /// [`REPLICAS_MAX`](crate::REPLICAS_MAX), or an endpoint is not such an address.
    pub fn connect<Replicas, Endpoint>(
        shards: impl IntoIterator<Item = Replicas>,
        config: &ShardedConfig,
    ) -> Result<Self, ClientError>
    where
        Replicas: IntoIterator<Item = Endpoint>,
        Endpoint: AsRef<str>,
    {
        let shards: Vec<Vec<Endpoint>> =
            shards.into_iter().map(|replicas| replicas.into_iter().collect()).collect();
        let unusable = |problem: String| ClientError::Topology { problem };
        let count = ShardCount::new(u32::try_from(shards.len()).unwrap_or(u32::MAX))
            .map_err(|error| unusable(error.to_string()))?;
        // A replica has at most one request per query or placement, and one probe.
        let in_flight = config.client.in_flight_max.clamp(1, Semaphore::MAX_PERMITS);
        let client =
            ClientConfig { in_flight_max: in_flight.saturating_add(1), ..config.client.clone() };
        let seed = RandomState::new().build_hasher().finish();
        let mut built = Vec::with_capacity(shards.len());
        for (number, replicas) in (0..).zip(shards) {
            if !(1..=REPLICAS_MAX).contains(&replicas.len()) {
                let found = replicas.len();
                let problem =
                    format!("shard {number} has {found} replicas, not 1 to {REPLICAS_MAX}");
                return Err(unusable(problem));
            }
            built.push(Shard::new(number, &replicas, &client, &config.hedge, seed)?);
        }
        Ok(Self {
            inner: Arc::new(Inner {
                shards: built,
                map: Mutex::new(ShardMap::even(count)),
                in_flight: Semaphore::new(in_flight),
                clock: Clock::now(),
                deadline: config.client.deadline,
            }),
        })
    }

    /// Finds the workers that cache leading blocks of `prompt`, over all shards. [`Answer::missing_shards`] lists
    /// shards of which no replica answers in time. A prompt shorter than a block gets an empty answer without a
    /// request, even with `minimum_overlap_blocks` 0.
    ///
    /// # Errors
    /// If the prompt is too long, a server refuses it, or no shard answers at all.
    pub async fn find(&self, prompt: &Prompt<'_>) -> Result<Answer, ClientError> {
        self.find_hashed(&prompt.hashed()).await
    }

    /// Deadline of a query.
    pub(crate) fn deadline(&self) -> Duration {
        self.inner.deadline
    }

    /// [`ShardedClient::find`] for an already hashed prompt.
    ///
    /// # Errors
    /// As for [`ShardedClient::find`].
    pub async fn find_hashed(&self, prompt: &HashedPrompt) -> Result<Answer, ClientError> {
        self.find_in(prompt, &[]).await
    }

    /// Queries all shards, as [`ShardedClient::find_hashed`], for blocks in `tiers`; an empty list means all tiers.
    /// Returns an empty answer without a query if the prompt has no complete block.
    pub(crate) async fn find_in(
        &self,
        prompt: &HashedPrompt,
        tiers: &[Tier],
    ) -> Result<Answer, ClientError> {
        if prompt.is_short() {
            return Ok(Answer::default());
        }
        let inner = &*self.inner;
        let until = inner.clock.elapsed() + inner.deadline.mul_f64(SHARD_SHARE);
        let request = prompt.request_in(tiers);
        check_length(&request.local_hashes)?;
        let _turn = inner.acquire_permit().await?;
        let asked =
            inner.shards.iter().map(|shard| shard.query_replicas(&request, &inner.clock, until));
        let mut parts = Vec::with_capacity(inner.shards.len());
        let mut missing = Vec::new();
        let mut absent = None;
        let mut lost = None;
        for (number, outcome) in (0..).zip(join_all(asked).await) {
            match outcome {
                Outcome::Answer(answer) => parts.push(answer),
                Outcome::Absent(error) => absent = Some(error),
                Outcome::Refused(error) => return Err(error),
                Outcome::Missing(error) => {
                    missing.push(number);
                    lost = Some(error);
                }
            }
        }
        match (parts.is_empty(), absent, lost) {
            // No shard has the model, or no shard answers.
            (true, Some(error), None) | (true, None, Some(error)) => Err(error),
            _ => {
                let query_blocks = u32::try_from(request.local_hashes.len()).unwrap_or(u32::MAX);
                parts.push(Answer { query_blocks, missing_shards: missing, ..Answer::default() });
                Ok(merge(parts, prompt.top_k))
            }
        }
    }

    /// Reports to all healthy replicas of the worker's shard that `prompt` was just sent to `worker`: see
    /// [`IndexerClient::record_placement`](crate::IndexerClient::record_placement).
    ///
    /// # Errors
    /// If the prompt is too long, or no replica accepts the placement. Do not fail the placed request because of such
    /// an error.
    pub async fn record_placement(
        &self,
        prompt: &Prompt<'_>,
        worker: &WorkerKey,
        ttl: Option<Duration>,
    ) -> Result<(), ClientError> {
        self.record_placement_hashed(&prompt.hashed(), worker, ttl).await
    }

    /// Records a placement, as [`ShardedClient::record_placement`], for an already hashed prompt. Has no effect if the
    /// prompt has no complete block.
    ///
    /// # Errors
    /// As for [`ShardedClient::record_placement`].
    pub async fn record_placement_hashed(
        &self,
        prompt: &HashedPrompt,
        worker: &WorkerKey,
        ttl: Option<Duration>,
    ) -> Result<(), ClientError> {
        if prompt.is_short() {
            return Ok(());
        }
        let request = prompt.placement(worker, ttl);
        check_length(&request.local_hashes)?;
        self.inner.send_report(&worker.worker, &ShardReport::Placement(&request)).await
    }

    /// Reports to all healthy replicas of the worker's shard what an engine reused: see
    /// [`IndexerClient::report_reuse`](crate::IndexerClient::report_reuse).
    ///
    /// # Errors
    /// If no replica accepts the report.
    pub async fn report_reuse(&self, report: &ReuseReport) -> Result<(), ClientError> {
        self.inner.send_report(&report.address.worker, &ShardReport::Reuse(report)).await
    }

    /// Counters by shard since the client was created.
    #[must_use]
    pub fn counts(&self) -> Vec<ShardCounts> {
        self.inner.shards.iter().map(Shard::counts).collect()
    }
}

fn owner_in(error: &ClientError) -> Option<Owner> {
    let ClientError::Status(status) = error else { return None };
    convert::owner(status.metadata())
}

impl Inner {
    async fn acquire_permit(&self) -> Result<tokio::sync::SemaphorePermit<'_>, ClientError> {
        let deadline = self.deadline;
        let late = ClientError::DeadlineExceeded { deadline };
        // The semaphore is never closed, so acquiring a permit cannot fail.
        timeout(deadline, self.in_flight.acquire()).await.ok().and_then(Result::ok).ok_or(late)
    }

    /// Records the new owner of a bucket. Returns false if there is no such shard.
    fn reassign(&self, found: Owner) -> bool {
        let mut map = lock(&self.map);
        let reassigned = map.clone().moved(found.bucket, found.shard.into());
        let Ok(reassigned) = reassigned else { return false };
        *map = reassigned;
        true
    }

    /// Sends a report to the shard of its worker.
    async fn send_report(
        &self,
        worker: &WorkerId,
        report: &ShardReport<'_>,
    ) -> Result<(), ClientError> {
        let _turn = self.acquire_permit().await?;
        let owner = lock(&self.map).owner(bucket(worker));
        let outcome = self.send_to_shard(owner, report).await;
        // If the bucket has moved, the refusal names its new shard.
        match outcome.as_ref().err().and_then(owner_in) {
            Some(found) if self.reassign(found) => self.send_to_shard(found.shard, report).await,
            _ => outcome,
        }
    }

    async fn send_to_shard(&self, shard: u8, report: &ShardReport<'_>) -> Result<(), ClientError> {
        match self.shards.get(usize::from(shard)) {
            Some(shard) => shard.send_report(report).await,
            None => {
                let problem = format!("shard {shard} does not exist");
                Err(ClientError::Topology { problem })
            }
        }
    }
}
