//! Engines: addresses, adapters, and the HTTP client for requests to engines.

mod adapters;
mod connect;

pub use adapters::watch;

use crate::config::{EngineConfig, EngineKeys};
use adapters::NamedModels;
use axum::body::{Body, Bytes};
use connect::{Connect, TlsRefusal};
use futures::TryStreamExt;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use kvasir_proto::convert::ImageTokens;
use kvasir_proto::types::{PartitionKey, WorkerId};
use kvasir_router::fleet::Listing;
use kvasir_trace::{fail, inject};
use router_client::ListedWorker;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch::Receiver;
use tracing::Span;

/// Worker label: the address of the worker's engine.
pub const ADDRESS_LABEL: &str = kvasir_router::pages::ADDRESS_LABEL;
/// Maximum size of an answer without streaming, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Time after which idle connections are closed: before engines close them.
const POOL_IDLE: Duration = Duration::from_secs(4);
/// Maximum idle connections to one engine.
const POOL_IDLE_MAX: usize = 64;
/// Header that names the rank for a request, as vLLM reads it.
const RANK_HEADER: &str = "x-data-parallel-rank";
/// Header with the request id, equal for both halves of a disaggregated request.
const REQUEST_ID_HEADER: &str = "x-request-id";

/// Directory of engines: addresses and adapters by worker. Clones share both.
#[derive(Debug, Clone)]
pub struct Directory {
    listed: Receiver<Arc<Listing>>,
    stated: Arc<BTreeMap<WorkerId, Uri>>,
    named: NamedModels,
}

/// The engine of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engine {
    /// Address of the engine.
    pub address: Uri,
    /// Whether requests must name a rank, because the engine has several.
    pub has_ranks: bool,
}

/// The model for a request: a listed model, a LoRA adapter that one of its workers has loaded, or another name under
/// which one of its workers serves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Model and tenant.
    pub partition: PartitionKey,
    /// Name of the adapter; "" for none.
    pub adapter: String,
    /// Another name of the model, under which some engines serve it; "" for none.
    pub alias: String,
}

/// HTTP client of engines. Cheap to clone: clones share connections.
#[derive(Debug, Clone)]
pub struct EngineClient {
    client: Client<Connect, Full<Bytes>>,
    keys: EngineKeys,
}

/// A request to an engine.
#[derive(Debug)]
pub struct Sent<'a> {
    /// Path of the endpoint.
    pub path: &'a str,
    /// JSON body.
    pub body: Bytes,
    /// Rank that should serve the request, if the engine has several.
    pub rank: Option<u32>,
    /// Request id.
    pub request_id: Option<&'a str>,
}

/// An answer whose body has not been read yet.
#[derive(Debug)]
pub struct Answer {
    response: Response<Incoming>,
    /// Span of the request, until the end of the body.
    span: Span,
}

/// A complete answer.
#[derive(Debug, Clone)]
pub struct Whole {
    /// Status of the answer.
    pub status: StatusCode,
    /// Content type of the answer.
    pub content_type: Option<HeaderValue>,
    /// Body of the answer.
    pub body: Bytes,
}

/// Why an engine gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The engine cannot be reached, or it closed the connection.
    #[error("{0}")]
    Connection(String),
    /// TLS with the engine fails. The text ends with the fix.
    #[error("{0}")]
    Tls(String),
    /// The answer broke off, or is too long.
    #[error("the answer broke off: {0}")]
    Body(String),
    /// The request cannot be built because of an invalid address.
    #[error("the request cannot be written: {0}")]
    Request(#[from] hyper::http::Error),
}

// === impl Directory ===

impl Directory {
    /// Creates a directory. Configured addresses override the workers' labels.
    #[must_use]
    pub fn new(listed: Receiver<Arc<Listing>>, config: &EngineConfig) -> Self {
        let stated = Arc::new(config.addresses.clone());
        Self { listed, stated, named: NamedModels::default() }
    }

    /// The engine of a worker; `None` if its address is unknown.
    #[must_use]
    pub fn engine(&self, partition: &PartitionKey, worker: &WorkerId) -> Option<Engine> {
        let listing = Arc::clone(&self.listed.borrow());
        let listed = listing.get(partition)?.get(worker)?;
        Some(Engine { address: self.address(listed)?, has_ranks: listed.ranks.len() > 1 })
    }

    fn address(&self, listed: &ListedWorker) -> Option<Uri> {
        let of_label = || listed.profile.labels.get(ADDRESS_LABEL)?.parse().ok();
        self.stated.get(&listed.worker).cloned().or_else(of_label)
    }

    /// Whether a worker has an adapter, from its registration or its engine's answer; `None` without an answer.
    fn has_adapter(&self, listed: &ListedWorker, adapter: &str) -> Option<bool> {
        if listed.adapters.contains(adapter) {
            return Some(true);
        }
        self.named.has_adapter(&self.address(listed)?, adapter)
    }

    /// Whether the engine of a worker serves the partition's model under another name, too.
    fn has_alias(&self, listed: &ListedWorker, alias: &str, partition: &PartitionKey) -> bool {
        let engine = self.address(listed);
        engine.is_some_and(|engine| self.named.has_alias(&engine, alias, partition.model()))
    }

