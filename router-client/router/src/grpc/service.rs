use super::read::{Select, busy, fetched};
use super::write::{self, count};
use crate::fleet::{Fleet, Partition};
use crate::metrics::RequestMetrics;
use crate::recorder::OpenRequests;
use crate::reports::KvMetricsAggregator;
use kvasir_access::{Principal, Role};
use kvasir_process::access::{audit, check_partition, denied};
use kvasir_process::port::{principal, quota, take_query};
use kvasir_process::quota::Quota;
use kvasir_process::shares::{LargestShare, SharedLimit};
use kvasir_proto::code::ErrorCode;
use kvasir_proto::convert::ConvertError;
use kvasir_proto::limits::{
    LOADS_INTERVAL_MS_DEFAULT, LOADS_INTERVAL_MS_MAX, LOADS_INTERVAL_MS_MIN, NAME_BYTES_MAX,
};
use kvasir_proto::pb;
use kvasir_proto::pb::router_server::Router as RouterContract;
use kvasir_proto::types::PartitionKey;
use router_client::HashedPrompt;
use router_client::route::{ConfigError, SelectError, Update};
use router_client::router::{Choice, Detached, Ended, Pools, RouteError, Router};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::select;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// Retry delay that a refused client receives.
const RETRY_AFTER: Duration = Duration::from_millis(200);
/// Maximum concurrent load streams, at most half of them from one identity.
const WATCHERS_MAX: usize = 512;
/// Maximum bytes of hashed prompts of requests that wait for a worker, at most half of them from one tenant.
const WAITING_BYTES_MAX: usize = 256 << 20;
/// A load stream whose client reads nothing for this long is closed.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The service `kvasir.v1.Router`. Cheap to clone.
#[derive(Debug, Clone)]
pub struct RouterService {
    fleet: Arc<Fleet>,
    reports: Arc<KvMetricsAggregator>,
    metrics: RequestMetrics,
    recorded: Arc<OpenRequests>,
    queue_timeout: Duration,
    waiting_bytes: Arc<SharedLimit>,
    watchers: Arc<SharedLimit>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// Which loads a client requests.
#[derive(Debug, Clone)]
struct LoadFilter {
    model: Option<String>,
    tenant: Option<String>,
}

impl RouterService {
    /// Creates the service. When `stop` is cancelled, its streams and queue waits end.
    #[must_use]
    pub fn new(
        fleet: Arc<Fleet>,
        reports: Arc<KvMetricsAggregator>,
        metrics: RequestMetrics,
        recorded: OpenRequests,
        queue_timeout: Duration,
        stop: CancellationToken,
    ) -> Self {
        let recorded = Arc::new(recorded);
        let tasks = TaskTracker::new();
        let limit = |max| Arc::new(SharedLimit::new(max, LargestShare::HALF));
        let waiting_bytes = limit(WAITING_BYTES_MAX);
        let watchers = limit(WATCHERS_MAX);
        Self {
            fleet,
            reports,
            metrics,
            recorded,
            queue_timeout,
            waiting_bytes,
            watchers,
            tasks,
            stop,
        }
    }

    /// Tracker of the stream tasks.
    pub(super) fn tasks(&self) -> TaskTracker {
        self.tasks.clone()
    }

    /// Returns the partition, if the caller may use it. Fails with the caller's models if it is unknown.
    fn partition(&self, principal: &Principal, key: &PartitionKey) -> Result<Partition, Status> {
        check_partition(principal, key)?;
        self.fleet.partition(key).ok_or_else(|| {
            let mut models = self.fleet.models_of(key.tenant());
            models.retain(|model| principal.sees(key.tenant(), model));
            let text = format!("no worker of {key} is known; models of that tenant are {models:?}");
            failed(ErrorCode::NotFound, text)
        })
    }

