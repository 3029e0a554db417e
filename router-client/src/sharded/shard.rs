use super::lock;
use crate::client::IndexerClient;
use crate::config::ClientConfig;
use crate::error::ClientError;
use crate::overlap::Answer;
use crate::replicas::{
    self, Freshness, HedgeConfig, Question, REPLICAS_MAX, Replicas, ShardCounts, Step,
};
use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt};
use kvasir_proto::convert::ReuseReport;
use kvasir_proto::pb::{FindMatchesRequest, RecordPlacementRequest};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::select;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tonic::Code;

/// Origin of a client's times.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock(Instant);

impl Clock {
    pub(super) fn now() -> Self {
        Self(Instant::now())
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    fn at(&self, time: Duration) -> Instant {
        self.0 + time
    }
}

/// A report about one of a shard's workers.
#[derive(Debug)]
pub(super) enum ShardReport<'a> {
    /// A prompt was sent to the worker.
    Placement(&'a RecordPlacementRequest),
    /// An engine's actual reuse of prompts.
    Reuse(&'a ReuseReport),
}

/// A shard's answer to a query.
#[derive(Debug)]
pub(super) enum Outcome {
    Answer(Answer),
    /// No replica of the shard has the model.
    Absent(ClientError),
    /// The query is invalid.
    Refused(ClientError),
    /// No replica answered, or only replicas without the model.
    Missing(ClientError),
}

/// A replica's answer to a query.
enum Verdict {
    Answer(Answer),
    Absent(ClientError),
    Refused(ClientError),
    /// The replica rejects queries for now, for example because the tenant exceeded its rate. Other replicas may accept
    /// them.
    Limited(ClientError),
    Failed(ClientError),
}

/// One shard: its replicas and their state.
#[derive(Debug)]
pub(super) struct Shard {
    number: u32,
    replicas: Vec<IndexerClient>,
    /// Deadline of a query to all shards.
    deadline: Duration,
    state: Arc<Mutex<Replicas>>,
    /// Probe tasks, which end with the client; at most one for each replica.
    probes: Mutex<JoinSet<()>>,
    /// Notified after each probe.
    probed: watch::Sender<()>,
}

impl Shard {
    /// Creates the clients of a shard's replicas. Connections are opened later.
    pub(super) fn new(
        number: u32,
        endpoints: &[impl AsRef<str>],
        client: &ClientConfig,
        hedge: &HedgeConfig,
        seed: u64,
    ) -> Result<Self, ClientError> {
        let replicas =
            endpoints.iter().map(|at| IndexerClient::connect(at.as_ref(), client.clone()));
        let replicas = replicas.collect::<Result<Vec<_>, _>>()?;
        let seed = seed.wrapping_add(number.into());
        let state = Replicas::new(replicas.len(), hedge.clone(), seed);
        let state = Arc::new(Mutex::new(state));
        let probes = Mutex::default();
        let deadline = client.deadline;
        let probed = watch::Sender::default();
        Ok(Self { number, replicas, deadline, state, probes, probed })
    }

    pub(super) fn counts(&self) -> ShardCounts {
        lock(&self.state).counts()
    }

    /// Queries one replica of the shard, and further ones if needed, until `until`. Logs a warning if no replica
    /// answers.
    pub(super) async fn query_replicas(
        &self,
        request: &FindMatchesRequest,
        clock: &Clock,
        until: Duration,
    ) -> Outcome {
        self.probe(request, clock);
        self.wait_in_doubt(clock).await;
        let mut question = lock(&self.state).question(until);
        let outcome = self.drive(&mut question, request, clock).await;
        let now = clock.elapsed();
        let mut state = lock(&self.state);
        state.close(&question, now);
        if let Outcome::Missing(error) = &outcome
            && let Some(num_suppressed) = state.missed(now)
        {
            drop(state);
            tracing::warn!(shard = self.number, %error, num_suppressed, "shard does not answer");
        }
        outcome
    }

    /// Waits briefly for running probes if the freshness of all replicas is unknown.
    async fn wait_in_doubt(&self, clock: &Clock) {
        let in_doubt = || lock(&self.state).in_doubt(clock.elapsed());
        if !in_doubt() {
            return;
        }
        let most = lock(&self.state).doubt_max();
        let mut probed = self.probed.subscribe();
        let settled = async {
            // Fails only without a sender, and `self` has one.
            while in_doubt() && probed.changed().await.is_ok() {}
        };
        // A replica that is slow to answer its probe is queried anyway.
        let _late = timeout(most, settled).await;
    }

    /// Queries replicas until one answers, the request is refused, or none is left. Returns `Absent` only if all
    /// replicas report that they do not have the model.
    async fn drive(
        &self,
        question: &mut Question,
        request: &FindMatchesRequest,
        clock: &Clock,
    ) -> Outcome {
        let mut asked = FuturesUnordered::new();
        let mut absent = Vec::new();
        let mut failed = None;
        loop {
            let step = lock(&self.state).step(question, clock.elapsed());
            let wait_until = match step {
                Step::Ask(number) => {
                    asked.push(self.ask_replica(number, request));
                    continue;
                }
                Step::Wait(until) => clock.at(until),
                Step::End if absent.len() == self.replicas.len() => {
                    return Outcome::Absent(absent.pop().unwrap_or_else(|| self.late()));
                }
                Step::End => {
                    let error = failed.or_else(|| absent.pop());
                    return Outcome::Missing(error.unwrap_or_else(|| self.late()));
                }
            };
            let ended = select! {
                ended = asked.next() => ended,
                () = sleep_until(wait_until) => continue,
            };
            let Some((number, verdict)) = ended else { continue };
            let outcome = match &verdict {
                Verdict::Answer(_)
                | Verdict::Absent(_)
                | Verdict::Refused(_)
                | Verdict::Limited(_) => replicas::Outcome::Answered,
                Verdict::Failed(_) => replicas::Outcome::Failed,
            };
            lock(&self.state).ended(question, number, outcome, clock.elapsed());
            match verdict {
                Verdict::Answer(answer) => return Outcome::Answer(answer),
                Verdict::Refused(error) => return Outcome::Refused(error),
                Verdict::Absent(error) => absent.push(error),
                Verdict::Limited(error) | Verdict::Failed(error) => failed = Some(error),
            }
        }
    }

    async fn ask_replica(&self, number: usize, request: &FindMatchesRequest) -> (usize, Verdict) {
        let Some(replica) = self.replicas.get(number) else {
            return (number, Verdict::Failed(self.late()));
        };
        (number, verdict(replica.query(request).await))
    }

    fn late(&self) -> ClientError {
        ClientError::DeadlineExceeded { deadline: self.deadline }
    }

    /// Probes the replicas' freshness in the query's partition, if a round is due.
    fn probe(&self, request: &FindMatchesRequest, clock: &Clock) {
        let Some(round) = lock(&self.state).probes(clock.elapsed()) else { return };
        // The answer lists every rank, whatever the block, so one block is enough.
        let probe = FindMatchesRequest {
            model: request.model.clone(),
            tenant: request.tenant.clone(),
            local_hashes: vec![0],
            minimum_overlap_blocks: Some(0),
            ..FindMatchesRequest::default()
        };
        let mut probes = lock(&self.probes);
        while probes.try_join_next().is_some() {}
        for (number, replica) in self.replicas.iter().enumerate() {
            if round.get(number) != Some(&true) {
                continue;
            }
            let replica = replica.clone();
            let probe = probe.clone();
            let state = Arc::clone(&self.state);
            let probed = self.probed.clone();
            let clock = *clock;
            probes.spawn(async move {
                let verdict = verdict(replica.query(&probe).await);
                let mut replicas = lock(&state);
                let now = clock.elapsed();
                match verdict {
                    Verdict::Answer(answer) => {
                        replicas.probed(
                            number,
                            Some(Freshness::from_overlaps(&answer.overlaps)),
                            now,
                        );
                    }
                    Verdict::Absent(_) | Verdict::Refused(_) => {
                        replicas.probed(number, Some(Freshness::NOTHING), now);
                    }
                    Verdict::Limited(_) => replicas.unprobed(number),
                    Verdict::Failed(_) => replicas.probed(number, None, now),
                }
                drop(replicas);
                probed.send_replace(());
            });
        }
    }

    /// Sends a report to all healthy replicas, or to all if none is healthy.
    pub(super) async fn send_report(&self, report: &ShardReport<'_>) -> Result<(), ClientError> {
        let failing: [bool; REPLICAS_MAX] = {
            let state = lock(&self.state);
            std::array::from_fn(|number| state.is_failing(number))
        };
        let is_healthy = |number: usize| failing.get(number) == Some(&false);
        let none = !(0..self.replicas.len()).any(is_healthy);
        let targets =
            self.replicas.iter().enumerate().filter(|(number, _)| none || is_healthy(*number));
        let calls = targets.map(|(_, replica)| async move {
            match report {
                ShardReport::Placement(request) => replica.record((*request).clone()).await,
                ShardReport::Reuse(reuse) => replica.report_reuse(reuse).await,
            }
        });
        let mut outcomes = join_all(calls).await;
        if outcomes.iter().any(Result::is_ok) {
            return Ok(());
        }
        outcomes.pop().unwrap_or(Ok(()))
    }
}

/// Classifies the outcome of a query: answer, model absent, query refused, limited, or the replica failed.
fn verdict(outcome: Result<Answer, ClientError>) -> Verdict {
    match outcome {
        Ok(answer) => Verdict::Answer(answer),
        Err(ClientError::Status(status)) if status.code() == Code::NotFound => {
            Verdict::Absent(ClientError::Status(status))
        }
        Err(ClientError::Status(status))
            if matches!(
                status.code(),
                Code::InvalidArgument
                    | Code::FailedPrecondition
                    | Code::OutOfRange
                    | Code::PermissionDenied
                    | Code::Unauthenticated
            ) =>
        {
            Verdict::Refused(ClientError::Status(status))
        }
        Err(ClientError::Status(status)) if status.code() == Code::ResourceExhausted => {
            Verdict::Limited(ClientError::Status(status))
        }
        Err(error) => Verdict::Failed(error),
    }
}
