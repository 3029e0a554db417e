//! Answers to clients in OpenAI's form.

use super::body::{Kind, KvTransferParams};
use serde_json::{Value, json};

/// Fields that all parts of an answer share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Route of the request.
    pub kind: Kind,
    /// Id of the request.
    pub id: String,
    /// Arrival time, in seconds since 1970.
    pub created: u64,
    /// Name of the model.
    pub model: String,
    /// Whether every part of a stream has a field for usage.
    pub has_usage: bool,
}

/// Token counts of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Prompt tokens that were cached.
    pub cached: usize,
    /// Tokens of the answer.
    pub answer: usize,
}

// === impl Usage ===

impl Usage {
    fn json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.answer,
            "total_tokens": self.prompt + self.answer,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        })
    }
}

// === impl Head ===

impl Head {
    /// A complete answer.
    #[must_use]
    pub fn whole(
        &self,
        text: &str,
        reason: &str,
        usage: Usage,
        transfer: Option<&KvTransferParams>,
    ) -> Value {
        let (object, choice) = match self.kind {
            Kind::Completion => (
                "text_completion",
                json!({"index": 0, "text": text, "logprobs": null, "finish_reason": reason}),
            ),
            Kind::Chat => {
                let message = json!({"role": "assistant", "content": text});
                (
                    "chat.completion",
                    json!({"index": 0, "message": message, "logprobs": null, "finish_reason": reason}),
                )
            }
        };
        let mut whole = self.object(object, vec![choice]);
        whole["usage"] = usage.json();
        whole["kv_transfer_params"] = json!(transfer);
        whole
    }

    /// The first part of a chat's stream; completions have none.
    #[must_use]
    pub fn begin(&self) -> Option<Value> {
        (self.kind == Kind::Chat)
            .then(|| self.delta(&json!({"role": "assistant", "content": ""}), None))
    }

    /// A part of a stream with some text. The last part has the reason for the end.
    #[must_use]
    pub fn part(&self, text: &str, reason: Option<&str>) -> Value {
        match self.kind {
            Kind::Completion => {
                let choice =
                    json!({"index": 0, "text": text, "logprobs": null, "finish_reason": reason});
                self.chunk("text_completion", vec![choice])
            }
            Kind::Chat => self.delta(&json!({"content": text}), reason),
        }
    }

    /// The part of a stream with the usage.
    #[must_use]
    pub fn usage(&self, usage: Usage) -> Value {
        let object = match self.kind {
            Kind::Completion => "text_completion",
            Kind::Chat => "chat.completion.chunk",
        };
        let mut part = self.object(object, Vec::new());
        part["usage"] = usage.json();
        part
    }

    fn delta(&self, delta: &Value, reason: Option<&str>) -> Value {
        let choice = json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": reason});
        self.chunk("chat.completion.chunk", vec![choice])
    }

    fn chunk(&self, object: &str, choices: Vec<Value>) -> Value {
        let mut chunk = self.object(object, choices);
        if self.has_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn object(&self, object: &str, choices: Vec<Value>) -> Value {
        let Self { id, created, model, .. } = self;
        json!({"id": id, "object": object, "created": created, "model": model, "choices": choices})
    }
}

/// Formats an event of a stream.
#[must_use]
pub fn event(data: &Value) -> String {
    format!("data: {data}\n\n")
}

/// The end of a stream.
pub const DONE: &str = "data: [DONE]\n\n";