    /// Chooses a worker. The first error applies: permission, rate limit, prompt, memory of the queue, request id.
    async fn select(
        &self,
        (principal, quota): (&Principal, Option<&Quota>),
        request: pb::SelectWorkerRequest,
    ) -> Result<pb::SelectWorkerResponse, Status> {
        let mut select = Select::from_request(request, self.queue_timeout).map_err(refused)?;
        check_partition(principal, &select.partition)?;
        take_query(quota, select.partition.tenant())?;
        let partition = self.partition(principal, &select.partition)?;
        let begin = Instant::now();
        let prompt = select.take_prompt(partition.block_size.get());
        let prompt = prompt.map_err(|why| failed(ErrorCode::FailedPrecondition, why))?;
        let hashing = begin.elapsed();
        let bytes = size_of_val(prompt.local_hashes.as_slice());
        let waiting = self.waiting_bytes.take(select.partition.tenant(), bytes);
        let _waiting = waiting.map_err(|_few| self.rejected(RouteError::QueueFull))?;
        // A request id is unique in its partition, over both pools.
        let taken = |id: &String| partition.pools.has_request(id);
        if !select.is_dry_run && select.hints.request_id.as_ref().is_some_and(taken) {
            return Err(self.rejected(RouteError::DuplicateId));
        }
        if select.is_disaggregated {
            let answer = self.disaggregate(&partition, &prompt, &select, begin, hashing);
            return Box::pin(answer).await;
        }
        let router = partition.router_for(&select.hints.filter);
        let (request_id, choice) = self.choose(router, &prompt, &select).await?;
        if !select.is_dry_run {
            self.metrics.chosen(&choice, &prompt, hashing);
            let key = (select.partition.clone(), request_id.clone());
            self.recorded.begin(key, begin, (&prompt, &choice));
        }
        Ok(write::selected(request_id, choice, prompt.local_hashes.len(), hashing))
    }

    /// Chooses a worker and counts the request. For a dry run, only explains the choice, and returns an empty request
    /// id.
    async fn choose(
        &self,
        router: &Router,
        prompt: &HashedPrompt,
        select: &Select,
    ) -> Result<(String, Choice), Status> {
        let rejected = |error| self.rejected(error);
        if select.is_dry_run {
            let choice = router.explain(prompt, &select.hints).await.map_err(rejected)?;
            return Ok((String::new(), choice));
        }
        let chosen = self.until_stopped(router.select_hashed(prompt, &select.hints)).await?;
        Ok(chosen.detach())
    }

    /// Chooses a decode worker and, if a transfer pays, a prefill worker.
    async fn disaggregate(
        &self,
        partition: &Partition,
        prompt: &HashedPrompt,
        select: &Select,
        begin: Instant,
        hashing: Duration,
    ) -> Result<pb::SelectWorkerResponse, Status> {
        let placing = Box::pin(partition.pools.select(prompt, &select.hints));
        let placed = self.until_stopped(placing).await?;
        let Detached { request_id, decode, prefill, prefill_outcome } = placed.detach();
        let key = (select.partition.clone(), request_id.clone());
        self.recorded.begin(key, begin, (prompt, &decode));
        // Metrics count the overlap where the prompt is computed.
        self.metrics.chosen(prefill.as_ref().unwrap_or(&decode), prompt, hashing);
        self.metrics.prefill(prefill_outcome);
        let mut answer = write::selected(request_id, decode, prompt.local_hashes.len(), hashing);
        answer.prefill = prefill.as_ref().map(write::prefill_choice);
        answer.prefill_outcome = write::prefill_outcome(prefill_outcome).into();
        Ok(answer)
    }

    /// Runs a choice until the router stops. A client that disconnects drops this future, which frees the request or
    /// its queue slot.
    async fn until_stopped<T>(
        &self,
        chosen: impl Future<Output = Result<T, RouteError>>,
    ) -> Result<T, Status> {
        select! {
            chosen = chosen => chosen.map_err(|error| self.rejected(error)),
            () = self.stop.cancelled() => Err(Status::unavailable("the router is stopping")),
        }
    }

    /// Counts the error of a choice, and converts it.
    fn rejected(&self, error: RouteError) -> Status {
        let code = match &error {
            RouteError::Config(_) => ErrorCode::InvalidArgument,
            RouteError::DuplicateId => ErrorCode::FailedPrecondition,
            RouteError::QueueFull | RouteError::QueueTimeout(_) => ErrorCode::ResourceExhausted,
            RouteError::Select(error) => match error {
                SelectError::AllBusy { .. } => ErrorCode::ResourceExhausted,
                SelectError::NoWorkers | SelectError::UnknownTarget => ErrorCode::NotFound,
                SelectError::NoneAllowed { .. } => ErrorCode::FailedPrecondition,
                SelectError::NoTarget => ErrorCode::InvalidArgument,
            },
        };
        self.metrics.rejected(&error);
        if code == ErrorCode::ResourceExhausted { retry_later(error) } else { failed(code, error) }
    }

    /// Applies a report to a request, in either pool.
    fn report(
        &self,
        principal: &Principal,
        model: &str,
        tenant: &str,
        id: &str,
        report: impl FnOnce(&Pools) -> Result<Update, ConfigError>,
    ) -> Result<(), Status> {
        let partition = self.partition(principal, &key(model, tenant)?)?;
        match report(&partition.pools) {
            Ok(Update::Unknown) => Err(unknown(id)),
            Ok(Update::Changed(_) | Update::Unchanged) => Ok(()),
            Err(error) => Err(failed(ErrorCode::InvalidArgument, error)),
        }
    }

