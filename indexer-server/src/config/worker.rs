use super::ConfigError;
use crate::ingest;
use kvasir_process::text::{Span, optional, read_table};
use kvasir_proto::convert::{
    ConvertError, EndpointSpec, ImageTokens, ModelTypes, Registration, Role, WorkerProfile,
    read_connector_chunks, read_medium_ttls, read_pool_ids,
};
use kvasir_proto::limits::{
    BLOCK_SIZE_TOKENS_MAX, MEDIUM_TTL_MS_MAX, MEDIUM_TTL_MS_MIN, NAME_BYTES_MAX,
    WORKER_ENDPOINTS_MAX, WORKER_LABELS_MAX, WORKER_LORA_NAMES_MAX,
};
use kvasir_proto::types::{
    CopyMode, DpRank, EngineFacts, EngineKind, HolderKind, LossPolicy, PartitionKey, WorkerId,
    invisible_character,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Maximum number of characters of a label's key that an error repeats.
const LABEL_SHOWN_MAX: usize = 32;

/// One configured worker, or one endpoint of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "each is a key of its own")]
pub struct WorkerSpec {
    /// Name of the worker.
    pub id: String,
    /// Model of the worker.
    pub model: String,
    /// Tenant of the worker; default "".
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    /// Tokens per block.
    pub block_size: u32,
    /// vllm, sglang, trtllm or custom (default).
    #[serde(default, with = "optional", skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineKind>,
    /// Address at which the engine publishes events. `None` for a worker that uses `PublishEvents`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Address of the engine's replay socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<String>,
    /// Topic to subscribe to, or a prefix of it; default all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// Listen on `endpoint` instead of connecting to it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub bind: bool,
    /// Rank of batches without a rank; default 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dp_rank: DpRank,
    /// counted or set; the default depends on the engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_mode: Option<CopyModeName>,
    /// keep or clear; default: the option `loss-policy`.
    #[serde(default, with = "optional", skip_serializing_if = "Option::is_none")]
    pub loss_policy: Option<LossPolicy>,
    /// Names of the LoRA adapters that the engine announces only by number, by number.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lora: BTreeMap<String, String>,
    /// Time to live of blocks on a medium after their last announcement, by the medium's name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ttl: BTreeMap<String, String>,
    /// Blocks per chunk of a connector that loads only complete chunks, by the medium's name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub connector_chunk: BTreeMap<String, u32>,
    /// prefill, decode or both; for routers.
    #[serde(default, with = "optional", skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Kinds of requests that the worker serves, such as chat+completions; for routers.
    #[serde(default, with = "optional", skip_serializing_if = "Option::is_none")]
    pub model_types: Option<ModelTypes>,
    /// Tokens that the engine uses in place of an image; for gateways.
    #[serde(default, with = "optional", skip_serializing_if = "Option::is_none")]
    pub image_tokens: Option<ImageTokens>,
    /// Blocks that fit into each rank's accelerator memory; for routers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_kv_blocks: Option<u32>,
    /// Maximum tokens that each rank computes in one step; for routers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_num_batched_tokens: Option<u32>,
    /// Pools from which the worker can load blocks, such as volume-a+volume-b.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pools: Option<String>,
    /// Tokens per chunk of chunked local attention; default unknown.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attention_chunk_tokens: u32,
    /// Whether the engine drops the last cached block of a prompt, as with EAGLE or MTP.
    #[serde(default, skip_serializing_if = "is_false")]
    pub eagle_drops_block: bool,
    /// Cached tokens that the engine computes again (DeepSeek V4.1).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub replay_tokens: u32,
    /// Tokens between two lengths at which a prompt can be reused; default by the announced block sizes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub prefix_match_unit: u32,
    /// Whether the engine has KV-cache groups that it never announces (SGLang with sliding windows or Mamba).
    #[serde(default, skip_serializing_if = "is_false")]
    pub unannounced_groups: bool,
    /// Labels, by key; for routers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub label: BTreeMap<String, String>,
}

/// Name of a copy mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CopyModeName {
    /// Each store adds a copy, each removal takes one.
    Counted,
    /// One removal removes the block, after any number of stores.
    Set,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde wants it")]
const fn is_false(value: &bool) -> bool {
    !*value
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde wants it")]
const fn is_zero(value: &u32) -> bool {
    *value == 0
}

impl FromStr for WorkerSpec {
    type Err = String;

    /// Parses `key=value,key=value`, with the same keys as the file's `[[worker]]`.
    fn from_str(text: &str) -> Result<Self, String> {
        const NUMBERS: [&str; 8] = [
            "block-size",
            "dp-rank",
            "total-kv-blocks",
            "max-num-batched-tokens",
            "connector-chunk",
            "attention-chunk-tokens",
            "replay-tokens",
            "prefix-match-unit",
        ];
        const FLAGS: [&str; 3] = ["bind", "eagle-drops-block", "unannounced-groups"];
        read_table(text, &NUMBERS, &FLAGS, &["lora", "ttl", "connector-chunk", "label"])
    }
}

/// Builds the registrations of the configured workers. Merges several specs of one worker into one registration.
pub(super) fn registrations(specs: &[WorkerSpec]) -> Result<Vec<Registration>, ConfigError> {
    let mut registrations: Vec<Registration> = Vec::new();
    let mut block_sizes = BTreeMap::new();
    for (index, spec) in specs.iter().enumerate() {
        let field = |name: &str| format!("worker[{index}] ({}).{name}", spec.id);
        let mut one = registration(spec)
            .map_err(|(name, why)| ConfigError::invalid(field(name), why.to_string()))?;
        let present = *block_sizes.entry(one.partition.clone()).or_insert(one.block_size);
        if present != one.block_size {
            let why = format!("{} differs from the {present} of its partition", one.block_size);
            return Err(ConfigError::invalid(field("block-size"), why));
        }
        let same =
            |at: &&mut Registration| at.worker == one.worker && at.partition == one.partition;
        let Some(earlier) = registrations.iter_mut().find(same) else {
            registrations.push(one);
            continue;
        };
        let more = std::mem::take(&mut one.endpoints);
        let repeated =
            more.iter().any(|at| earlier.endpoints.iter().any(|it| it.endpoint == at.endpoint));
        if more.is_empty()
            || repeated
            || earlier.endpoints.len() + more.len() > WORKER_ENDPOINTS_MAX
        {
            let why = format!(
                "the worker is configured already: each further spec of it must add another endpoint, at most \
                 {WORKER_ENDPOINTS_MAX}"
            );
            return Err(ConfigError::invalid(field("endpoint"), why));
        }
        one.endpoints.clone_from(&earlier.endpoints);
        if let Some((name, first, now)) = earlier.difference(&one) {
            let why = format!("{now} here, but {first} in an earlier spec of the same worker");
            return Err(ConfigError::invalid(field(name), why));
        }
        earlier.endpoints.extend(more);
    }
    for (index, registration) in registrations.iter().enumerate() {
        ingest::check_endpoints(registration)
            .map_err(|error| ConfigError::invalid(format!("worker[{index}]"), error.to_string()))?;
    }
    ingest::check_sockets(&registrations)
        .map_err(|error| ConfigError::invalid("worker", error.to_string()))?;
    Ok(registrations)
}

type Refused = (&'static str, Box<dyn fmt::Display>);

/// Builds the registration of a worker. The error has the key and the reason.
fn registration(spec: &WorkerSpec) -> Result<Registration, Refused> {
    let refuse = |field| move |why| -> Refused { (field, Box::new(why)) };
    let engine = spec.engine.unwrap_or(EngineKind::Custom);
    if !(1..=BLOCK_SIZE_TOKENS_MAX).contains(&spec.block_size) {
        let why = format!("{} is not 1 to {BLOCK_SIZE_TOKENS_MAX}", spec.block_size);
        return Err(("block-size", Box::new(why)));
    }
    let texts = [&spec.endpoint, &spec.replay, &spec.topic];
    for (name, text) in ["endpoint", "replay", "topic"].into_iter().zip(texts) {
        let Some(text) = text else { continue };
        if text.len() > NAME_BYTES_MAX {
            let why = format!("{} bytes are too long, the limit is {NAME_BYTES_MAX}", text.len());
            return Err((name, Box::new(why)));
        }
        if name != "topic" {
            check_shown(text).map_err(|why| -> Refused { (name, Box::new(why)) })?;
        }
        if spec.endpoint.is_none() {
            return Err((name, Box::new("needs an endpoint beside it")));
        }
    }
    let endpoint = spec.endpoint.as_ref().map(|endpoint| EndpointSpec {
        endpoint: endpoint.clone(),
        replay: spec.replay.clone(),
        topic: spec.topic.clone().unwrap_or_default(),
        bind: spec.bind,
        rank: spec.dp_rank,
    });
    let copy_mode = spec.copy_mode.map(|name| match name {
        CopyModeName::Counted => CopyMode::Counted,
        CopyModeName::Set => CopyMode::Set,
    });
    Ok(Registration {
        worker: WorkerId::new(&spec.id).map_err(refuse("id"))?,
        partition: PartitionKey::new(&spec.model, &spec.tenant).map_err(refuse("model"))?,
        block_size: spec.block_size,
        engine,
        endpoints: endpoint.into_iter().collect(),
        copy_mode: copy_mode.unwrap_or(engine.default_copy_mode()),
        loss_policy: spec.loss_policy,
        lora_names: lora_names(&spec.lora).map_err(|why| -> Refused { ("lora", Box::new(why)) })?,
        medium_ttls: medium_ttls(spec).map_err(|why| -> Refused { ("ttl", Box::new(why)) })?,
        connector_chunks: read_connector_chunks(spec.connector_chunk.clone().into_iter().collect())
            .map_err(|why| -> Refused { ("connector-chunk", Box::new(why)) })?,
        local_indexer: None,
        lease: None,
        profile: profile(spec).map_err(|why| -> Refused { ("label", Box::new(why)) })?,
        kind: HolderKind::Worker,
        pools: pools(spec).map_err(|why| -> Refused { ("pools", Box::new(why)) })?,
        facts: EngineFacts {
            attention_chunk_tokens: spec.attention_chunk_tokens,
            eagle_drops_block: spec.eagle_drops_block,
            replay_tokens: spec.replay_tokens,
            prefix_match_unit: spec.prefix_match_unit,
            unannounced_groups: spec.unannounced_groups,
        },
    })
}

fn pools(spec: &WorkerSpec) -> Result<Vec<WorkerId>, ConvertError> {
    let names = spec.pools.iter().flat_map(|names| names.split('+'));
    read_pool_ids(&names.map(str::to_owned).collect::<Vec<_>>())
}

/// Checks that a name is displayed as it is, without control characters.
fn check_shown(name: &str) -> Result<(), String> {
    let control = name.chars().find(|at| at.is_control());
    match control.or_else(|| invisible_character(name)) {
        Some(at) => Err(format!("has the invisible character U+{:04X}: remove it", u32::from(at))),
        None => Ok(()),
    }
}

/// Builds the worker's profile for routers.
fn profile(spec: &WorkerSpec) -> Result<WorkerProfile, String> {
    let count = spec.label.len();
    let limit = WORKER_LABELS_MAX;
    if count > limit {
        return Err(format!("{count} labels are too many, the limit is {limit}"));
    }
    let is_bad = |(key, value): &(&String, &String)| {
        !(1..=NAME_BYTES_MAX).contains(&key.len()) || value.len() > NAME_BYTES_MAX
    };
    if let Some((key, _)) = spec.label.iter().find(is_bad) {
        let key: String = key.chars().take(LABEL_SHOWN_MAX).collect();
        return Err(format!(
            "{key:?}: a key must have 1 to {NAME_BYTES_MAX} bytes, a value at most {NAME_BYTES_MAX}"
        ));
    }
    for (key, value) in &spec.label {
        check_shown(key).and_then(|()| check_shown(value))?;
    }
    Ok(WorkerProfile {
        role: spec.role.unwrap_or_default(),
        total_kv_blocks: spec.total_kv_blocks.map(u64::from),
        max_num_batched_tokens: spec.max_num_batched_tokens.map(u64::from),
        labels: spec.label.clone(),
        model_types: spec.model_types.clone().unwrap_or_default(),
        image_tokens: spec.image_tokens,
    })
}

/// Reads the times to live of blocks, by medium.
fn medium_ttls(spec: &WorkerSpec) -> Result<BTreeMap<String, Duration>, String> {
    if spec.endpoint.is_none() && !spec.ttl.is_empty() {
        return Err("needs an endpoint beside it".to_owned());
    }
    let read = |(medium, text): (&String, &String)| {
        let ttl: Span = text.parse()?;
        let ttl_ms = ttl.millis_within(MEDIUM_TTL_MS_MIN..=MEDIUM_TTL_MS_MAX);
        let ttl_ms = ttl_ms.map_err(|why| format!("{medium} {why}"))?;
        Ok::<_, String>((medium.clone(), ttl_ms))
    };
    let ttls = spec.ttl.iter().map(read).collect::<Result<_, _>>()?;
    read_medium_ttls(ttls).map_err(|error| error.to_string())
}

/// Reads the names of LoRA adapters, by number.
fn lora_names(spec: &BTreeMap<String, String>) -> Result<BTreeMap<u64, String>, String> {
    let count = spec.len();
    let limit = WORKER_LORA_NAMES_MAX;
    if count > limit {
        return Err(format!("{count} names are too many, the limit is {limit}"));
    }
    let mut names = BTreeMap::new();
    for (number, name) in spec {
        let Ok(id) = number.parse::<u64>() else {
            return Err(format!("{number:?} is not an adapter number: write lora.7=NAME"));
        };
        if !(1..=NAME_BYTES_MAX).contains(&name.len()) {
            let bytes = name.len();
            return Err(format!(
                "the name of {id} has {bytes} bytes, it must have 1 to {NAME_BYTES_MAX}"
            ));
        }
        check_shown(name).map_err(|why| format!("the name of {id} {why}"))?;
        if names.insert(id, name.clone()).is_some() {
            return Err(format!("{id} is given twice"));
        }
    }
    Ok(names)
}
