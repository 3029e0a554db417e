//! Reads and checks requests.

use kvasir_proto::convert::{
    ConvertError, FindQuery, ModelType, Problem, QueryInput, Role, take_prompt,
};
use kvasir_proto::limits::{NAME_BYTES_MAX, QUERY_WORKER_IDS_MAX, WORKER_LABELS_MAX};
use kvasir_proto::pb;
use kvasir_proto::types::{LocalHash, PartitionKey, WorkerId};
use router_client::HashedPrompt;
use router_client::route::{BusyThresholds, Mode, Pin, PreferredLabel, REQUEST_TOKENS_MAX};
use router_client::router::{Filter, Hints};
use std::collections::BTreeSet;
use std::time::Duration;

/// A checked `SelectWorkerRequest`.
#[derive(Debug)]
pub(super) struct Select {
    pub(super) partition: PartitionKey,
    pub(super) hints: Hints,
    pub(super) is_dry_run: bool,
    pub(super) is_disaggregated: bool,
    block_size: Option<u32>,
    /// Removed once the prompt is hashed, so that queued requests keep no tokens.
    input: Option<QueryInput>,
    next_tokens: Option<Vec<u32>>,
    input_tokens: Option<u64>,
}

impl Select {
    /// Reads a request. `queue_timeout` is the maximum wait, and the default for requests that state none.
    pub(super) fn from_request(
        mut request: pb::SelectWorkerRequest,
        queue_timeout: Duration,
    ) -> Result<Self, ConvertError> {
        let has_locals = !request.local_hashes.is_empty();
        let max = REQUEST_TOKENS_MAX;
        if let Some(value) = request.input_tokens.filter(|tokens| *tokens > max) {
            return Err(ConvertError::new(
                "input_tokens",
                Problem::OutOfRange { value, min: 0, max },
            ));
        }
        if request.input_tokens.is_some() && !has_locals {
            return Err(mismatch("input_tokens", "is set", "only with local_hashes"));
        }
        let is_disaggregated = request.disaggregate;
        if is_disaggregated && (request.dry_run || !request.roles.is_empty()) {
            return Err(mismatch("disaggregate", "is set", "without dry_run and roles"));
        }
        let query = take_prompt(&mut request)?;
        let FindQuery { partition, block_size, input, next_tokens, .. } = query;
        let is_dry_run = request.dry_run;
        let input_tokens = request.input_tokens;
        let hints = hints(request, queue_timeout)?;
        let input = Some(input);
        Ok(Self {
            partition,
            hints,
            is_dry_run,
            is_disaggregated,
            block_size,
            input,
            next_tokens,
            input_tokens,
        })
    }

    /// Removes the prompt from the request and hashes it. Fails if the request states another block size than the
    /// workers'.
    pub(super) fn take_prompt(&mut self, block_size: u32) -> Result<HashedPrompt, String> {
        if let Some(stated) = self.block_size.filter(|stated| *stated != block_size) {
            return Err(format!(
                "block_size is {stated}, must be {block_size}: that of the workers"
            ));
        }
        let input = self.input.take().ok_or("the prompt was taken before")?;
        let mut buffer = Vec::new();
        let locals = input.local_hashes(block_size, &mut buffer);
        let locals = locals.map_err(|error| error.to_string())?.unwrap_or_default();
        let whole_tokens = locals.len() as u64 * u64::from(block_size);
        let input_tokens = match &input {
            QueryInput::Tokens { tokens, .. } => tokens.count() as u64,
            QueryInput::Locals(_) | QueryInput::Names(_) => {
                self.input_tokens.unwrap_or(whole_tokens).max(whole_tokens)
            }
        };
        Ok(HashedPrompt {
            model: self.partition.model().to_owned(),
            tenant: self.partition.tenant().to_owned(),
            block_size,
            input_tokens,
            local_hashes: locals.iter().map(|LocalHash(hash)| *hash).collect(),
            next_tokens: match self.next_tokens.take() {
                Some(next_tokens) => next_tokens,
                None => input.next_tokens(block_size),
            },
            minimum_overlap_blocks: 1,
            top_k: 0,
            shared: true,
        })
    }
}

/// Checks and converts a request's hints. Waits in the queue are limited to `most`.
fn hints(request: pb::SelectWorkerRequest, most: Duration) -> Result<Hints, ConvertError> {
    let mode = mode(request.mode)?;
    let some = |text: String| Some(text).filter(|text| !text.is_empty());
    let wait = request.queue_timeout_ms.map(|ms| Duration::from_millis(ms.into()));
    let labels = request.preferred_labels;
    check_count("preferred_labels", labels.len(), WORKER_LABELS_MAX)?;
    check_count("required_labels", request.required_labels.len(), WORKER_LABELS_MAX)?;
    // Queued requests keep all texts, so the sizes of the texts are checked.
    labels.iter().try_for_each(|at| check_label("preferred_labels", &at.key, &at.value))?;
    let mut required = request.required_labels.iter();
    required.try_for_each(|at| check_label("required_labels", &at.key, &at.value))?;
    check_bytes("lora_name", &request.lora_name)?;
    let roles = request.roles.into_iter().map(role).collect::<Result<_, _>>()?;
    let pin = request.pinned.map(|at| {
        let worker = worker("pinned.worker_id", &at.worker_id)?;
        Ok::<_, ConvertError>(Pin { worker, rank: at.dp_rank })
    });
    Ok(Hints {
        mode,
        overlap_score_weight: request.overlap_score_weight,
        temperature: request.temperature,
        filter: Filter {
            pin: pin.transpose()?,
            allowed: workers("allowed_worker_ids", &request.allowed_worker_ids)?,
            excluded: workers("excluded_worker_ids", &request.excluded_worker_ids)?,
            roles,
            model_type: ModelType::read("model_type", request.model_type)?,
            labels: request.required_labels.into_iter().map(|at| (at.key, at.value)).collect(),
        },
        preferred_labels: labels.into_iter().map(preferred).collect(),
        session: some(request.session_id),
        adapter: some(request.lora_name),
        expected_output_tokens: request.expected_output_tokens,
        latency_sensitivity_secs: request.latency_sensitivity,
        queue_timeout: Some(wait.unwrap_or(most).min(most)),
        request_id: some(request.request_id),
        explain: request.explain,
    })
}

