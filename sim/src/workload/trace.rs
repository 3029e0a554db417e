//! Reads traces in the Mooncake JSONL form: one object per line with `timestamp` (milliseconds), `input_length`,
//! `output_length` and `hash_ids`, the ids of the prompt's blocks of 512 tokens.
//!
//! An id always means the same 512 tokens, which are derived from the seed and the id; the last block is truncated to
//! `input_length`. The trace has no answers: their tokens are derived from the line's number. So a later turn finds its
//! predecessor's prompt in a cache, but not the answer.
//!
//! A recorded trace has more fields. `block_size` is the number of tokens per hash id. An id may then be any 64-bit
//! number and represents its block and the complete prefix; a block that the prompt does not fill has no id. `model`,
//! `worker`, `cached_tokens`, `ttft_ms` and `total_ms` describe how the request was served.

use super::{Request, tokens};
use serde::Deserialize;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;

/// Tokens per hash id.
pub const HASH_ID_TOKENS: usize = 512;
/// Permitted numbers of tokens per hash id of a recorded trace.
const BLOCK_TOKENS: std::ops::RangeInclusive<usize> = 1..=1 << 16;
/// Maximum length of a line, in bytes.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// Maximum length of a prompt, and of an answer, in tokens.
const LENGTH_TOKENS_MAX: usize = 1 << 20;
/// First token stream of answers, far from every hash id.
const ANSWER_STREAMS: u64 = 1 << 63;

/// Why a trace cannot be read.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The file cannot be opened.
    #[error("failed to open the trace {path}: {error}")]
    Open {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        error: std::io::Error,
    },
    /// A line cannot be read.
    #[error("line {line}: {error}")]
    Read {
        /// Number of the line, from 1.
        line: u64,
        /// Error of the system.
        error: std::io::Error,
    },
    /// A line is longer than 1 MiB.
    #[error("line {line} is longer than {LINE_BYTES_MAX} bytes")]
    LineTooLong {
        /// Number of the line, from 1.
        line: u64,
    },
    /// A line is not an entry.
    #[error("line {line}: {error}")]
    Parse {
        /// Number of the line, from 1.
        line: u64,
        /// Error of the parser.
        error: serde_json::Error,
    },
    /// A length is 0 or too large, or the hash ids do not cover the prompt.
    #[error("line {line}: {field} is {value}, expected {expected}")]
    Field {
        /// Number of the line, from 1.
        line: u64,
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: usize,
        /// Permitted values.
        expected: String,
    },
}

/// One line of a trace.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Entry {
    /// Arrival in milliseconds.
    pub timestamp: u64,
    /// Number of prompt tokens, at least 1.
    pub input_length: usize,
    /// Number of answer tokens.
    pub output_length: usize,
    /// Ids of the prompt's blocks, in order.
    pub hash_ids: Vec<u64>,
    /// Tokens per hash id in a recorded trace. None: 512, and the ids cover the prompt.
    #[serde(default)]
    pub block_size: Option<usize>,
    /// The requested model.
    #[serde(default)]
    pub model: Option<String>,
    /// The worker that served the request.
    #[serde(default)]
    pub worker: Option<String>,
    /// Prompt tokens found in that worker's cache.
    #[serde(default)]
    pub cached_tokens: Option<u64>,
    /// Time to the first token, in milliseconds.
    #[serde(default)]
    pub ttft_ms: Option<f64>,
    /// Time to the end of the answer, in milliseconds.
    #[serde(default)]
    pub total_ms: Option<f64>,
}

/// Reader of a trace: an iterator of requests, in the order of the file.
#[derive(Debug)]
pub struct Trace<R> {
    lines: BufReader<R>,
    seed: u64,
    line: u64,
}

// === impl Entry ===

impl Entry {
    /// Tokens per hash id.
    #[must_use]
    pub fn id_tokens(&self) -> usize {
        self.block_size.unwrap_or(HASH_ID_TOKENS)
    }

    /// Number of ids that the prompt needs. In a recorded trace, only complete blocks have ids.
    fn ids_needed(&self) -> usize {
        match self.block_size {
            Some(tokens) => self.input_length / tokens,
            None => self.input_length.div_ceil(HASH_ID_TOKENS),
        }
    }
}

// === impl Trace ===

impl Trace<File> {
    /// Opens a trace.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(path: &Path, seed: u64) -> Result<Self, TraceError> {
        let opened = File::open(path);
        let file = opened.map_err(|error| TraceError::Open { path: path.to_owned(), error })?;
        Ok(Self::new(file, seed))
    }
}

impl<R: Read> Trace<R> {
    /// Reads a trace from any reader.
    pub fn new(source: R, seed: u64) -> Self {
        Self { lines: BufReader::new(source), seed, line: 0 }
    }

    /// The next non-empty line; `None` at the end.
    ///
    /// # Errors
    /// If the line cannot be read, a length is out of bounds, or ids are missing.
    pub fn next_entry(&mut self) -> Option<Result<Entry, TraceError>> {
        let mut text = Vec::new();
        while text.trim_ascii().is_empty() {
            text.clear();
            self.line += 1;
            let line = self.line;
            match (&mut self.lines).take(LINE_BYTES_MAX).read_until(b'\n', &mut text) {
                Err(error) => return Some(Err(TraceError::Read { line, error })),
                Ok(0) => return None,
                Ok(read) if read as u64 == LINE_BYTES_MAX => {
                    return Some(Err(TraceError::LineTooLong { line }));
                }
                Ok(_) => {}
            }
        }
        let parsed = serde_json::from_slice(&text);
        let parsed = parsed.map_err(|error| TraceError::Parse { line: self.line, error });
        Some(parsed.and_then(|entry| self.checked(entry)))
    }

    fn checked(&self, entry: Entry) -> Result<Entry, TraceError> {
        let field = |field, value, expected: String| {
            Err(TraceError::Field { line: self.line, field, value, expected })
        };
        let lengths = 1..=LENGTH_TOKENS_MAX;
        if !lengths.contains(&entry.input_length) {
            return field("input_length", entry.input_length, format!("{lengths:?}"));
        }
        if entry.output_length > LENGTH_TOKENS_MAX {
            return field("output_length", entry.output_length, format!("0..={LENGTH_TOKENS_MAX}"));
        }
        let block_size = entry.id_tokens();
        if !BLOCK_TOKENS.contains(&block_size) {
            return field("block_size", block_size, format!("{BLOCK_TOKENS:?}"));
        }
        let needed = entry.ids_needed();
        if entry.hash_ids.len() < needed {
            return field("number of hash_ids", entry.hash_ids.len(), format!("at least {needed}"));
        }
        Ok(entry)
    }

    fn request(&self, entry: &Entry) -> Request {
        let needed = entry.ids_needed();
        let of_id = entry.id_tokens();
        let mut prompt = Vec::with_capacity(needed * of_id);
        for &id in entry.hash_ids.iter().take(needed) {
            tokens::append(self.seed, id, 0..of_id, &mut prompt);
        }
        prompt.truncate(entry.input_length);
        let stream = ANSWER_STREAMS + self.line;
        let rest = prompt.len()..entry.input_length;
        tokens::append(self.seed, !stream, rest, &mut prompt);
        let mut answer = Vec::new();
        tokens::append(self.seed, stream, 0..entry.output_length, &mut answer);
        Request { arrival: Duration::from_millis(entry.timestamp), prompt, answer }
    }
}

impl<R: Read> Iterator for Trace<R> {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.next_entry()?;
        Some(entry.map(|entry| self.request(&entry)))
    }
}

#[cfg(test)]
#[path = "trace_test.rs"]
mod trace_test;
