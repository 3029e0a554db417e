//! Reads clients' requests, and checks the fields that the gateway uses. The engine checks the others.

use crate::error::ApiError;
use crate::hints::{Extension, read_tokens};
use router_client::router::Hints;
use serde_json::{Map, Value};

/// Maximum prompts of one request.
const PROMPTS_MAX: usize = 1_024;

/// Kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completion,
}

/// A request of a client.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiRequest {
    /// Kind of the request.
    pub kind: Kind,
    /// Name of the model or LoRA adapter.
    pub model: String,
    /// Whether the client requested a stream.
    pub is_stream: bool,
    /// Whether the client requested the token usage at the end of the stream.
    pub wants_usage: bool,
    /// The body without `nvext`, which engines do not need.
    pub body: Map<String, Value>,
    /// The request's extension (`nvext`).
    pub extension: Extension,
}

/// The prompt of a completion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Prompt text.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
}

impl Kind {
    /// Path of the endpoint.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completion => "/v1/completions",
        }
    }

    /// The kind as a metric's label.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completion => "completion",
        }
    }
}

impl ApiRequest {
    /// Reads a request.
    ///
    /// # Errors
    /// If it cannot be parsed or a field is invalid; the error names the field.
    pub fn read(kind: Kind, bytes: &[u8]) -> Result<Self, ApiError> {
        let body: Value = serde_json::from_slice(bytes)
            .map_err(|error| ApiError::malformed(format!("The body is not JSON: {error}")))?;
        let Value::Object(mut body) = body else {
            return Err(ApiError::malformed("The body must be a JSON object"));
        };
        // Clients must not choose from where engines fetch keys and values.
        body.remove("kv_transfer_params");
        let extension = Extension::read(body.remove("nvext").as_ref())?;
        let model = body.get("model").and_then(Value::as_str).filter(|model| !model.is_empty());
        let model =
            model.ok_or_else(|| ApiError::invalid("model", "must name a model"))?.to_owned();
        let is_stream = flag(&body, "stream")?;
        let wants_usage = match body.get("stream_options").filter(|at| !at.is_null()) {
            Some(Value::Object(options)) => flag(options, "include_usage")?,
            Some(_) => return Err(ApiError::invalid("stream_options", "must be an object")),
            None => false,
        };
        let request = Self { kind, model, is_stream, wants_usage, body, extension };
        match kind {
            Kind::Chat => request.check_messages()?,
            Kind::Completion => drop(request.prompts()?),
        }
        Ok(request)
    }

