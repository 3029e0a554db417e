//! Reads engines' answers: splits streams into server-sent events, and counts tokens.

use axum::body::Bytes;
use futures::{Stream, StreamExt};
use kvasir_engine_http::EngineError;
use serde_json::Value;
use std::time::Duration;

/// Maximum size of an event in bytes.
const EVENT_BYTES_MAX: usize = 8 << 20;
/// Maximum bytes of an answer's text that are kept for the next turn.
const TEXT_BYTES_MAX: usize = 1 << 20;
/// Marker after the last event.
const DONE: &[u8] = b"[DONE]";

/// A stream of server-sent events.
#[derive(Debug)]
pub struct Events<S> {
    pieces: S,
    buffer: Vec<u8>,
    /// Number of buffered bytes already searched for the end of an event.
    searched: usize,
    has_ended: bool,
}

/// Token counts and text of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Output tokens, as the engine counts them; without its count, one per event with output.
    pub output_tokens: u64,
    /// Prompt tokens, as the engine counts them.
    pub prompt_tokens: Option<u64>,
    /// Prompt tokens that the engine had cached.
    pub cached_tokens: Option<u64>,
    /// Bytes that the engine's agent fetched from peers, and how long this took.
    pub fetched: Option<(u64, Duration)>,
    /// Text of the first choice, if kept; `None` once it is too long or contains more than text.
    text: Option<String>,
    keeps_text: bool,
}

/// Kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// A part of the answer.
    Part,
    /// Only the usage of tokens.
    Usage,
    /// The end marker.
    Done,
    /// An error of the engine.
    Error,
}

// === impl Events ===

impl<S> Events<S>
where
    S: Stream<Item = Result<Bytes, EngineError>> + Unpin,
{
    /// Splits a stream into events.
    pub const fn new(pieces: S) -> Self {
        Self { pieces, buffer: Vec::new(), searched: 0, has_ended: false }
    }

    /// Returns the next event including its final empty line, or `None` at the end of the stream.
    ///
    /// # Errors
    /// If the stream breaks, or an event is too long.
    pub async fn next(&mut self) -> Result<Option<Bytes>, EngineError> {
        loop {
            if let Some(end) = self.end_of_event() {
                let rest = self.buffer.split_off(end);
                let event = std::mem::replace(&mut self.buffer, rest);
                self.searched = 0;
                return Ok(Some(event.into()));
            }
            if self.buffer.len() > EVENT_BYTES_MAX {
                let why = format!("an event has more than {EVENT_BYTES_MAX} bytes");
                return Err(EngineError::Body(why));
            }
            match self.pieces.next().await {
                Some(piece) => self.buffer.extend_from_slice(&piece?),
                None if self.has_ended || self.buffer.is_empty() => return Ok(None),
                None => {
                    self.has_ended = true;
                    self.searched = 0;
                    return Ok(Some(std::mem::take(&mut self.buffer).into()));
                }
            }
        }
    }

    /// Returns the end of the first event in the buffer, or `None` if the event is incomplete.
    fn end_of_event(&mut self) -> Option<usize> {
        let from = self.searched.saturating_sub(3);
        let rest = self.buffer.get(from..)?;
        let ends = [&b"\n\n"[..], b"\r\n\r\n"].map(|end| {
            rest.windows(end.len()).position(|at| at == end).map(|at| from + at + end.len())
        });
        self.searched = self.buffer.len();
        ends.into_iter().flatten().min()
    }
}

// === impl Tally ===

impl Tally {
    /// An empty tally. `keeps_text`: whether to keep the answer's text.
    #[must_use]
    pub fn new(keeps_text: bool) -> Self {
        Self { keeps_text, text: keeps_text.then(String::new), ..Self::default() }
    }

