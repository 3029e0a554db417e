//! The engines: where they are, and how they are asked.

use crate::config::EngineConfig;
use axum::body::{Body, Bytes};
use futures::TryStreamExt;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kvasir_proto::types::{PartitionKey, WorkerId};
use kvasir_router::fleet::Listing;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Label of a worker with the address of its engine.
pub const ADDRESS_LABEL: &str = "http";
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

/// Where the engines of the workers are.
#[derive(Debug, Clone)]
pub struct Directory {
    listed: watch::Receiver<Arc<Listing>>,
    stated: Arc<BTreeMap<WorkerId, Uri>>,
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
    pub fn new(listed: watch::Receiver<Arc<Listing>>, config: &EngineConfig) -> Self {
        Self { listed, stated: Arc::new(config.addresses.clone()) }
    }

    /// The engine of a worker; none if its address is not known.
    #[must_use]
    pub fn engine(&self, partition: &PartitionKey, worker: &WorkerId) -> Option<Engine> {
        let listing = Arc::clone(&self.listed.borrow());
        let listed = listing.get(partition)?.get(worker)?;
        let of_label = || listed.profile.labels.get(ADDRESS_LABEL)?.parse().ok();
        let address = self.stated.get(worker).cloned().or_else(of_label)?;
        Some(Engine { address, has_ranks: listed.ranks.len() > 1 })
    }

    /// Addresses of a partition's engines.
    #[must_use]
    pub fn addresses(&self, partition: &PartitionKey) -> Vec<Uri> {
        let listing = Arc::clone(&self.listed.borrow());
        let workers = listing.get(partition).into_iter().flat_map(BTreeMap::keys);
        workers.filter_map(|at| self.engine(partition, at)).map(|at| at.address).collect()
    }

    /// Workers of a partition whose engines' addresses are not known.
    #[must_use]
    pub fn unaddressed(&self, partition: &PartitionKey) -> Vec<WorkerId> {
        let listing = Arc::clone(&self.listed.borrow());
        let workers = listing.get(partition).into_iter().flat_map(BTreeMap::keys);
        workers.filter(|at| self.engine(partition, at).is_none()).cloned().collect()
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
        let has = |workers: &BTreeMap<WorkerId, router_client::ListedWorker>| {
            workers.values().any(|at| at.adapters.contains(model))
        };
        let mut of_tenant = listing.iter().filter(|(key, _)| key.tenant() == tenant);
        let (partition, _) = of_tenant.find(|(_, workers)| has(workers))?;
        Some(Target { partition: partition.clone(), adapter: model.to_owned() })
    }

    /// The models and adapters of a tenant, by name.
    #[must_use]
    pub fn models(&self, tenant: &str) -> Vec<String> {
        let listing = Arc::clone(&self.listed.borrow());
        let mut models = Vec::new();
        for (key, workers) in listing.iter().filter(|(key, _)| key.tenant() == tenant) {
            models.push(key.model().to_owned());
            models.extend(workers.values().flat_map(|at| at.adapters.iter().cloned()));
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
        let base = to.to_string();
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(format!("{}{path}", base.trim_end_matches('/')))
            .header(CONTENT_TYPE, "application/json");
        if let Some(rank) = rank {
            request = request.header(RANK_HEADER, rank);
        }
        if let Some(id) = request_id {
            request = request.header(REQUEST_ID_HEADER, id);
        }
        let request = request.body(Full::new(body))?;
        let answer = self.client.request(request).await;
        answer.map(Answer).map_err(|error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            EngineError::Connection(cause.unwrap_or_else(|| error.to_string()))
        })
    }
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
        let (head, body) = self.0.into_parts();
        let collected = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
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
