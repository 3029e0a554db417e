//! Request bodies of clients.

use super::error::ApiError;
use super::template::Chat;
use super::text::Text;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Default number of answer tokens of `/v1/completions`, as in OpenAI's and vLLM's API.
const COMPLETION_TOKENS: usize = 16;

/// Route of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `/v1/completions`.
    Completion,
    /// `/v1/chat/completions`.
    Chat,
}

/// A request body. Fields that are not listed are ignored: sampling, tools' results, users. The field `mock_answer`
/// exists only in this engine: the tokens of the model's answer, for workloads whose later prompts continue the
/// answers.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Body {
    model: Option<String>,
    prompt: Option<Value>,
    messages: Option<Vec<Value>>,
    tools: Option<Value>,
    chat_template_kwargs: Option<Map<String, Value>>,
    add_generation_prompt: Option<bool>,
    add_special_tokens: Option<bool>,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    ignore_eos: Option<bool>,
    n: Option<u64>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    kv_transfer_params: Option<KvTransferParams>,
    mock_answer: Option<Vec<u32>>,
    cache_salt: Option<String>,
}

/// Options of a streamed answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

/// Data that vLLM's connectors exchange through the client.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct KvTransferParams {
    /// Another engine will fetch the blocks.
    pub do_remote_decode: bool,
    /// Another engine has the blocks.
    pub do_remote_prefill: bool,
    /// Id of the engine with the blocks.
    pub remote_engine_id: Option<String>,
    /// Id of the request at that engine.
    pub remote_request_id: Option<String>,
    /// Ids of the blocks at that engine.
    pub remote_block_ids: Option<Vec<u32>>,
    /// Host of that engine.
    pub remote_host: Option<String>,
    /// Port of that engine; for a mock engine, its HTTP port.
    pub remote_port: Option<u16>,
    /// Number of tensor-parallel parts of that engine; 1 for a mock engine.
    pub tp_size: Option<u32>,
}

/// Limits on requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Name of the one model.
    pub model: String,
    /// Maximum number of tokens of a prompt with its answer.
    pub model_tokens_max: usize,
    /// Number of tokens of an answer, unless the client limits it or asks for more.
    pub answer_tokens: usize,
}

/// A checked request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Route of the request.
    pub kind: Kind,
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// Cache salt.
    pub salt: Option<String>,
    /// Tokens of the answer.
    pub answer_tokens: usize,
    /// The tokens of the answer, if the client states them; at least these are generated.
    pub answer: Option<Vec<u32>>,
    /// Whether the client's limit ends the answer.
    pub is_cut: bool,
    /// Whether the answer is streamed.
    pub is_stream: bool,
    /// Whether the stream ends with the usage.
    pub has_usage: bool,
    /// Parameters for transfers between engines.
    pub transfer: KvTransferParams,
}

// === impl Body ===

impl Body {
    /// Parses a body.
    ///
    /// # Errors
    /// If the body is not JSON, or a field has the wrong type.
    pub fn read(bytes: &[u8]) -> Result<Self, ApiError> {
        serde_json::from_slice(bytes)
            .map_err(|error| ApiError::bad(None, format!("the body cannot be read: {error}")))
    }

    /// Whether the request is a chat.
    #[must_use]
    pub const fn has_messages(&self) -> bool {
        self.messages.is_some()
    }

    /// Checks the fields that do not depend on the route, and converts the prompt to tokens.
    ///
    /// # Errors
    /// If the model is unknown, a field is missing or invalid, or the tokenizer rejects the text.
    pub fn tokens(&self, kind: Kind, text: &Text, limits: &Limits) -> Result<Vec<u32>, ApiError> {
        if let Some(model) = self.model.as_ref().filter(|model| **model != limits.model) {
            let message = format!("The model `{model}` does not exist.");
            return Err(ApiError::with(StatusCode::NOT_FOUND, message));
        }
        let tokens = match kind {
            Kind::Completion => self.completion(text)?,
            Kind::Chat => self.chat(text)?,
        };
        if tokens.is_empty() {
            return Err(ApiError::bad("prompt", "the prompt has no token"));
        }
        Ok(tokens)
    }