    /// The text of the first choice, if it was kept and is not empty.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        self.text.as_deref().filter(|text| !text.is_empty())
    }

    /// Counts the tokens in an event of a stream. Returns the kind of the event.
    pub fn event(&mut self, event: &[u8]) -> EventKind {
        let Some(data) = data(event) else { return EventKind::Part };
        if data == DONE {
            return EventKind::Done;
        }
        let Ok(value) = serde_json::from_slice::<Value>(&data) else { return EventKind::Part };
        if value.get("error").is_some_and(|at| !at.is_null()) {
            return EventKind::Error;
        }
        let choices = value.get("choices").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let with_output = choices.iter().filter(|choice| has_output(choice)).count();
        self.output_tokens += with_output as u64;
        for choice in choices {
            self.append_text(choice, "/delta/content");
        }
        self.read_fetched(&value);
        let has_usage = self.usage(&value);
        if choices.is_empty() && has_usage { EventKind::Usage } else { EventKind::Part }
    }

    /// Counts the tokens in a complete answer that was not streamed, and returns it. Returns `None` for invalid JSON.
    pub fn whole(&mut self, body: &[u8]) -> Option<Value> {
        let value: Value = serde_json::from_slice(body).ok()?;
        let choices = value.get("choices").and_then(Value::as_array);
        for choice in choices.into_iter().flatten() {
            self.append_text(choice, "/message/content");
        }
        self.read_fetched(&value);
        self.usage(&value);
        Some(value)
    }

    /// Reads a fetch report of the engine's KV connector.
    fn read_fetched(&mut self, value: &Value) {
        let fetched = value.pointer("/kv_transfer_params/kvasir_fetched");
        let number = |name: &str| fetched?.get(name)?.as_u64();
        let fetched = number("bytes").zip(number("us").map(Duration::from_micros));
        self.fetched = fetched.or(self.fetched);
    }

    /// Reads the token counts of an answer or chunk. Returns false if it has no `usage`.
    fn usage(&mut self, value: &Value) -> bool {
        let Some(usage) = value.get("usage").filter(|at| at.is_object()) else { return false };
        let number = |path: &str| usage.pointer(path).and_then(Value::as_u64);
        self.output_tokens = number("/completion_tokens").unwrap_or(self.output_tokens);
        self.prompt_tokens = number("/prompt_tokens").or(self.prompt_tokens);
        let cached = number("/prompt_tokens_details/cached_tokens");
        self.cached_tokens = cached.or(self.cached_tokens);
        true
    }

    /// Appends to the kept text of the first choice. Drops the text for good if it is too long, or if the answer has
    /// tool calls, because such an answer cannot be continued.
    fn append_text(&mut self, choice: &Value, path: &str) {
        if !self.keeps_text || choice.get("index").and_then(Value::as_u64).unwrap_or(0) != 0 {
            return;
        }
        let text = choice.pointer(path).or_else(|| choice.get("text")).and_then(Value::as_str);
        let has_calls = ["/delta/tool_calls", "/message/tool_calls"].iter().any(|at| {
            choice.pointer(at).and_then(Value::as_array).is_some_and(|at| !at.is_empty())
        });
        if let (Some(kept), Some(text)) = (&mut self.text, text) {
            kept.push_str(text);
        }
        let is_too_long = self.text.as_ref().is_some_and(|kept| kept.len() > TEXT_BYTES_MAX);
        if has_calls || is_too_long {
            self.text = None;
        }
    }
}

/// Returns whether a choice contains output: text, reasoning or tool calls.
fn has_output(choice: &Value) -> bool {
    let is_full = |at: &Value| match at {
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => false,
    };
    let paths = [
        "/text",
        "/delta/content",
        "/delta/reasoning",
        "/delta/reasoning_content",
        "/delta/tool_calls",
    ];
    paths.iter().any(|path| choice.pointer(path).is_some_and(is_full))
}