    /// Addresses of a partition's engines, except engines of workers in `without`.
    #[must_use]
    pub fn addresses(&self, partition: &PartitionKey, without: &[WorkerId]) -> Vec<Uri> {
        let listing = Arc::clone(&self.listed.borrow());
        let workers = listing.get(partition).into_iter().flat_map(BTreeMap::values);
        let workers = workers.filter(|at| !without.contains(&at.worker));
        workers.filter_map(|at| self.address(at)).collect()
    }

    /// Addresses of all engines.
    #[must_use]
    pub fn all_addresses(&self) -> Vec<Uri> {
        let listing = Arc::clone(&self.listed.borrow());
        listing.keys().flat_map(|partition| self.addresses(partition, &[])).collect()
    }

    /// Workers of a partition whose engines have no known address.
    #[must_use]
    pub fn unaddressed(&self, partition: &PartitionKey) -> Vec<WorkerId> {
        let listing = Arc::clone(&self.listed.borrow());
        let workers = listing.get(partition).into_iter().flat_map(BTreeMap::keys);
        workers.filter(|at| self.engine(partition, at).is_none()).cloned().collect()
    }

    /// The form of image tokens used by most of a partition's workers. At workers with another form, no block from the
    /// first image on is found.
    #[must_use]
    pub fn image_tokens(&self, partition: &PartitionKey) -> ImageTokens {
        let listing = Arc::clone(&self.listed.borrow());
        let workers = listing.get(partition).into_iter().flat_map(BTreeMap::values);
        let mut counts = BTreeMap::<_, usize>::new();
        workers.for_each(|at| *counts.entry(at.image_tokens).or_default() += 1);
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        most.map_or(ImageTokens::Identifier, |(form, _)| form)
    }

    /// Whether the index has a block of any worker in a partition.
    #[must_use]
    pub fn has_blocks(&self, partition: &PartitionKey) -> bool {
        let listing = Arc::clone(&self.listed.borrow());
        listing.get(partition).is_some_and(|workers| workers.values().any(|at| at.has_blocks))
    }

    /// Finds the partition that serves a model, an adapter, or another name of a model. Returns `None` if every worker of
    /// the tenant lacks it.
    #[must_use]
    pub fn target(&self, tenant: &str, model: &str) -> Option<Target> {
        let partition = PartitionKey::new(model, tenant).ok()?;
        let listing = Arc::clone(&self.listed.borrow());
        if listing.contains_key(&partition) {
            return Some(Target { partition, adapter: String::new(), alias: String::new() });
        }
        let has = |workers: &BTreeMap<WorkerId, ListedWorker>| {
            workers.values().any(|at| self.has_adapter(at, model) == Some(true))
        };
        let of_tenant = || listing.iter().filter(|(key, _)| key.tenant() == tenant);
        if let Some((partition, _)) = of_tenant().find(|(_, workers)| has(workers)) {
            let (partition, adapter) = (partition.clone(), model.to_owned());
            return Some(Target { partition, adapter, alias: String::new() });
        }
        let is_alias = |(key, workers): &(&PartitionKey, &BTreeMap<WorkerId, ListedWorker>)| {
            workers.values().any(|at| self.has_alias(at, model, key))
        };
        let (partition, _) = of_tenant().find(is_alias)?;
        let (partition, alias) = (partition.clone(), model.to_owned());
        Some(Target { partition, adapter: String::new(), alias })
    }

    /// Returns the workers whose engines have listed their adapters without the target's adapter, or have not listed the
    /// target's alias.
    #[must_use]
    pub fn workers_without(&self, target: &Target) -> Vec<WorkerId> {
        let Target { partition, adapter, alias } = target;
        let listing = Arc::clone(&self.listed.borrow());
        let workers = listing.get(partition).into_iter().flatten();
        let lacking = workers.filter(|(_, at)| {
            (!adapter.is_empty() && self.has_adapter(at, adapter) == Some(false))
                || (!alias.is_empty() && !self.has_alias(at, alias, partition))
        });
        lacking.map(|(id, _)| id.clone()).collect()
    }

    /// Returns the models and adapters of a tenant, and further names of models, sorted by name.
    #[must_use]
    pub fn models(&self, tenant: &str) -> Vec<String> {
        let listing = Arc::clone(&self.listed.borrow());
        let mut models = Vec::new();
        for (key, workers) in listing.iter().filter(|(key, _)| key.tenant() == tenant) {
            models.push(key.model().to_owned());
            models.extend(workers.values().flat_map(|at| at.adapters.iter().cloned()));
            for engine in workers.values().filter_map(|at| self.address(at)) {
                models.extend(self.named.adapters(&engine));
                models.extend(self.named.aliases(&engine, key.model()));
            }
        }
        models.sort();
        models.dedup();
        models
    }