    /// Checks the complete request.
    ///
    /// # Errors
    /// As [`tokens`](Self::tokens), or if the request uses an unsupported feature or is too long.
    pub fn asked(self, kind: Kind, text: &Text, limits: &Limits) -> Result<Asked, ApiError> {
        if self.n.unwrap_or(1) != 1 {
            return Err(ApiError::bad("n", "n must be 1"));
        }
        let prompt = self.tokens(kind, text, limits)?;
        let most = limits.model_tokens_max;
        let Some(room) = most.checked_sub(prompt.len()).filter(|room| *room > 0) else {
            let len = prompt.len();
            let message = format!(
                "This model's maximum context length is {most} tokens. The prompt has {len}, which leaves none for \
                 the answer."
            );
            return Err(ApiError::bad("prompt", message));
        };
        let limit = self.max_completion_tokens.or(self.max_tokens);
        let limit = limit.or((kind == Kind::Completion).then_some(COMPLETION_TOKENS));
        if limit == Some(0) {
            return Err(ApiError::bad("max_tokens", "max_tokens must be at least 1"));
        }
        if let Some(limit) = limit.filter(|limit| *limit > room) {
            let len = prompt.len();
            let message = format!(
                "This model's maximum context length is {most} tokens. The prompt has {len}, and max_tokens is \
                 {limit}."
            );
            return Err(ApiError::bad("max_tokens", message));
        }
        let cut = limit.unwrap_or(room);
        if self.mock_answer.as_ref().is_some_and(Vec::is_empty) {
            return Err(ApiError::bad("mock_answer", "mock_answer has no token"));
        }
        let is_endless = self.ignore_eos == Some(true);
        let natural = match &self.mock_answer {
            Some(answer) => answer.len(),
            None if is_endless => usize::MAX,
            None => limits.answer_tokens,
        };
        let usage = self.stream_options.and_then(|options| options.include_usage);
        Ok(Asked {
            kind,
            prompt,
            answer_tokens: natural.min(cut),
            answer: self.mock_answer,
            is_cut: cut <= natural,
            is_stream: self.stream == Some(true),
            has_usage: usage == Some(true),
            salt: self.cache_salt.filter(|salt| !salt.is_empty()),
            transfer: self.kv_transfer_params.unwrap_or_default(),
        })
    }

    /// The tokens of a completion's prompt: a text, token ids, or a list of one of these.
    fn completion(&self, text: &Text) -> Result<Vec<u32>, ApiError> {
        let wrong = || {
            let message =
                "prompt must be a text, an array of token ids, or an array with one of these";
            ApiError::bad("prompt", message)
        };
        let prompt = self.prompt.as_ref().filter(|prompt| !prompt.is_null());
        let prompt = prompt.ok_or_else(|| ApiError::bad("prompt", "prompt is missing"))?;
        let prompt = match prompt {
            Value::Array(list) => match list.as_slice() {
                [one @ (Value::String(_) | Value::Array(_))] => one,
                _ => prompt,
            },
            _ => prompt,
        };
        match prompt {
            Value::String(prompt) => self.encode(text, prompt, true),
            Value::Array(ids) => {
                let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
                ids.iter().map(id).collect::<Option<_>>().ok_or_else(wrong)
            }
            _ => Err(wrong()),
        }
    }

    fn chat(&self, text: &Text) -> Result<Vec<u32>, ApiError> {
        let messages = self.messages.as_ref().filter(|messages| !messages.is_empty());
        let messages = messages.ok_or_else(|| ApiError::bad("messages", "messages is missing"))?;
        let messages = messages.iter().map(flat).collect::<Result<_, _>>()?;
        let chat = Chat {
            messages,
            tools: self.tools.as_ref(),
            add_generation_prompt: self.add_generation_prompt.unwrap_or(true),
            further: self.chat_template_kwargs.clone().unwrap_or_default(),
        };
        let rendered = text.template().render(&chat);
        let rendered = rendered.map_err(|why| ApiError::bad("messages", why.to_string()))?;
        // Templates add the special tokens themselves.
        self.encode(text, &rendered, false)
    }

    fn encode(&self, text: &Text, prompt: &str, special: bool) -> Result<Vec<u32>, ApiError> {
        let special = self.add_special_tokens.unwrap_or(special);
        let tokens = text.encode(prompt, special);
        tokens.map_err(|why| ApiError::bad("prompt", format!("{why:#}")))
    }
}

/// A message whose content is one text. Parts of other kinds are rejected.
fn flat(message: &Value) -> Result<Value, ApiError> {
    let wrong = |message: &str| ApiError::bad("messages", message);
    let Value::Object(message) = message else { return Err(wrong("a message is no object")) };
    if !message.get("role").is_some_and(Value::is_string) {
        return Err(wrong("a message has no role"));
    }
    let mut message = message.clone();
    if let Some(Value::Array(parts)) = message.get("content") {
        let texts = parts.iter().map(|part| match part["type"].as_str() {
            Some("text") => part["text"].as_str(),
            _ => None,
        });
        let texts = texts.collect::<Option<Vec<_>>>();
        let texts = texts.ok_or_else(|| wrong("a message has a part that is no text"))?;
        message.insert("content".to_owned(), Value::from(texts.join("\n")));
    }
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten() {
        // Clients send the arguments as text; templates expect an object.
        let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
        let read = arguments.as_str().and_then(|text| serde_json::from_str(text).ok());
        *arguments = read.unwrap_or_else(|| arguments.take());
    }
    Ok(Value::Object(message))
}

#[cfg(test)]
#[path = "body_test.rs"]
mod body_test;
