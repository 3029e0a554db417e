//! Asks an engine what it is.

use crate::spec::EngineSpec;
use kvasir_engine::scrape::{ReadError, ScrapedEngine, read_cache_facts};
use kvasir_engine_http::{EngineClient, EngineError};
use kvasir_proto::convert::{EndpointSpec, Registration, WorkerProfile};
use kvasir_proto::limits::WORKER_ENDPOINTS_MAX;
use kvasir_proto::types::{
    ADDRESS_LABEL, DpRank, EngineFacts, EngineKind, HolderKind, PartitionKey, WorkerId,
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::timeout;

/// Maximum wait for one answer of an engine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of an answer, in bytes.
const ANSWER_BYTES_MAX: usize = 8 << 20;
/// Usual ports of an engine's sockets, of rank 0. Each further rank has the next port.
const EVENTS_PORT: u16 = 5557;
const REPLAY_PORT: u16 = 5558;
/// Worker label: id of the pod that the engine is.
const POD_LABEL: &str = "pod-uid";

/// Facts about an engine.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// The engine.
    pub kind: EngineKind,
    /// Version, if the engine states it.
    pub version: Option<String>,
    /// Model.
    pub model: String,
    /// Maximum number of tokens of a prompt with its answer, if the engine states it.
    pub model_tokens_max: Option<u64>,
    /// Tokens per block.
    pub block_size: u32,
    /// The block size that the engine states at `/metrics`, if the user states another one.
    pub other_block_size: Option<u32>,
    /// Blocks of each rank, if the engine states it.
    pub blocks: Option<u64>,
    /// Tokens between two lengths at which a prompt can be reused, if the engine states it.
    pub prefix_match_unit: Option<u32>,
    /// Whether the engine reuses cached prefixes, if it states it.
    pub caches_prefixes: Option<bool>,
    /// Data-parallel ranks.
    pub ranks: BTreeSet<DpRank>,
    /// Time of the engine's start, in seconds since 1970, if it states it.
    pub started_at: Option<f64>,
}

/// Why an engine cannot be used. Each text ends with the fix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FactsError {
    /// No answer.
    #[error(
        "no answer at {path}: {why}; start the engine, or correct its URL (http:// or https://, host, port)"
    )]
    Unreachable {
        /// Path of the request.
        path: &'static str,
        /// Reason.
        why: String,
    },
    /// TLS with the engine fails.
    #[error("no answer at {path}: {why}")]
    Tls {
        /// Path of the request.
        path: &'static str,
        /// Reason, with the fix.
        why: String,
    },
    /// The engine demands a key.
    #[error(
        "{path} answers {status}: the engine demands a key (vLLM's --api-key); state it with key-file=PATH"
    )]
    Key {
        /// Path of the request.
        path: &'static str,
        /// Status.
        status: u16,
    },
    /// Another status than success.
    #[error(
        "{path} answers {status}: the engine is still loading, or the URL is not an OpenAI server's"
    )]
    Status {
        /// Path of the request.
        path: &'static str,
        /// Status.
        status: u16,
    },
    /// The answer is not JSON.
    #[error("{path} answers no JSON: the URL is not an OpenAI server's; correct it")]
    NoJson {
        /// Path of the request.
        path: &'static str,
    },
    /// The engine serves no model.
    #[error(
        "the engine lists no model at /v1/models: the URL is not an OpenAI server's; correct it"
    )]
    NoModel,
    /// The engine serves no model of this name.
    #[error("the engine serves {}, not {wanted:?}; correct model=NAME", served.join(", "))]
    Model {
        /// Stated model.
        wanted: String,
        /// Served models.
        served: Vec<String>,
    },
    /// The engine does not state its block size.
    #[error(
        "the engine does not state its block size at /metrics ({0}): start SGLang with --enable-metrics, or state it with \
         block-size=TOKENS"
    )]
    BlockSize(String),
    /// What the user states is invalid, or endpoints collide.
    #[error("{0}")]
    Stated(String),
}