    /// Returns the loads of all ranks that the caller may see and the filter selects.
    fn loads(&self, principal: &Principal, filter: &LoadFilter) -> pb::GetLoadsResponse {
        let mut answer = pb::GetLoadsResponse::default();
        for (key, partition) in self.fleet.partitions() {
            let is_other =
                |wanted: &Option<String>, name| wanted.as_ref().is_some_and(|at| at != name);
            if is_other(&filter.model, key.model()) || is_other(&filter.tenant, key.tenant()) {
                continue;
            }
            if !principal.sees(key.tenant(), key.model()) {
                continue;
            }
            for router in partition.routers() {
                let (requests, tokens) = router.waiting();
                answer.queued_requests = answer.queued_requests.saturating_add(count(requests));
                answer.queued_tokens = answer.queued_tokens.saturating_add(tokens);
            }
            let reported = self.reports.get_metrics(&key).ranks;
            answer.ranks.extend(
                partition
                    .loads()
                    .into_iter()
                    .map(|(rank, load)| write::rank_load(&key, &rank, &load, reported.get(&rank))),
            );
        }
        answer
    }
}

#[tonic::async_trait]
impl RouterContract for RouterService {
    type WatchLoadsStream = ReceiverStream<Result<pb::GetLoadsResponse, Status>>;

    async fn select_worker(
        &self,
        request: Request<pb::SelectWorkerRequest>,
    ) -> Result<Response<pb::SelectWorkerResponse>, Status> {
        let principal = principal(&request)?;
        let quota = quota(&request);
        // Boxed: the future is large, and most of it is unused while the request waits in the queue.
        let select = Box::pin(self.select((&principal, quota.as_ref()), request.into_inner()));
        select.await.map(Response::new)
    }

    async fn mark_prefill_completed(
        &self,
        request: Request<pb::MarkPrefillCompletedRequest>,
    ) -> Result<Response<pb::MarkPrefillCompletedResponse>, Status> {
        let principal = principal(&request)?;
        let pb::MarkPrefillCompletedRequest { model, tenant, request_id } = request.into_inner();
        let report = |at: &Pools| at.mark_prefill_completed(&request_id);
        self.report(&principal, &model, &tenant, &request_id, report)?;
        self.recorded.first_token(&(key(&model, &tenant)?, request_id));
        Ok(Response::new(pb::MarkPrefillCompletedResponse {}))
    }

    async fn report_output(
        &self,
        request: Request<pb::ReportOutputRequest>,
    ) -> Result<Response<pb::ReportOutputResponse>, Status> {
        let principal = principal(&request)?;
        let pb::ReportOutputRequest { model, tenant, request_id, output_tokens } =
            request.into_inner();
        let report = |at: &Pools| at.report_output(&request_id, output_tokens);
        self.report(&principal, &model, &tenant, &request_id, report)?;
        self.recorded.report(&(key(&model, &tenant)?, request_id), output_tokens);
        Ok(Response::new(pb::ReportOutputResponse {}))
    }

    async fn free(
        &self,
        request: Request<pb::FreeRequest>,
    ) -> Result<Response<pb::FreeResponse>, Status> {
        let principal = principal(&request)?;
        let pb::FreeRequest {
            model,
            tenant,
            request_id,
            failed: has_failed,
            cached_tokens,
            prefill_failed,
            fetched_bytes,
            fetch_us,
        } = request.into_inner();
        let fetched = fetched(fetched_bytes, fetch_us).map_err(refused)?;
        let key = key(&model, &tenant)?;
        let partition = self.partition(&principal, &key)?;
        self.recorded.end(&(key, request_id.clone()), cached_tokens);
        // The router reports cached tokens to the index under its own identity.
        let may_report = principal.has(Role::Publish);
        let ended = Ended { has_failed, cached_tokens: cached_tokens.filter(|_| may_report) };
        let freed = partition.pools.free(&request_id, ended, prefill_failed);
        let freed = freed.map_err(|error| failed(ErrorCode::InvalidArgument, error))?;
        let freed = freed.ok_or_else(|| unknown(&request_id))?;
        if let Some((bytes, took)) = fetched {
            partition.router_of(&freed.worker.worker).report_fetch(bytes, took);
            self.metrics.fetched(bytes, took);
        }
        let expected = freed.expected_cached_tokens;
        let found = cached_tokens.map(|found| (expected, found));
        self.metrics.freed(has_failed == Some(true), found);
        let expected_cached_tokens = Some(expected);
        Ok(Response::new(pb::FreeResponse { expected_cached_tokens }))
    }

