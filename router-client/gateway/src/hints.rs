//! Reads the request extension `nvext`, with the names of document 004 and of current Dynamo.

use crate::error::ApiError;
use crate::prompt::{PromptTokens, read_images};
use kvasir_proto::types::WorkerId;
use router_client::route::Pin;
use router_client::router::Hints;
use serde_json::{Map, Value};
use std::sync::Arc;

/// Maximum tokens that a client may send instead of text.
const TOKENS_MAX: usize = 1 << 21;
/// Maximum seconds by which a request may count as arrived earlier.
const JUMP_SECONDS_MAX: f64 = 3_600.0;

/// The extension of a request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Extension {
    /// Hints for the choice of the worker.
    pub hints: Hints,
    /// Whether to prefill the conversation with the answer for the next turn.
    pub speculative_prefill: bool,
    /// The prompt's tokens with its images, if the client sends them.
    pub token_data: Option<Arc<PromptTokens>>,
    /// The cache salt.
    pub cache_salt: Option<String>,
}

impl Extension {
    /// Reads `nvext`. Unknown fields are ignored.
    ///
    /// # Errors
    /// If a field is invalid; the error names it.
    pub fn read(nvext: Option<&Value>) -> Result<Self, ApiError> {
        let Some(nvext) = nvext.filter(|at| !at.is_null()) else { return Ok(Self::default()) };
        let nvext = Fields::from_value("nvext", nvext)?;
        let mut read = Self::default();
        if let Some(hints) = nvext.0.get("agent_hints").filter(|at| !at.is_null()) {
            let hints = Fields::from_value("nvext.agent_hints", hints)?;
            read.hints.expected_output_tokens = hints.integer("osl")?;
            // One setting with three names: the documents', the queue's and the current one.
            let jumps = ["latency_sensitivity", "priority_jump", "priority"];
            for name in jumps {
                let seconds = hints.number(name, JUMP_SECONDS_MAX)?.unwrap_or(0.0);
                let most = read.hints.latency_sensitivity_secs.max(seconds);
                read.hints.latency_sensitivity_secs = most;
            }
            let weight = hints.number("kv_overlap_score_weight", f64::MAX)?;
            read.hints.overlap_score_weight = weight;
            read.speculative_prefill = hints.flag("speculative_prefill")?;
        }
        read.hints.filter.pin = nvext.pin()?;
        read.hints.session = nvext.text("session_id")?;
        read.cache_salt = nvext.text("cache_salt")?;
        read.token_data = nvext.prompt()?;
        Ok(read)
    }
}

/// The fields of an object, with its path.
struct Fields<'a>(&'a Map<String, Value>, &'static str);

impl<'a> Fields<'a> {
    fn from_value(path: &'static str, value: &'a Value) -> Result<Self, ApiError> {
        let object = value.as_object();
        object.map(|at| Self(at, path)).ok_or_else(|| ApiError::invalid(path, "must be an object"))
    }

    fn get(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|at| !at.is_null())
    }

    fn refused(&self, name: &str, problem: &str) -> ApiError {
        ApiError::invalid(format!("{}.{name}", self.1), problem)
    }

    fn integer(&self, name: &str) -> Result<Option<u64>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let value = value.as_u64();
        value.map(Some).ok_or_else(|| self.refused(name, "must be a whole number, 0 or more"))
    }

    /// Reads an optional number from 0 to `max`.
    fn number(&self, name: &str, max: f64) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let value = value.as_f64().filter(|at| (0.0..=max).contains(at));
        let problem = || match max < f64::MAX {
            true => format!("must be a number between 0 and {max}"),
            false => "must be a number, 0 or more".to_owned(),
        };
        value.map(Some).ok_or_else(|| self.refused(name, &problem()))
    }

    fn flag(&self, name: &str) -> Result<bool, ApiError> {
        let Some(value) = self.get(name) else { return Ok(false) };
        value.as_bool().ok_or_else(|| self.refused(name, "must be true or false"))
    }

    fn text(&self, name: &str) -> Result<Option<String>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let text = value.as_str().map(str::to_owned);
        text.map(Some).ok_or_else(|| self.refused(name, "must be a string"))
    }

    /// Reads the prompt's tokens and images, or returns `None` if both are missing. Fails if only images are given.
    fn prompt(&self) -> Result<Option<Arc<PromptTokens>>, ApiError> {
        const TOKENS: &str = "token_data";
        const IMAGES: &str = "multimodal";
        let images = self.get(IMAGES).map(|images| {
            let form = "must be a list of identifier, token_offset and token_count";
            read_images(images).ok_or_else(|| self.refused(IMAGES, form))
        });
        let images = images.transpose()?;
        let Some(value) = self.get(TOKENS) else {
            let problem = "needs token_data, the tokens among which they are";
            return images.map_or(Ok(None), |_| Err(self.refused(IMAGES, problem)));
        };
        let tokens = read_wide_tokens(value);
        let tokens = tokens.ok_or_else(|| self.refused(TOKENS, "must be a list of token ids"))?;
        let prompt = PromptTokens::from(tokens).with_images(images.unwrap_or_default());
        let prompt = prompt.map_err(|problem| self.refused(IMAGES, problem.trim_start()))?;
        Ok(Some(Arc::new(prompt)))
    }

    /// Reads the worker that the request names, as a string or a number.
    fn pin(&self) -> Result<Option<Pin>, ApiError> {
        let names = ["backend_instance_id", "decode_worker_id", "worker_id"];
        let Some((name, value)) = names.iter().find_map(|name| Some((*name, self.get(name)?)))
        else {
            return Ok(None);
        };
        let id = match value {
            Value::String(id) => id.clone(),
            Value::Number(id) => id.to_string(),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => {
                return Err(self.refused(name, "must be the id of a worker"));
            }
        };
        let worker = WorkerId::new(&id).map_err(|error| self.refused(name, &error.to_string()))?;
        let rank = self.integer("dp_rank")?.map(u32::try_from).transpose();
        let rank = rank.map_err(|_large| self.refused("dp_rank", "is no rank"))?;
        Ok(Some(Pin { worker, rank }))
    }
}