    /// Returns one line for each model with workers that get no requests because their address is unknown, and one for
    /// each model that some engines serve under another model's name.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let listing = Arc::clone(&self.listed.borrow());
        let shared = listing.iter().filter_map(|(key, workers)| {
            let (engine, name) = workers.values().find_map(|at| {
                let engine = self.address(at)?;
                let mut aliases = self.named.aliases(&engine, key.model()).into_iter();
                let is_model = |alias: &String| {
                    let other = PartitionKey::new(alias, key.tenant());
                    other.is_ok_and(|other| listing.contains_key(&other))
                };
                let name = aliases.find(is_model)?;
                Some((engine, name))
            })?;
            Some(format!(
                "{key}: {engine} also serves it as {name}, the first name of other engines, which alone get requests for \
                 {name}: give engines of one model the same first --served-model-name"
            ))
        });
        let unknown = listing.keys().filter_map(|key| {
            let unknown = self.unaddressed(key);
            let first = unknown.first()?;
            let count = unknown.len();
            Some(format!(
                "{key}: the engine's address is not known of {count} workers, such as {first}: give each the label \
                 {ADDRESS_LABEL}, or start the gateway with --engine {first}=URL"
            ))
        });
        unknown.chain(shared).collect()
    }
}

// === impl EngineClient ===

impl EngineClient {
    /// Creates a client without connections.
    #[must_use]
    pub fn new(config: &EngineConfig) -> Self {
        let connector = Connect::new(config.dialer.clone(), config.connect_timeout);
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(POOL_IDLE)
            .pool_max_idle_per_host(POOL_IDLE_MAX)
            .build(connector);
        Self { client, keys: config.keys.clone() }
    }

    /// Sends a request. Dropping the future, or the answer, cancels the request at the engine.
    ///
    /// # Errors
    /// If the engine cannot be reached or closes the connection.
    pub async fn send(&self, to: &Uri, sent: Sent<'_>) -> Result<Answer, EngineError> {
        let Sent { path, body, rank, request_id } = sent;
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(page(to, path))
            .header(CONTENT_TYPE, "application/json");
        if let Some(rank) = rank {
            request = request.header(RANK_HEADER, rank);
        }
        if let Some(id) = request_id {
            request = request.header(REQUEST_ID_HEADER, id);
        }
        self.request(request.body(Full::new(body))?).await
    }

    /// Sends a GET request.
    ///
    /// # Errors
    /// If the engine cannot be reached or closes the connection.
    pub async fn get(&self, from: &Uri, path: &str) -> Result<Answer, EngineError> {
        self.request(Request::get(page(from, path)).body(Full::default())?).await
    }

    /// Sends a request, with the key of its engine. The engine continues the current trace.
    async fn request(&self, mut request: Request<Full<Bytes>>) -> Result<Answer, EngineError> {
        inject(request.headers_mut());
        if let Some(key) = self.keys.header(request.uri()) {
            request.headers_mut().insert(AUTHORIZATION, key);
        }
        let answer = self.client.request(request).await;
        let span = Span::current();
        if let Err(error) = &answer {
            fail(&span, error);
        }
        answer.map(|response| Answer { response, span }).map_err(|error| {
            let cause = std::error::Error::source(&error);
            let text = causes(cause).unwrap_or_else(|| error.to_string());
            let is_tls = cause.is_some_and(|cause| cause.is::<TlsRefusal>());
            if is_tls { EngineError::Tls(text) } else { EngineError::Connection(text) }
        })
    }
}

/// An error and its causes as one line: the outer ones alone do not say why.
fn causes(first: Option<&(dyn std::error::Error + 'static)>) -> Option<String> {
    let errors = std::iter::successors(first, |error| error.source());
    let texts: Vec<_> = errors.map(ToString::to_string).collect();
    (!texts.is_empty()).then(|| texts.join(": "))
}

fn page(engine: &Uri, path: &str) -> String {
    format!("{}{path}", engine.to_string().trim_end_matches('/'))
}

// === impl Answer ===

impl Answer {
    /// Status of the answer.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// Reads the complete answer.
    ///
    /// # Errors
    /// If it breaks off or is too long.
    pub async fn whole(self) -> Result<Whole, EngineError> {
        self.whole_within(ANSWER_BYTES_MAX).await
    }

    /// Reads the complete answer, of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// If it breaks off or is too long.
    pub async fn whole_within(self, bytes_max: usize) -> Result<Whole, EngineError> {
        let Self { response, span: _until_the_end } = self;
        let (head, body) = response.into_parts();
        let collected = Limited::new(body, bytes_max).collect().await;
        let body = collected.map_err(|error| EngineError::Body(error.to_string()))?.to_bytes();
        let content_type = head.headers.get(CONTENT_TYPE).cloned();
        Ok(Whole { status: head.status, content_type, body })
    }

    /// The body as a stream of chunks.
    pub fn pieces(
        self,
    ) -> impl futures::Stream<Item = Result<Bytes, EngineError>> + Send + Unpin + use<> {
        let Self { response, span } = self;
        let stream = Body::new(response.into_body()).into_data_stream();
        TryStreamExt::map_err(stream, move |error| {
            fail(&span, &error);
            EngineError::Body(error.to_string())
        })
    }
}