    async fn get_loads(
        &self,
        request: Request<pb::GetLoadsRequest>,
    ) -> Result<Response<pb::GetLoadsResponse>, Status> {
        let principal = principal(&request)?;
        let pb::GetLoadsRequest { model, tenant } = request.into_inner();
        Ok(Response::new(self.loads(&principal, &LoadFilter { model, tenant })))
    }

    async fn watch_loads(
        &self,
        request: Request<pb::WatchRouterLoadsRequest>,
    ) -> Result<Response<Self::WatchLoadsStream>, Status> {
        let principal = principal(&request)?;
        let pb::WatchRouterLoadsRequest { model, tenant, min_interval_ms } = request.into_inner();
        let interval_ms = min_interval_ms.unwrap_or(LOADS_INTERVAL_MS_DEFAULT);
        if !(LOADS_INTERVAL_MS_MIN..=LOADS_INTERVAL_MS_MAX).contains(&interval_ms) {
            let text = format!("min_interval_ms is {interval_ms}, must be 10 to 60000");
            return Err(failed(ErrorCode::InvalidArgument, text));
        }
        let counted = self.watchers.take(principal.name(), 1);
        let counted = counted.map_err(|_few| retry_later("too many readers of loads"))?;
        let (parts, stream) = mpsc::channel(1);
        let service = self.clone();
        let filter = LoadFilter { model, tenant };
        let interval = Duration::from_millis(interval_ms.into());
        self.tasks.spawn(async move {
            let _counted = counted;
            select! {
                () = service.stop.cancelled() => {}
                () = watch(&service, &principal, &filter, interval, &parts) => {}
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn get_busy_thresholds(
        &self,
        _request: Request<pb::GetBusyThresholdsRequest>,
    ) -> Result<Response<pb::GetBusyThresholdsResponse>, Status> {
        let thresholds = Some(write::busy(self.fleet.busy_thresholds()));
        Ok(Response::new(pb::GetBusyThresholdsResponse { thresholds }))
    }

    async fn set_busy_thresholds(
        &self,
        request: Request<pb::SetBusyThresholdsRequest>,
    ) -> Result<Response<pb::SetBusyThresholdsResponse>, Status> {
        let principal = principal(&request)?;
        principal.check_admin_of_all().map_err(denied)?;
        audit(&principal, "SetBusyThresholds", &"all models");
        let thresholds = busy(request.into_inner().thresholds).map_err(refused)?;
        let set = self.fleet.set_busy_thresholds(thresholds);
        set.map_err(|error| failed(ErrorCode::InvalidArgument, error))?;
        let thresholds = Some(write::busy(thresholds));
        Ok(Response::new(pb::SetBusyThresholdsResponse { thresholds }))
    }
}

/// Sends the loads after each change, at most once per `interval`, until the client disconnects or stalls.
async fn watch(
    service: &RouterService,
    principal: &Principal,
    filter: &LoadFilter,
    interval: Duration,
    parts: &mpsc::Sender<Result<pb::GetLoadsResponse, Status>>,
) {
    let mut last = None;
    loop {
        // Reserve a slot first, so that the loads sent are current.
        let Ok(Ok(place)) = timeout(STALL_TIMEOUT, parts.reserve()).await else { return };
        let loads = service.loads(principal, filter);
        // The age of a report always changes, so it is not compared.
        let mut compared = loads.clone();
        for rank in &mut compared.ranks {
            if let Some(reported) = &mut rank.reported {
                reported.age_ms = 0;
            }
        }
        if last.as_ref() != Some(&compared) {
            last = Some(compared);
            place.send(Ok(loads));
        }
        select! {
            () = parts.closed() => return,
            () = sleep(interval) => {}
        }
    }
}

fn key(model: &str, tenant: &str) -> Result<PartitionKey, Status> {
    PartitionKey::new(model, tenant).map_err(|error| failed(ErrorCode::InvalidArgument, error))
}

fn unknown(id: &str) -> Status {
    let id: String = id.chars().take(NAME_BYTES_MAX).collect();
    let text = format!(
        "request {id:?} is not active here: it was freed, its lease ended, or its worker is gone"
    );
    failed(ErrorCode::NotFound, text)
}

fn refused(error: ConvertError) -> Status {
    failed(error.code(), error)
}

fn retry_later(why: impl fmt::Display) -> Status {
    let details = ErrorDetails::with_retry_info(Some(RETRY_AFTER));
    Status::with_error_details(ErrorCode::ResourceExhausted.into(), why.to_string(), details)
}

fn failed(code: ErrorCode, error: impl fmt::Display) -> Status {
    Status::new(code.into(), error.to_string())
}