/// Asks an engine for its model, block size, ranks and version. If the metrics page cannot be read, its facts are taken
/// from `before`.
///
/// # Errors
/// If the engine does not answer, or does not state what the user has not stated either.
pub async fn ask(
    client: &EngineClient,
    spec: &EngineSpec,
    before: Option<&Facts>,
) -> Result<Facts, FactsError> {
    let models = get_json(client, spec, "/v1/models").await?;
    let served = served(&models);
    let model = match &spec.model {
        Some(wanted) => served.iter().find(|(name, _)| name == wanted),
        None => served.first(),
    };
    let Some((model, model_tokens_max)) = model.cloned() else {
        return Err(match &spec.model {
            Some(wanted) if !served.is_empty() => FactsError::Model {
                wanted: wanted.clone(),
                served: served.into_iter().map(|(name, _)| name).collect(),
            },
            Some(_) | None => FactsError::NoModel,
        });
    };
    let page = match get(client, spec, "/metrics").await {
        Ok(page) => read_cache_facts(&page).map_err(|error| {
            let is_other = matches!(error, ReadError::Nothing(_));
            let why = || "its /metrics is neither vLLM's nor SGLang's".to_owned();
            if is_other { why() } else { error.to_string() }
        }),
        Err(error) => Err(error.to_string()),
    };
    if let (Err(_), Some(before)) = (&page, before) {
        return Ok(Facts { model, model_tokens_max, ..before.clone() });
    }
    let version = get_json(client, spec, "/version").await.ok();
    let version = version.and_then(|text| Some(text.get("version")?.as_str()?.to_owned()));
    let stated = page.as_ref().ok();
    let of_page = stated.and_then(|page| page.block_size);
    let why = page.as_ref().err().cloned().unwrap_or_default();
    let block_size = spec.block_size.or(of_page).ok_or(FactsError::BlockSize(why))?;
    let mut ranks = stated.map_or_else(BTreeSet::new, |page| page.ranks.clone());
    if ranks.is_empty() {
        ranks.insert(0);
    }
    let kind = match stated.map(|page| page.engine) {
        Some(ScrapedEngine::Vllm) => EngineKind::Vllm,
        Some(ScrapedEngine::Sglang) => EngineKind::Sglang,
        None => EngineKind::Custom,
    };
    Ok(Facts {
        kind,
        version,
        model,
        model_tokens_max,
        block_size,
        other_block_size: of_page.filter(|size| *size != block_size),
        // With another block size, the number of blocks is another one, too.
        blocks: stated.and_then(|page| page.blocks).filter(|_| of_page == Some(block_size)),
        prefix_match_unit: stated.and_then(|page| page.prefix_match_unit),
        caches_prefixes: stated.and_then(|page| page.caches_prefixes),
        ranks,
        started_at: stated.and_then(|page| page.started_at),
    })
}

/// Models in an answer of `/v1/models`, each with its maximum length, without LoRA adapters, which name another model as
/// their parent.
fn served(answer: &Value) -> Vec<(String, Option<u64>)> {
    let models = answer.get("data").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let model = |model: &Value| {
        let text = |name| model.get(name).and_then(Value::as_str);
        let id = text("id")?;
        let length = model.get("max_model_len").and_then(Value::as_u64);
        text("parent").is_none_or(|parent| parent == id).then(|| (id.to_owned(), length))
    };
    models.iter().filter_map(model).collect()
}

async fn get_json(
    client: &EngineClient,
    spec: &EngineSpec,
    path: &'static str,
) -> Result<Value, FactsError> {
    let body = get(client, spec, path).await?;
    serde_json::from_slice(&body).map_err(|_error| FactsError::NoJson { path })
}

async fn get(
    client: &EngineClient,
    spec: &EngineSpec,
    path: &'static str,
) -> Result<Vec<u8>, FactsError> {
    let unreachable = |why: String| FactsError::Unreachable { path, why };
    let refused = |error: EngineError| match error {
        EngineError::Tls(why) => FactsError::Tls { path, why },
        EngineError::Connection(_) | EngineError::Body(_) | EngineError::Request(_) => {
            unreachable(error.to_string())
        }
    };
    let asking = async {
        let answer = client.get(&spec.url, path).await?;
        answer.whole_within(ANSWER_BYTES_MAX).await
    };
    let answer = timeout(ANSWER_TIMEOUT, asking).await;
    let late = |_late| unreachable(format!("nothing within {ANSWER_TIMEOUT:?}"));
    let answer = answer.map_err(late)?.map_err(refused)?;
    match answer.status.as_u16() {
        200 => Ok(answer.body.to_vec()),
        status @ (401 | 403) => Err(FactsError::Key { path, status }),
        status => Err(FactsError::Status { path, status }),
    }
}

