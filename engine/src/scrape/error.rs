use super::ScrapedEngine;
use std::io;
use std::time::Duration;

/// Why metrics cannot be read from a URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// It is none.
    #[error("{url:?} is not a URL: {reason}")]
    Malformed {
        /// As configured.
        url: String,
        /// Why.
        reason: String,
    },
    /// It is another kind of URL.
    #[error(
        "{0:?} must be host:port or http://host:port, with a path unless that is /metrics, and nothing more"
    )]
    Unsupported(String),
}

/// Why metrics cannot be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// No connection.
    #[error("connect: {0}")]
    Connect(#[source] io::Error),
    /// It is not HTTP, or breaks off.
    #[error("HTTP: {0}")]
    Http(#[from] hyper::Error),
    /// Another status than 200.
    #[error("the answer's status is {0}")]
    Status(u16),
    /// The body is too long.
    #[error("the answer has more than {limit} bytes")]
    TooLarge {
        /// The most that is taken.
        limit: usize,
    },
    /// The body breaks off.
    #[error("the answer's body: {0}")]
    Body(String),
    /// It takes too long.
    #[error("there is no answer within {0:?}")]
    TooSlow(Duration),
}

/// Why metrics cannot be read.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ReadError {
    /// It is not text.
    #[error("the answer is not UTF-8")]
    NotText,
    /// A line is not as the format has it.
    #[error("line {line}: {problem}")]
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong.
        problem: &'static str,
    },
    /// A rank that cannot be.
    #[error("line {line}: label {label} is {value:?}, must be a rank, 0 to 1023")]
    Rank {
        /// Number of the line, from 1.
        line: usize,
        /// Which label.
        label: &'static str,
        /// Its value.
        value: String,
    },
    /// A number that cannot be a count.
    #[error("{metric} of rank {rank} is {value}, which counts nothing")]
    Count {
        /// Metric of the number.
        metric: &'static str,
        /// Rank that the number is stated for.
        rank: u32,
        /// Its value.
        value: f64,
    },
    /// Nothing that is known.
    #[error("there is no metric of {0}: is it that engine, with metrics enabled?")]
    Nothing(ScrapedEngine),
}
