//! Serves one request from its tokens to the end of its answer: chooses a worker, calls the engine, and retries on
//! another worker if that fails before the first byte.

mod fetch;
mod job;
mod next_turn;
mod prefill;
mod serving;
mod stream;

use crate::answer::Tally;
use crate::config::Config;
use crate::engines::Directory;
use crate::error::{ApiError, engine_status};
use crate::metrics::{End, GatewayMetrics};
use crate::mismatch::{Mismatches, Verdict};
use crate::request::ApiRequest;
use crate::tokens::Tokens;
use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use job::Job;
use kvasir_access::Principal;
use kvasir_engine_http::{Answer, EngineClient, Sent};
use kvasir_process::quota::Quota;
use kvasir_proto::types::WorkerId;
use kvasir_router::fleet::Fleet;
use kvasir_router::metrics::RequestMetrics;
use kvasir_router::recorder::Recorder;
use kvasir_trace::{fail, step};
use next_turn::NextTurn;
use parking_lot::Mutex;
use router_client::router::{Hints, IndexUse, Placement, RouteError};
use serde_json::{Map, Value, json};
use serving::{Ending, Serving};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::select;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

/// Maximum conversations that are prefilled ahead concurrently.
const SPECULATIONS_MAX: usize = 64;
/// Header that names the worker of an answer.
const WORKER_HEADER: HeaderName = HeaderName::from_static("x-kvasir-worker");

/// Components that requests need.
#[derive(Debug)]
pub struct Parts {
    /// Routers of all models.
    pub fleet: Arc<Fleet>,
    /// Directory of engines.
    pub directory: Directory,
    /// HTTP client of engines.
    pub client: EngineClient,
    /// Source of tokens.
    pub tokens: Arc<Tokens>,
    /// Metrics of the gateway.
    pub metrics: GatewayMetrics,
    /// Metrics of routing.
    pub route_metrics: RequestMetrics,
    /// Records requests.
    pub recorder: Recorder,
}

/// Serves requests.
#[derive(Debug)]
pub struct Gateway {
    parts: Parts,
    config: Config,
    mismatches: Arc<Mutex<Mismatches>>,
    began: Instant,
    /// Tasks that prefill conversations ahead.
    speculations: TaskTracker,
    stop: CancellationToken,
}

/// Why an attempt at one worker failed.
enum Failure {
    /// Another worker cannot help.
    Final(ApiError),
    /// Another worker may answer.
    OfWorker(WorkerId, String),
    /// The chosen worker's engine has no known address.
    Unaddressed,
}

impl Gateway {
    /// Creates a gateway. After `stop` is cancelled, it starts no more prefills of next turns.
    #[must_use]
    pub fn new(parts: Parts, config: Config, stop: CancellationToken) -> Self {
        Self {
            parts,
            config,
            mismatches: Arc::default(),
            began: Instant::now(),
            speculations: TaskTracker::new(),
            stop,
        }
    }

    /// Returns a function that lists current problems, one line each.
    pub fn problems(&self) -> impl Fn() -> Vec<String> + Send + Sync + use<> {
        let directory = self.parts.directory.clone();
        let mismatches = Arc::clone(&self.mismatches);
        let tokens = Arc::clone(&self.parts.tokens);
        let tenant = self.config.tenant.clone();
        move || {
            let mut problems = directory.problems();
            if directory.models(&tenant).is_empty() {
                problems.push(ApiError::without_engine(&tenant));
            }
            problems.extend(tokens.problems(&directory.all_addresses()));
            problems.extend(mismatches.lock().mismatched().into_iter().map(|key| {
                format!("{key}: the prompts' tokens are not those of the engines: compare tokenizer and chat template")
            }));
            problems
        }
    }

    /// Metrics of the gateway.
    #[must_use]
    pub const fn metrics(&self) -> &GatewayMetrics {
        &self.parts.metrics
    }

    /// Hits and misses of the token cache.
    #[must_use]
    pub fn token_cache_counts(&self) -> (u64, u64) {
        self.parts.tokens.cache_counts()
    }