    /// The messages of a conversation.
    #[must_use]
    pub fn messages(&self) -> &[Value] {
        self.body.get("messages").and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// Returns the prompts of a completion, at least one.
    ///
    /// # Errors
    /// If there is no prompt, or one is neither text nor tokens.
    pub fn prompts(&self) -> Result<Vec<Prompt>, ApiError> {
        let problem = "must be a string, a list of token ids, or a list of these";
        let refused = || ApiError::invalid("prompt", problem);
        let prompt = self.body.get("prompt").ok_or_else(refused)?;
        let one = |value: &Value| match value {
            Value::String(text) => Some(Prompt::Text(text.clone())),
            Value::Array(_) => read_tokens(value).filter(|at| !at.is_empty()).map(Prompt::Tokens),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
        };
        if let Some(only) = one(prompt) {
            return Ok(vec![only]);
        }
        let list = prompt.as_array().filter(|list| (1..=PROMPTS_MAX).contains(&list.len()));
        list.ok_or_else(refused)?.iter().map(|at| one(at).ok_or_else(refused)).collect()
    }

    /// The cache salt, from the engine's field or the extension.
    #[must_use]
    pub fn cache_salt(&self) -> &str {
        let of_body = self.body.get("cache_salt").and_then(Value::as_str);
        of_body.or(self.extension.cache_salt.as_deref()).unwrap_or("")
    }

    /// Adds the extension's salt to a body for the engine, in the field that engines read, unless the body has a salt.
    pub fn add_salt(&self, body: &mut Map<String, Value>) {
        let Some(salt) = &self.extension.cache_salt else { return };
        let own = body.entry("cache_salt").or_insert(Value::Null);
        if !own.is_string() {
            *own = Value::String(salt.clone());
        }
    }

    /// Whether the cached tokens in the engine's usage are the reuse of one prompt: the request has one prompt and one
    /// answer, the engine tokenizes it as the gateway does, and reads its cache. vLLM skips the cache if a request needs the
    /// prompt's log probabilities. An engine does not receive the extension's `token_data`.
    #[must_use]
    pub fn shows_reuse(&self) -> bool {
        let field = |name: &str| self.body.get(name).filter(|value| !value.is_null());
        let is_one = |name| field(name).is_none_or(|value| value.as_u64() == Some(1));
        let is_off = |name| field(name).is_none_or(|value| value == &Value::Bool(false));
        let has_one_prompt =
            self.kind == Kind::Chat || self.prompts().is_ok_and(|prompts| prompts.len() == 1);
        let reads_cache = field("prompt_logprobs").is_none() && is_off("echo");
        let is_tokenized = self.extension.token_data.is_none();
        has_one_prompt && is_tokenized && reads_cache && is_one("n") && is_one("best_of")
    }

    /// Hints for the choice of the worker.
    #[must_use]
    pub const fn hints(&self) -> &Hints {
        &self.extension.hints
    }

    /// Checks that the messages are a list, and that each has a role.
    fn check_messages(&self) -> Result<(), ApiError> {
        let messages = self.body.get("messages").and_then(Value::as_array);
        let messages = messages.filter(|at| !at.is_empty());
        let messages =
            messages.ok_or_else(|| ApiError::invalid("messages", "must be a list of messages"))?;
        for (number, message) in messages.iter().enumerate() {
            if !message.get("role").is_some_and(Value::is_string) {
                let field = format!("messages[{number}].role");
                return Err(ApiError::invalid(field, "must be a string"));
            }
        }
        Ok(())
    }
}

/// Reads an optional flag of the request. Missing or null means false.
fn flag(object: &Map<String, Value>, name: &str) -> Result<bool, ApiError> {
    match object.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_)) => {
            Err(ApiError::invalid(name, "must be true or false"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(kind: Kind, body: &Value) -> Result<ApiRequest, ApiError> {
        ApiRequest::read(kind, body.to_string().as_bytes())
    }

    #[test]
    fn requests_are_read_as_far_as_they_matter() {
        let body = json!({
            "model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": true,
            "stream_options": {"include_usage": true}, "temperature": "the engine's business",
            "nvext": {"agent_hints": {"osl": 3}}, "cache_salt": "s",
            "kv_transfer_params": {"do_remote_prefill": true, "remote_host": "10.0.0.1"},
        });
        let chat = read(Kind::Chat, &body).expect("a request");
        assert!(chat.is_stream && chat.wants_usage);
        assert_eq!((chat.model.as_str(), chat.cache_salt()), ("m", "s"));
        assert_eq!(chat.hints().expected_output_tokens, Some(3));
        assert!(!chat.body.contains_key("nvext") && chat.body.contains_key("temperature"));
        // Otherwise a client could choose where the engine connects to.
        assert!(!chat.body.contains_key("kv_transfer_params"), "{:?}", chat.body);
    }

    #[test]
    fn prompts_are_text_or_tokens() {
        let text = |text: &str| Prompt::Text(text.to_owned());
        for (prompt, expected) in [
            (json!("a"), vec![text("a")]),
            (json!(["a", "b"]), vec![text("a"), text("b")]),
            (json!([1, 2]), vec![Prompt::Tokens(vec![1, 2])]),
            (json!([[1], [2, 3]]), vec![Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2, 3])]),
        ] {
            let request = read(Kind::Completion, &json!({"model": "m", "prompt": prompt}));
            assert_eq!(request.and_then(|at| at.prompts()), Ok(expected));
        }
    }

    #[test]
    fn the_engine_gets_the_salt_that_the_gateway_hashes() {
        for own in [None, Some(Value::Null), Some(json!("own"))] {
            let mut body = json!({"model": "m", "prompt": "a", "nvext": {"cache_salt": "s"}});
            let fields = body.as_object_mut().expect("a body");
            fields.extend(own.map(|own| ("cache_salt".to_owned(), own)));
            let request = read(Kind::Completion, &body).expect("a request");
            let mut sent = request.body.clone();
            request.add_salt(&mut sent);
            assert_eq!(sent["cache_salt"], request.cache_salt());
        }
    }

    #[test]
    fn only_single_prompts_that_read_the_cache_show_what_is_reused() {
        let shows = |fields: Value| {
            let mut body = json!({"model": "m", "prompt": "a"});
            let fields = fields.as_object().expect("fields").clone();
            body.as_object_mut().expect("a body").extend(fields);
            read(Kind::Completion, &body).expect("a request").shows_reuse()
        };
        assert!(shows(json!({})));
        assert!(shows(json!({"echo": false, "n": 1, "best_of": null, "prompt_logprobs": null})));
        assert!(shows(json!({"prompt": [1, 2], "logprobs": 1})));
        for other in [
            json!({"echo": true}),
            json!({"prompt_logprobs": 0}),
            json!({"n": 2}),
            json!({"best_of": 2}),
            json!({"prompt": ["a", "b"]}),
            json!({"nvext": {"token_data": [1, 2]}}),
        ] {
            assert!(!shows(other.clone()), "{other}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let message = json!([{"role": "user"}]);
        for (kind, body, field) in [
            (Kind::Chat, json!({"messages": message}), "model"),
            (Kind::Chat, json!({"model": "m"}), "messages"),
            (Kind::Chat, json!({"model": "m", "messages": []}), "messages"),
            (Kind::Chat, json!({"model": "m", "messages": [{}]}), "messages[0].role"),
            (Kind::Chat, json!({"model": "m", "messages": message, "stream": 1}), "stream"),
            (Kind::Completion, json!({"model": "m"}), "prompt"),
            (Kind::Completion, json!({"model": "m", "prompt": []}), "prompt"),
            (Kind::Completion, json!({"model": "m", "prompt": [1, "a"]}), "prompt"),
            (
                Kind::Completion,
                json!({"model": "m", "prompt": "a", "stream_options": 1}),
                "stream_options",
            ),
        ] {
            let error = read(kind, &body).expect_err(field).json();
            assert_eq!(error["error"]["param"], field, "{error}");
        }
        assert!(ApiRequest::read(Kind::Chat, b"{").is_err());
        assert!(ApiRequest::read(Kind::Chat, b"[]").is_err());
    }
}