/// A list of 32-bit token ids, as engines read them. `None` if it is not such a list, or too long.
pub(crate) fn read_tokens(value: &Value) -> Option<Vec<u32>> {
    let tokens = read_wide_tokens(value)?;
    tokens.into_iter().map(|id| u32::try_from(id).ok()).collect()
}

/// A list of token ids as engines hash them, up to 64 bits. `None` if it is not such a list, or too long.
fn read_wide_tokens(value: &Value) -> Option<Vec<u64>> {
    let list = value.as_array().filter(|list| list.len() <= TOKENS_MAX)?;
    list.iter().map(Value::as_u64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn hints_have_the_documents_names() {
        let read = Extension::read(Some(&json!({
            "agent_hints": {
                "osl": 40, "latency_sensitivity": 2.5, "priority": 1,
                "kv_overlap_score_weight": 0.5, "speculative_prefill": true, "later": {},
            },
            "backend_instance_id": 7, "dp_rank": 1, "session_id": "s", "cache_salt": "t",
            "token_data": [1, 2],
        })));
        let read = read.expect("hints");
        assert_eq!(read.hints.expected_output_tokens, Some(40));
        assert!((read.hints.latency_sensitivity_secs - 2.5).abs() < 1e-9, "{read:?}");
        assert_eq!(read.hints.overlap_score_weight, Some(0.5));
        assert!(read.speculative_prefill);
        let worker = WorkerId::new("7").expect("a name");
        assert_eq!(read.hints.filter.pin, Some(Pin { worker, rank: Some(1) }));
        assert_eq!(
            (read.hints.session.as_deref(), read.cache_salt.as_deref()),
            (Some("s"), Some("t"))
        );
        assert_eq!(read.token_data.as_deref(), Some(&vec![1_u32, 2].into()));
        assert_eq!(Extension::read(None), Ok(Extension::default()));
        assert_eq!(Extension::read(Some(&Value::Null)), Ok(Extension::default()));
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        for (nvext, field) in [
            (json!(1), "nvext"),
            (json!({"agent_hints": []}), "nvext.agent_hints"),
            (json!({"agent_hints": {"osl": -1}}), "nvext.agent_hints.osl"),
            (json!({"agent_hints": {"osl": 1.5}}), "nvext.agent_hints.osl"),
            (
                json!({"agent_hints": {"latency_sensitivity": 3601}}),
                "nvext.agent_hints.latency_sensitivity",
            ),
            (json!({"agent_hints": {"priority_jump": "a"}}), "nvext.agent_hints.priority_jump"),
            (
                json!({"agent_hints": {"kv_overlap_score_weight": -1}}),
                "nvext.agent_hints.kv_overlap_score_weight",
            ),
            (
                json!({"agent_hints": {"speculative_prefill": 1}}),
                "nvext.agent_hints.speculative_prefill",
            ),
            (json!({"backend_instance_id": []}), "nvext.backend_instance_id"),
            (json!({"backend_instance_id": "w", "dp_rank": 1u64 << 40}), "nvext.dp_rank"),
            (json!({"token_data": [1, -1]}), "nvext.token_data"),
            (json!({"multimodal": []}), "nvext.multimodal"),
            (json!({"token_data": [1], "multimodal": {}}), "nvext.multimodal"),
            (json!({"token_data": [1], "multimodal": [{"identifier": "a"}]}), "nvext.multimodal"),
            (
                json!({
                    "token_data": [1],
                    "multimodal": [{"identifier": "a", "token_offset": 0, "token_count": 2}],
                }),
                "nvext.multimodal",
            ),
            (json!({"cache_salt": 1}), "nvext.cache_salt"),
        ] {
            let error = Extension::read(Some(&nvext)).expect_err(field).json();
            assert_eq!(error["error"]["param"], field, "{error}");
        }
    }
}