    /// Servers that create tokens: endpoint name, status of `/render` there, and number of servers.
    #[must_use]
    pub fn token_endpoints(&self) -> Vec<((&'static str, u16), u64)> {
        self.parts.tokens.endpoint_counts(&self.parts.directory.all_addresses())
    }

    /// Waits until no conversation is being prefilled ahead.
    pub async fn end(&self) {
        self.speculations.close();
        self.speculations.wait().await;
    }

    /// The models that the caller may use, in OpenAI's format.
    #[must_use]
    pub fn models(&self, caller: &Principal) -> Value {
        let models = self.models_of(caller);
        let models = models
            .iter()
            .map(|id| json!({"id": id, "object": "model", "created": 0, "owned_by": "kvasir"}));
        json!({"object": "list", "data": models.collect::<Vec<_>>()})
    }

    /// One model in OpenAI's format.
    ///
    /// # Errors
    /// If no worker serves the model, or the caller may not use it.
    pub fn model(&self, caller: &Principal, id: &str) -> Result<Value, ApiError> {
        let models = self.models_of(caller);
        if !models.iter().any(|model| model == id) {
            return Err(self.unknown_model(caller, id));
        }
        Ok(json!({"id": id, "object": "model", "created": 0, "owned_by": "kvasir"}))
    }

    /// Names of the models and adapters that a caller may use.
    pub(super) fn models_of(&self, caller: &Principal) -> Vec<String> {
        let tenant = &self.config.tenant;
        let mut models = self.parts.directory.models(tenant);
        models.retain(|model| caller.sees(tenant, model));
        models
    }

    /// Checks that a caller may use the model of its request.
    ///
    /// # Errors
    /// If the caller may not. The error is the same as for a model that does not exist.
    fn check_model(&self, caller: &Principal, model: &str) -> Result<(), ApiError> {
        if caller.sees(&self.config.tenant, model) {
            return Ok(());
        }
        Err(self.unknown_model(caller, model))
    }

    /// The error for a model that no worker serves, or that the caller may not use. While there is no worker at all,
    /// the error is temporary, for all callers.
    fn unknown_model(&self, caller: &Principal, model: &str) -> ApiError {
        if self.parts.directory.models(&self.config.tenant).is_empty() {
            return ApiError::no_engine(&self.config.tenant);
        }
        ApiError::unknown_model(model, &self.models_of(caller))
    }

    /// Serves a request. Dropping the future, or the answer's body, cancels the request at its engine.
    pub async fn serve(
        self: &Arc<Self>,
        caller: (&Principal, Option<&Quota>),
        request: ApiRequest,
    ) -> Response {
        let began = Instant::now();
        let mut ending = Ending::new(self.parts.metrics.clone(), request.kind, began);
        match self.answer(caller, request, began, &mut ending).await {
            Ok(response) => response,
            Err(error) => {
                self.parts.metrics.error(error.status());
                let is_clients = error.status().is_client_error();
                ending.set(if is_clients { End::Refused } else { End::Failed });
                error.into_response()
            }
        }
    }

    /// Answers a request: checks permission and rate, then tries workers. A failed worker is excluded from the next
    /// attempt, for at most `retries` retries.
    async fn answer(
        self: &Arc<Self>,
        (caller, quota): (&Principal, Option<&Quota>),
        request: ApiRequest,
        began: Instant,
        ending: &mut Ending,
    ) -> Result<Response, ApiError> {
        self.check_model(caller, &request.model)?;
        if let Some(quota) = quota {
            quota.take(&self.config.tenant).map_err(|why| ApiError::rate_exceeded(&why))?;
        }
        let job = self.job(caller, request, began).await?;
        let mut hints = job.hints.clone();
        let mut failures: Vec<String> = Vec::new();
        let mut leaves_out_unaddressed = false;
        loop {
            match self.attempt(&job, &hints, ending).await {
                Ok(response) => return Ok(response),
                // An earlier worker's failure is more informative than the lack of further workers.
                Err(Failure::Final(_)) if !failures.is_empty() => break,
                Err(Failure::Final(error)) => return Err(error),
                // The worker may be the only one that the request allows.
                Err(Failure::Unaddressed) if leaves_out_unaddressed => {
                    return Err(ApiError::overloaded(
                        "the address of the worker's engine is not known",
                    ));
                }
                Err(Failure::Unaddressed) => {
                    leaves_out_unaddressed = true;
                    for worker in self.parts.directory.unaddressed(&job.target.partition) {
                        hints = hints.excluding(&worker);
                    }
                }
                Err(Failure::OfWorker(worker, why)) => {
                    tracing::warn!(%worker, why, "a worker failed a request");
                    failures.push(format!("{worker}: {why}"));
                    if failures.len() > self.config.retries as usize {
                        break;
                    }
                    hints = hints.excluding(&worker);
                    self.parts.metrics.retries.inc();
                }
            }
        }
        Err(ApiError::failed(format!("No worker answered. {}", failures.join("; "))))
    }

    /// Sends a request to its decode worker. If a prefill worker was chosen, it computes the prompt first; if it fails,
    /// another worker does both.
    async fn attempt(
        self: &Arc<Self>,
        job: &Job,
        hints: &Hints,
        ending: &mut Ending,
    ) -> Result<Response, Failure> {
        let pools = &job.partition.pools;
        let mut placement = self.place(job, pools.select(&job.prompt, hints).await)?;
        let mut computed_at = placement.decode.worker().clone();
        let mut parameters = None;
        if let Some(prefill) = &placement.prefill {
            let at = prefill.worker().clone();
            parameters = self.prefill(job, &mut placement).await;
            if parameters.is_some() {
                computed_at = at;
            } else {
                placement.prefill_failed();
                drop(placement);
                let local = pools.select_local(&job.prompt, hints).await;
                placement = self.place(job, local)?;
                computed_at = placement.decode.worker().clone();
            }
        }
        let body = job.body(parameters, placement.decode.decision().fetch.as_ref().ok());
        let next = NextTurn::from_job(job, computed_at);
        let mut serving = self.serving(job, placement, next.is_some());
        let answer = self.send_to_decode(job, &mut serving, body).await?;
        if !answer.status().is_success() {
            return self.pass_on(answer, serving, ending).await;
        }
        match job.request.is_stream {
            true => self.stream(job, answer, serving, next, ending).await,
            false => self.whole(answer, serving, next, ending).await,
        }
    }

    /// Counts a placement, or converts its error.
    fn place(
        &self,
        job: &Job,
        placed: Result<Placement, RouteError>,
    ) -> Result<Placement, Failure> {
        let placement = placed.map_err(|error| {
            self.parts.route_metrics.rejected(&error);
            Failure::Final(ApiError::from(&error))
        })?;
        let computing = placement.prefill.as_ref().unwrap_or(&placement.decode);
        self.parts.route_metrics.chosen(computing.choice(), &job.prompt, job.hashing);
        self.parts.route_metrics.prefill(placement.prefill_outcome);
        if let IndexUse::Answered { holding_ranks, .. } = computing.index_use() {
            self.compare(job, *holding_ranks > 0);
        }
        Ok(placement)
    }

    /// Checks whether the gateway's tokens match the engines'. `is_held` states whether a worker has blocks of the
    /// prompt. Logs each change of the verdict. Returns immediately if the prompt has no complete block.
    fn compare(&self, job: &Job, is_held: bool) {
        let Some(first) = job.first_block() else { return };
        let partition = &job.target.partition;
        let has_blocks = self.parts.directory.has_blocks(partition);
        let mut mismatches = self.mismatches.lock();
        let now = self.began.elapsed();
        let verdict = mismatches.asked(partition, first, (is_held, has_blocks), now);
        if verdict == Verdict::Unchanged {
            return;
        }
        let count = mismatches.mismatched().len();
        drop(mismatches);
        self.parts.metrics.mismatched.set(i64::try_from(count).unwrap_or(i64::MAX));
        if verdict == Verdict::Matched {
            tracing::info!(%partition, "the prompts' tokens are those of the engines, again");
            return;
        }
        self.parts.metrics.mismatches.inc();
        tracing::warn!(
            %partition,
            "the prompts' tokens are not those of the engines: prompts come back, workers report blocks, and none is ever \
             found; compare tokenizer and chat template with the engines'"
        );
    }

    /// Sends the request to its decode worker, and waits for the answer's head. Fails with `Unaddressed` if the
    /// engine's address is unknown.
    async fn send_to_decode(
        &self,
        job: &Job,
        serving: &mut Serving,
        body: Bytes,
    ) -> Result<Answer, Failure> {
        let worker = serving.worker().clone();
        let engine = self.parts.directory.engine(&job.target.partition, &worker.worker);
        let Some(engine) = engine else { return Err(Failure::Unaddressed) };
        let request_id = serving.request_id().to_owned();
        let sent = Sent {
            path: job.request.kind.path(),
            body,
            rank: engine.has_ranks.then_some(worker.rank),
            request_id: Some(&request_id),
        };
        let address = &engine.address;
        let span = step!("engine", otel.kind = "client", %worker, server.address = %address);
        let asking = self.parts.client.send(address, sent).instrument(span.clone());
        let answer = match self.alive(serving, asking).await {
            Some(Ok(answer)) if is_failure(answer.status()) => Err(engine_status(answer.status())),
            Some(Ok(answer)) => Ok(answer),
            Some(Err(error)) => Err(error.to_string()),
            None => Err("no answer in time".to_owned()),
        };
        answer.map_err(|why| {
            fail(&span, &why);
            serving.fail(why)
        })
    }

    /// Waits for work and renews the request's lease meanwhile. `None` at the deadline.
    async fn alive<T>(&self, serving: &mut Serving, work: impl Future<Output = T>) -> Option<T> {
        let deadline = serving.deadline;
        let lease = self.config.routing.router.active.lease;
        while_alive(lease, || serving.is_alive(), timeout_at(deadline, work)).await.ok()
    }

    /// Passes an engine's rejection to the client.
    async fn pass_on(
        &self,
        answer: Answer,
        mut serving: Serving,
        ending: &mut Ending,
    ) -> Result<Response, Failure> {
        let whole = match self.alive(&mut serving, answer.whole()).await {
            Some(Ok(whole)) => whole,
            Some(Err(error)) => return Err(serving.fail(error.to_string())),
            None => return Err(serving.fail("no answer in time".to_owned())),
        };
        let response = respond(&serving, whole.status, whole.content_type, whole.body.into());
        ending.set(End::Refused);
        Ok(response)
    }

    /// Passes a complete answer, which was not streamed, to the client. Fails if it arrives too late or is invalid
    /// JSON.
    async fn whole(
        self: &Arc<Self>,
        answer: Answer,
        mut serving: Serving,
        next: Option<NextTurn>,
        ending: &mut Ending,
    ) -> Result<Response, Failure> {
        let whole = match self.alive(&mut serving, answer.whole()).await {
            Some(Ok(whole)) => whole,
            Some(Err(error)) => return Err(serving.fail(error.to_string())),
            None => return Err(serving.fail("no answer in time".to_owned())),
        };
        if serving.tally.whole(&whole.body).is_none() {
            return Err(serving.fail("the answer is not JSON".to_owned()));
        }
        let response = respond(&serving, whole.status, whole.content_type, whole.body.into());
        let tally = serving.complete();
        ending.set(End::Complete);
        self.go_on(next, &tally);
        Ok(response)
    }

    /// Creates the state of a request that a worker serves. The state counts output and reports the end.
    fn serving(&self, job: &Job, placement: Placement, keeps_text: bool) -> Serving {
        let choice = placement.decode.choice();
        let recorded = self.parts.recorder.begin(job.began, &job.prompt, choice);
        let deadline = job.deadline(choice);
        let served = job.first_block().map(|first| (job.target.partition.clone(), first));
        Serving::new(serving::Parts {
            placement,
            recorded,
            served,
            comparable_tokens: job.comparable_tokens(),
            recorder: self.parts.recorder.clone(),
            metrics: self.parts.metrics.clone(),
            route_metrics: self.parts.route_metrics.clone(),
            mismatches: Arc::clone(&self.mismatches),
            gateway_began: self.began,
            began: job.began,
            deadline,
            tally: Tally::new(keeps_text),
        })
    }
}

/// Waits for `work`, and calls `sign` three times in each lease.
async fn while_alive<T>(
    lease: Duration,
    mut sign: impl FnMut(),
    work: impl Future<Output = T>,
) -> T {
    let mut signs = interval((lease / 3).max(Duration::from_millis(10)));
    signs.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut work = pin!(work);
    loop {
        select! {
            done = work.as_mut() => return done,
            _ = signs.tick() => sign(),
        }
    }
}

/// Builds the answer to a client: the engine's answer with the worker's name.
fn respond(
    serving: &Serving,
    status: StatusCode,
    content_type: Option<HeaderValue>,
    body: Body,
) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    if let Some(content_type) = content_type {
        headers.insert(CONTENT_TYPE, content_type);
    }
    if let Ok(worker) = HeaderValue::from_str(serving.worker().worker.as_str()) {
        headers.insert(WORKER_HEADER, worker);
    }
    response
}

/// Serializes a request body.
fn bytes(body: Map<String, Value>) -> Bytes {
    Value::Object(body).to_string().into()
}

/// Whether an engine's status is a failure: another worker may serve the request. 401 is about the gateway's key, not the
/// client's.
fn is_failure(status: StatusCode) -> bool {
    status.is_server_error() || [401, 408, 429].contains(&status.as_u16())
}
