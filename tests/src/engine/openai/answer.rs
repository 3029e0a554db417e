//! What clients get.

use super::body::{Kind, KvTransferParams};
use serde_json::{Value, json};

/// What all parts of an answer state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Its route.
    pub kind: Kind,
    /// The id of the request.
    pub id: String,
    /// When it came, in seconds since 1970.
    pub created: u64,
    /// The model.
    pub model: String,
    /// Whether every part of a stream has a field for usage.
    pub has_usage: bool,
}

/// Tokens of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Of its prompt.
    pub prompt: usize,
    /// Of these, those that were not computed.
    pub cached: usize,
    /// Of its answer.
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
    /// A whole answer.
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

    /// The part of a stream with which a chat begins; completions have none.
    #[must_use]
    pub fn begin(&self) -> Option<Value> {
        (self.kind == Kind::Chat)
            .then(|| self.delta(&json!({"role": "assistant", "content": ""}), None))
    }

    /// The part of a stream with some text; the last one says why it ends.
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

/// An event of a stream.
#[must_use]
pub fn event(data: &Value) -> String {
    format!("data: {data}\n\n")
}

/// The end of a stream.
pub const DONE: &str = "data: [DONE]\n\n";
