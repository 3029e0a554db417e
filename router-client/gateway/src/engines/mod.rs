//! The engines: where they are, which adapters they have, and how they are asked.

mod adapters;

pub use adapters::watch;

use crate::config::EngineConfig;
use adapters::NamedAdapters;
use axum::body::{Body, Bytes};
use futures::TryStreamExt;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kvasir_proto::convert::ImageTokens;
use kvasir_proto::types::{PartitionKey, WorkerId};
use kvasir_router::fleet::Listing;
use router_client::ListedWorker;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch::Receiver;

/// Label of a worker with the address of its engine.
pub const ADDRESS_LABEL: &str = kvasir_router::pages::ADDRESS_LABEL;
/// Most bytes of an answer that is not a stream.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Connections without a request are closed after this time: before engines close them.
const POOL_IDLE: Duration = Duration::from_secs(4);
/// Most connections without a request to one engine.
const POOL_IDLE_MAX: usize = 64;
/// The rank of a worker that is to serve a request, as vLLM reads it.
const RANK_HEADER: &str = "x-data-parallel-rank";
/// The id of a request, the same for both halves of a disaggregated one.
const REQUEST_ID_HEADER: &str = "x-request-id";

/// Where the engines of the workers are, and which adapters they have. Clones share both.
#[derive(Debug, Clone)]
pub struct Directory {
    listed: Receiver<Arc<Listing>>,
    stated: Arc<BTreeMap<WorkerId, Uri>>,
    named: NamedAdapters,
}

/// The engine of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engine {
    /// Its address.
    pub address: Uri,
    /// Whether requests name the rank that is to serve them.
    pub has_ranks: bool,
}

/// Which model a request is for: one of the listed ones, or a LoRA adapter that a worker of one has loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Model and tenant.
    pub partition: PartitionKey,
    /// The adapter, "" for none.
    pub adapter: String,
}

/// Asks engines. Cheap to clone: clones share connections.
#[derive(Debug, Clone)]
pub struct EngineClient {
    client: Client<HttpConnector, Full<Bytes>>,
}

/// A request to an engine.
#[derive(Debug)]
pub struct Sent<'a> {
    /// Path of the endpoint.
    pub path: &'a str,
    /// JSON.
    pub body: Bytes,
    /// Rank that is to serve it, if the engine has several.
    pub rank: Option<u32>,
    /// Its id.
    pub request_id: Option<&'a str>,
}

/// An answer that has begun.
#[derive(Debug)]
pub struct Answer(Response<Incoming>);

/// An answer as a whole.
#[derive(Debug, Clone)]
pub struct Whole {
    /// Its status.
    pub status: StatusCode,
    /// Its type.
    pub content_type: Option<HeaderValue>,
    /// Its body.
    pub body: Bytes,
}

/// Why an engine gives no answer.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// It cannot be reached, or it closed the connection.
    #[error("no answer: {0}")]
    Connection(String),
    /// Its answer broke off, or is too long.
    #[error("the answer broke off: {0}")]
    Body(String),
    /// The request cannot be written: a fault of an address.
    #[error("the request cannot be written: {0}")]
    Request(#[from] hyper::http::Error),
}

// === impl Directory ===

impl Directory {
    /// Addresses that the options state win over those of the workers' labels.
    #[must_use]
    pub fn new(listed: Receiver<Arc<Listing>>, config: &EngineConfig) -> Self {
        let stated = Arc::new(config.addresses.clone());
        Self { listed, stated, named: NamedAdapters::default() }
    }

    /// The engine of a worker; none if its address is not known.
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

    /// Whether a worker has an adapter, by its registration or by its engine; `None` if its engine has not answered.
    fn has_adapter(&self, listed: &ListedWorker, adapter: &str) -> Option<bool> {
        if listed.adapters.contains(adapter) {
            return Some(true);
        }
        self.named.has(&self.address(listed)?, adapter)
    }

    /// Addresses of a partition's engines, without those of some workers.
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

    /// Workers of a partition whose engines' addresses are not known.
    #[must_use]
    pub fn unaddressed(&self, partition: &PartitionKey) -> Vec<WorkerId> {
        let listing = Arc::clone(&self.listed.borrow());
        let workers = listing.get(partition).into_iter().flat_map(BTreeMap::keys);
        workers.filter(|at| self.engine(partition, at).is_none()).cloned().collect()
    }

    /// The form of image tokens of a partition's engines. Workers may state several forms: then this is the form of most
    /// workers, and no block from an image on is found at the others.
    #[must_use]
    pub fn image_tokens(&self, partition: &PartitionKey) -> ImageTokens {
        let listing = Arc::clone(&self.listed.borrow());
        let workers = listing.get(partition).into_iter().flat_map(BTreeMap::values);
        let mut counts = BTreeMap::<_, usize>::new();
        workers.for_each(|at| *counts.entry(at.image_tokens).or_default() += 1);
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        most.map_or(ImageTokens::Identifier, |(form, _)| form)
    }