fn preferred(label: pb::PreferredLabel) -> PreferredLabel {
    let pb::PreferredLabel { key, value, weight } = label;
    PreferredLabel { key, value, weight: weight.unwrap_or(1.0) }
}

/// Converts a mode, or returns `None` for the default mode.
fn mode(value: i32) -> Result<Option<Mode>, ConvertError> {
    let mode = match pb::RouterMode::try_from(value) {
        Ok(pb::RouterMode::Unspecified) => return Ok(None),
        Ok(pb::RouterMode::Kv) => Mode::Kv,
        Ok(pb::RouterMode::RoundRobin) => Mode::RoundRobin,
        Ok(pb::RouterMode::Random) => Mode::Random,
        Ok(pb::RouterMode::Direct) => Mode::Direct,
        Ok(pb::RouterMode::PowerOfTwo) => Mode::PowerOfTwo,
        Ok(pb::RouterMode::LeastLoaded) => Mode::LeastLoaded,
        Err(_) => return Err(ConvertError::new("mode", Problem::UnknownValue(value))),
    };
    Ok(Some(mode))
}

/// Converts the number of a worker role.
fn role(value: i32) -> Result<Role, ConvertError> {
    match pb::WorkerRole::try_from(value) {
        Ok(pb::WorkerRole::Prefill) => Ok(Role::Prefill),
        Ok(pb::WorkerRole::Decode) => Ok(Role::Decode),
        Ok(pb::WorkerRole::Both) => Ok(Role::Both),
        Ok(pb::WorkerRole::Unspecified) => Ok(Role::Unspecified),
        Err(_) => Err(ConvertError::new("roles", Problem::UnknownValue(value))),
    }
}

/// Reads worker ids, or returns `None` for an empty list.
fn workers(
    field: &'static str,
    ids: &[String],
) -> Result<Option<BTreeSet<WorkerId>>, ConvertError> {
    check_count(field, ids.len(), QUERY_WORKER_IDS_MAX)?;
    if ids.is_empty() {
        return Ok(None);
    }
    ids.iter().map(|id| worker(field, id)).collect::<Result<_, _>>().map(Some)
}

fn worker(field: &'static str, id: &str) -> Result<WorkerId, ConvertError> {
    WorkerId::new(id).map_err(|error| mismatch(field, &format!("{id:?} {error}"), "a worker's id"))
}

fn check_count(field: &'static str, count: usize, limit: usize) -> Result<(), ConvertError> {
    if count > limit {
        return Err(ConvertError::new(field, Problem::TooMany { count, limit }));
    }
    Ok(())
}

fn check_label(field: &'static str, key: &str, value: &str) -> Result<(), ConvertError> {
    check_bytes(field, key)?;
    check_bytes(field, value)
}

/// Checks the length of a text. Workers cannot publish longer ones.
fn check_bytes(field: &'static str, text: &str) -> Result<(), ConvertError> {
    if text.len() > NAME_BYTES_MAX {
        let expected = format!("at most {NAME_BYTES_MAX} bytes");
        return Err(mismatch(field, &format!("a text of {} bytes", text.len()), &expected));
    }
    Ok(())
}

fn mismatch(field: &'static str, actual: &str, expected: &str) -> ConvertError {
    let actual = actual.to_owned();
    let expected = expected.to_owned();
    ConvertError::new(field, Problem::Mismatch { actual, expected })
}

/// Reads the bytes fetched from peers for a request, and the time that they took. Fails if only one is given.
pub(super) fn fetched(
    bytes: Option<u64>,
    micros: Option<u64>,
) -> Result<Option<(u64, Duration)>, ConvertError> {
    match (bytes, micros) {
        (None, None) => Ok(None),
        (Some(bytes), Some(micros)) => Ok(Some((bytes, Duration::from_micros(micros)))),
        (Some(_), None) => Err(mismatch("fetched_bytes", "is set", "with fetch_us only")),
        (None, Some(_)) => Err(mismatch("fetch_us", "is set", "with fetched_bytes only")),
    }
}

/// Reads the thresholds of a request.
pub(super) fn busy(thresholds: Option<pb::BusyThresholds>) -> Result<BusyThresholds, ConvertError> {
    let pb::BusyThresholds {
        active_decode_blocks,
        active_prefill_tokens,
        active_prefill_tokens_fraction,
    } = thresholds.ok_or_else(|| ConvertError::new("thresholds", Problem::Required))?;
    Ok(BusyThresholds {
        active_decode_blocks,
        active_prefill_tokens,
        active_prefill_tokens_fraction,
    })
}