/// The data of an event, with its lines joined.
fn data(event: &[u8]) -> Option<Vec<u8>> {
    let lines = event.split(|at| *at == b'\n').filter_map(|line| line.strip_prefix(b"data:"));
    let lines: Vec<_> = lines.map(<[u8]>::trim_ascii).collect();
    (!lines.is_empty()).then(|| lines.join(&b'\n'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;

    fn events(
        pieces: &[&str],
    ) -> Events<impl Stream<Item = Result<Bytes, EngineError>> + Unpin + use<>> {
        let pieces: Vec<_> = pieces.iter().map(|at| Ok(Bytes::from((*at).to_owned()))).collect();
        Events::new(stream::iter(pieces))
    }

    async fn all(pieces: &[&str]) -> Vec<String> {
        let mut events = events(pieces);
        let mut found = Vec::new();
        while let Some(event) = events.next().await.expect("an event") {
            found.push(String::from_utf8(event.to_vec()).expect("text"));
        }
        found
    }

    #[tokio::test]
    async fn events_are_cut_wherever_pieces_end() {
        let text = "data: a\n\ndata: b\r\n\r\n: c\n\ndata: d";
        let expected = ["data: a\n\n", "data: b\r\n\r\n", ": c\n\n", "data: d"];
        assert_eq!(all(&[text]).await, expected);
        for cut in 1..text.len() {
            let (head, tail) = text.split_at(cut);
            assert_eq!(all(&[head, tail]).await, expected, "cut at {cut}");
        }
        let single: Vec<_> = text.split_inclusive(|_| true).collect();
        assert_eq!(all(&single).await, expected);
    }

    #[tokio::test]
    async fn an_endless_event_is_an_error() {
        let piece = "x".repeat(1 << 20);
        let mut events = events(&[&*piece; 10]);
        let error = events.next().await.expect_err("too long");
        assert!(error.to_string().contains("more than"), "{error}");
    }

    #[test]
    fn events_are_counted_until_the_engine_says() {
        let mut tally = Tally::new(true);
        let part = |text: &str| {
            format!(
                "data: {{\"choices\": [{{\"index\": 0, \"delta\": {{\"content\": \"{text}\"}}}}]}}\n\n"
            )
        };
        for text in ["", "he", "llo"] {
            assert_eq!(tally.event(part(text).as_bytes()), EventKind::Part);
        }
        assert_eq!((tally.output_tokens, tally.text()), (2, Some("hello")));
        let usage =
            b"data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 9, \"completion_tokens\": 3, \
            \"prompt_tokens_details\": {\"cached_tokens\": 4}}}\n\n";
        assert_eq!(tally.event(usage), EventKind::Usage);
        assert_eq!(
            (tally.output_tokens, tally.prompt_tokens, tally.cached_tokens),
            (3, Some(9), Some(4))
        );
        assert_eq!(tally.event(b"data: {\"error\": {\"message\": \"x\"}}\n\n"), EventKind::Error);
        assert_eq!(tally.event(b"data: [DONE]\n\n"), EventKind::Done);
        assert_eq!(tally.event(b": a comment\n\n"), EventKind::Part);
    }

    #[test]
    fn a_fetch_is_known_by_what_the_engine_returns() {
        let mut tally = Tally::new(false);
        let body =
            br#"{"choices": [], "kv_transfer_params": {"kvasir_fetched": {"bytes": 9, "us": 7}}}"#;
        assert!(tally.whole(body).is_some());
        let fetched = Some((9, Duration::from_micros(7)));
        assert_eq!(tally.fetched, fetched);
        tally.event(
            br#"data: {"choices": [], "kv_transfer_params": {"kvasir_fetched": {"bytes": 1}}}"#,
        );
        assert_eq!(tally.fetched, fetched, "the time is missing");
    }

    #[test]
    fn calls_of_tools_are_no_text() {
        let mut tally = Tally::new(true);
        let body = br#"{"choices": [{"index": 0, "message": {"content": "a", "tool_calls": [{}]}}], "usage": {"completion_tokens": 7}}"#;
        assert!(tally.whole(body).is_some());
        assert_eq!((tally.text(), tally.output_tokens), (None, 7));
        let mut tally = Tally::new(true);
        tally.whole(br#"{"choices": [{"index": 0, "text": "b"}, {"index": 1, "text": "c"}]}"#);
        assert_eq!(tally.text(), Some("b"));
    }
}