    /// Whether the index knows a block of any worker of a partition.
    #[must_use]
    pub fn has_blocks(&self, partition: &PartitionKey) -> bool {
        let listing = Arc::clone(&self.listed.borrow());
        listing.get(partition).is_some_and(|workers| workers.values().any(|at| at.has_blocks))
    }

    /// Whose a model is.
    #[must_use]
    pub fn target(&self, tenant: &str, model: &str) -> Option<Target> {
        let partition = PartitionKey::new(model, tenant).ok()?;
        let listing = Arc::clone(&self.listed.borrow());
        if listing.contains_key(&partition) {
            return Some(Target { partition, adapter: String::new() });
        }
        let has = |workers: &BTreeMap<WorkerId, ListedWorker>| {
            workers.values().any(|at| self.has_adapter(at, model) == Some(true))
        };
        let mut of_tenant = listing.iter().filter(|(key, _)| key.tenant() == tenant);
        let (partition, _) = of_tenant.find(|(_, workers)| has(workers))?;
        Some(Target { partition: partition.clone(), adapter: model.to_owned() })
    }

    /// Workers that lack a target's adapter: their engines named their adapters, and this is none of them.
    #[must_use]
    pub fn without_adapter(&self, target: &Target) -> Vec<WorkerId> {
        if target.adapter.is_empty() {
            return Vec::new();
        }
        let listing = Arc::clone(&self.listed.borrow());
        let workers = listing.get(&target.partition).into_iter().flatten();
        let lacking =
            workers.filter(|(_, at)| self.has_adapter(at, &target.adapter) == Some(false));
        lacking.map(|(id, _)| id.clone()).collect()
    }

    /// The models and adapters of a tenant, by name.
    #[must_use]
    pub fn models(&self, tenant: &str) -> Vec<String> {
        let listing = Arc::clone(&self.listed.borrow());
        let mut models = Vec::new();
        for (key, workers) in listing.iter().filter(|(key, _)| key.tenant() == tenant) {
            models.push(key.model().to_owned());
            models.extend(workers.values().flat_map(|at| at.adapters.iter().cloned()));
            let engines = workers.values().filter_map(|at| self.address(at));
            models.extend(engines.flat_map(|engine| self.named.of(&engine)));
        }
        models.sort();
        models.dedup();
        models
    }

    /// Workers that get no request, a line for each model that has some.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let listing = Arc::clone(&self.listed.borrow());
        let lines = listing.keys().filter_map(|key| {
            let unknown = self.unaddressed(key);
            let first = unknown.first()?;
            let count = unknown.len();
            Some(format!(
                "{key}: the engine's address is not known of {count} workers, such as {first}: give each the label \
                 {ADDRESS_LABEL}, or start the gateway with --engine {first}=URL"
            ))
        });
        lines.collect()
    }
}

// === impl EngineClient ===

impl EngineClient {
    /// No connection is made yet.
    #[must_use]
    pub fn new(config: &EngineConfig) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(config.connect_timeout));
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(POOL_IDLE)
            .pool_max_idle_per_host(POOL_IDLE_MAX)
            .build(connector);
        Self { client }
    }

    /// Sends a request. Dropping the future, or the answer, ends the request at the engine.
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

    /// Reads a page.
    ///
    /// # Errors
    /// If the engine cannot be reached or closes the connection.
    pub async fn get(&self, from: &Uri, path: &str) -> Result<Answer, EngineError> {
        self.request(Request::get(page(from, path)).body(Full::default())?).await
    }

    async fn request(&self, request: Request<Full<Bytes>>) -> Result<Answer, EngineError> {
        let answer = self.client.request(request).await;
        answer.map(Answer).map_err(|error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            EngineError::Connection(cause.unwrap_or_else(|| error.to_string()))
        })
    }
}

fn page(engine: &Uri, path: &str) -> String {
    format!("{}{path}", engine.to_string().trim_end_matches('/'))
}

// === impl Answer ===

impl Answer {
    /// Its status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.0.status()
    }

    /// All of it.
    ///
    /// # Errors
    /// If it breaks off or is too long.
    pub async fn whole(self) -> Result<Whole, EngineError> {
        self.whole_within(ANSWER_BYTES_MAX).await
    }

    /// All of it, if it has no more than so many bytes.
    ///
    /// # Errors
    /// If it breaks off or is too long.
    pub async fn whole_within(self, bytes_max: usize) -> Result<Whole, EngineError> {
        let (head, body) = self.0.into_parts();
        let collected = Limited::new(body, bytes_max).collect().await;
        let body = collected.map_err(|error| EngineError::Body(error.to_string()))?.to_bytes();
        let content_type = head.headers.get(CONTENT_TYPE).cloned();
        Ok(Whole { status: head.status, content_type, body })
    }

    /// Its bytes as they come.
    pub fn pieces(
        self,
    ) -> impl futures::Stream<Item = Result<Bytes, EngineError>> + Send + Unpin + use<> {
        let stream = Body::new(self.0.into_body()).into_data_stream();
        TryStreamExt::map_err(stream, |error| EngineError::Body(error.to_string()))
    }
}