/// The registration of an engine at the index.
///
/// # Errors
/// If a stated endpoint has no port, or the ranks' endpoints collide.
pub fn registration(spec: &EngineSpec, facts: &Facts) -> Result<Registration, FactsError> {
    let refused = |error: &dyn ToString| FactsError::Stated(error.to_string());
    Ok(Registration {
        worker: WorkerId::new(&spec.name()).map_err(|error| refused(&error))?,
        partition: PartitionKey::new(&facts.model, "").map_err(|error| refused(&error))?,
        block_size: facts.block_size,
        engine: facts.kind,
        endpoints: endpoints(spec, &facts.ranks)?,
        copy_mode: facts.kind.default_copy_mode(),
        loss_policy: None,
        lora_names: BTreeMap::new(),
        medium_ttls: BTreeMap::new(),
        connector_chunks: BTreeMap::new(),
        local_indexer: None,
        // This process removes its engines itself.
        lease: None,
        profile: WorkerProfile {
            total_kv_blocks: facts.blocks,
            labels: labels(spec),
            ..WorkerProfile::default()
        },
        kind: HolderKind::Worker,
        pools: Vec::new(),
        facts: EngineFacts {
            prefix_match_unit: match spec.facts.prefix_match_unit {
                0 => facts.prefix_match_unit.unwrap_or_default(),
                stated => stated,
            },
            ..spec.facts
        },
    })
}

/// Labels of the worker: address of the engine, and the pod that it is.
pub(crate) fn labels(spec: &EngineSpec) -> BTreeMap<String, String> {
    let url = spec.url.to_string().trim_end_matches('/').to_owned();
    let uid = spec.pod.iter().map(|pod| (POD_LABEL.to_owned(), pod.uid.clone()));
    uid.chain([(ADDRESS_LABEL.to_owned(), url)]).collect()
}

/// The sockets of each rank: the port of rank 0, plus the rank.
fn endpoints(spec: &EngineSpec, ranks: &BTreeSet<DpRank>) -> Result<Vec<EndpointSpec>, FactsError> {
    let host = spec.url.host().unwrap_or_default();
    let usual = |port: u16| format!("tcp://{host}:{port}");
    let events = spec.events.clone().unwrap_or_else(|| usual(EVENTS_PORT));
    let (events, first) = split_port(&events)?;
    let replay = match (&spec.replay, &spec.events) {
        (Some(replay), _) => split_port(replay)?,
        (None, Some(_)) => (events, first.saturating_add(1)),
        (None, None) => (events, REPLAY_PORT),
    };
    let ranks: Vec<_> = ranks.iter().copied().take(WORKER_ENDPOINTS_MAX).collect();
    let port = |base: u16, rank: DpRank| u16::try_from(u32::from(base) + rank).ok();
    let mut made = Vec::new();
    for rank in &ranks {
        let of_rank = port(first, *rank).zip(port(replay.1, *rank));
        let Some((at, again)) = of_rank else {
            return Err(FactsError::Stated(format!(
                "rank {rank} has no port: {first} plus the rank exceeds 65535"
            )));
        };
        made.push(EndpointSpec {
            endpoint: format!("{events}:{at}"),
            replay: Some(format!("{}:{again}", replay.0)),
            topic: String::new(),
            bind: false,
            rank: *rank,
        });
    }
    let replays: BTreeSet<_> = made.iter().filter_map(|at| at.replay.clone()).collect();
    if let Some(both) = made.iter().find(|at| replays.contains(&at.endpoint)) {
        return Err(FactsError::Stated(format!(
            "{} would be the events of rank {} and the replays of another rank: give vLLM a replay_endpoint with a port \
             beyond those of all {} ranks, and state it with replay=tcp://HOST:PORT",
            both.endpoint,
            both.rank,
            ranks.len()
        )));
    }
    Ok(made)
}

/// Splits `tcp://HOST:PORT` before its port.
fn split_port(endpoint: &str) -> Result<(&str, u16), FactsError> {
    let parts = endpoint.rsplit_once(':').filter(|(host, _)| host.starts_with("tcp://"));
    let port = parts.and_then(|(host, port)| Some((host, port.parse().ok()?)));
    port.ok_or_else(|| FactsError::Stated(format!("{endpoint:?} must be tcp://HOST:PORT")))
}

#[cfg(test)]
#[path = "facts_test.rs"]
mod tests;
