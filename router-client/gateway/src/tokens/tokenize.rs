//! Builds requests to vLLM's `/tokenize`: a conversation with the fields that determine its text, or one prompt.

use crate::error::ApiError;
use crate::request::{ApiRequest, Kind, Prompt};
use serde_json::{Map, Value, json};

/// Fields of a chat that `/tokenize` has under the same name.
const CHAT_FIELDS: [&str; 9] = [
    "model",
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "media_io_kwargs",
    "mm_processor_kwargs",
];
/// Fields of a chat that its template uses, and that `/tokenize` accepts only as template arguments.
const TEMPLATE_FIELDS: [&str; 2] = ["documents", "reasoning_effort"];
const TEMPLATE_ARGUMENTS: &str = "chat_template_kwargs";

/// A prompt of a request.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Wanted {
    /// Body of the call to `/tokenize`.
    Call(Value),
    /// Token ids from the request; no call is needed.
    Tokens(Vec<u32>),
}

/// Returns what makes the tokens of each prompt of a request: a call to `/tokenize`, or the tokens themselves.
///
/// # Errors
/// If the request has no prompt.
pub(super) fn wanted(request: &ApiRequest) -> Result<Vec<Wanted>, ApiError> {
    if request.kind == Kind::Chat {
        return Ok(vec![Wanted::Call(Value::Object(chat(request)))]);
    }
    let adds_special = adds_special(request);
    let prompts = request.prompts()?.into_iter().map(|prompt| match prompt {
        Prompt::Text(prompt) => {
            let model = &request.model;
            Wanted::Call(
                json!({"model": model, "prompt": prompt, "add_special_tokens": adds_special}),
            )
        }
        Prompt::Tokens(tokens) => Wanted::Tokens(tokens),
    });
    Ok(prompts.collect())
}

/// Whether the tokenizer adds special tokens to the prompt's text.
pub(super) fn adds_special(request: &ApiRequest) -> bool {
    let stated = request.body.get("add_special_tokens").and_then(Value::as_bool);
    stated.unwrap_or(request.kind == Kind::Completion)
}

/// Returns the fields of a conversation that `/tokenize` needs.
fn chat(request: &ApiRequest) -> Map<String, Value> {
    let field = |name: &str| request.body.get(name).filter(|value| !value.is_null());
    let copy = |name: &&str| field(name).map(|value| ((*name).to_owned(), value.clone()));
    let mut body: Map<_, _> = CHAT_FIELDS.iter().filter_map(copy).collect();
    let own = field(TEMPLATE_ARGUMENTS).and_then(Value::as_object);
    let mut arguments = own.cloned().unwrap_or_default();
    arguments.extend(TEMPLATE_FIELDS.iter().filter_map(copy));
    if !arguments.is_empty() {
        body.insert(TEMPLATE_ARGUMENTS.to_owned(), Value::Object(arguments));
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: Kind, body: &Value) -> Vec<Wanted> {
        let request = ApiRequest::read(kind, body.to_string().as_bytes()).expect("a request");
        wanted(&request).expect("prompts")
    }

    #[test]
    fn a_chat_is_asked_with_all_that_its_template_sees() {
        let messages = json!([{"role": "user", "content": "x"}]);
        let body = json!({
            "model": "m", "messages": messages, "temperature": 1, "tools": [{"a": 1}], "tool_choice": "auto",
            "chat_template_kwargs": {"thinking": true}, "reasoning_effort": "low", "documents": null,
        });
        let expected = json!({
            "model": "m", "messages": messages, "tools": [{"a": 1}],
            "chat_template_kwargs": {"thinking": true, "reasoning_effort": "low"},
        });
        assert_eq!(of(Kind::Chat, &body), [Wanted::Call(expected)]);
        let bare = json!({"model": "m", "messages": messages});
        assert_eq!(of(Kind::Chat, &bare), [Wanted::Call(bare)]);
    }

    #[test]
    fn a_completion_is_asked_prompt_by_prompt() {
        let body = json!({"model": "m", "prompt": ["a", [1, 2]], "max_tokens": 3});
        let first = json!({"model": "m", "prompt": "a", "add_special_tokens": true});
        assert_eq!(of(Kind::Completion, &body), [Wanted::Call(first), Wanted::Tokens(vec![1, 2])]);
    }
}
