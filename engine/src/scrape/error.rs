use super::ScrapedEngine;
use std::io;
use std::time::Duration;

/// Why a metrics URL is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// The text is not a URL.
    #[error("{url:?} is not a URL: {reason}")]
    Malformed {
        /// The configured text.
        url: String,
        /// Cause of the error.
        reason: String,
    },
    /// The URL has an unsupported form.
    #[error(
        "{0:?} must be host:port or http://host:port; a path is needed only if it is not /metrics"
    )]
    Unsupported(String),
}

/// Why fetching metrics failed.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The connection failed.
    #[error("connect: {0}")]
    Connect(#[source] io::Error),
    /// The answer is not HTTP, or the connection broke off.
    #[error("HTTP: {0}")]
    Http(#[from] hyper::Error),
    /// The status is not 200.
    #[error("the answer's status is {0}")]
    Status(u16),
    /// The body is too long.
    #[error("the answer has more than {limit} bytes")]
    TooLarge {
        /// Maximum number of bytes.
        limit: usize,
    },
    /// The body broke off.
    #[error("the answer's body: {0}")]
    Body(String),
    /// The time limit passed.
    #[error("no answer within {0:?}")]
    TooSlow(Duration),
}

/// Why metrics cannot be parsed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ReadError {
    /// The answer is not UTF-8.
    #[error("the answer is not UTF-8")]
    NotText,
    /// A line violates the format.
    #[error("line {line}: {problem}")]
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// What violates the format.
        problem: &'static str,
    },
    /// A label is not a valid rank.
    #[error("line {line}: label {label} is {value:?}, must be a rank, 0 to 1023")]
    Rank {
        /// Number of the line, from 1.
        line: usize,
        /// Name of the label.
        label: &'static str,
        /// Value of the label.
        value: String,
    },
    /// A value that is not a valid count.
    #[error("{metric} of rank {rank} is {value}, which is not a valid count")]
    Count {
        /// Metric of the number.
        metric: &'static str,
        /// Rank of the value.
        rank: u32,
        /// The reported value.
        value: f64,
    },
    /// The answer has no metric of this engine.
    #[error(
        "the page has no metric of {0}: check the kind of engine, and that its metrics are enabled"
    )]
    Nothing(ScrapedEngine),
}
