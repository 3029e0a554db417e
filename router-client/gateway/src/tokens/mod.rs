//! Tokenizes requests as their engines will, with a tokenizer file or the engine's own endpoints.
//!
//! Tokens that differ from the engine's cost cache hits, but never change an answer. A request with unknown tokens is
//! routed by load alone.

mod alerts;
mod cache;
mod cut;
mod endpoints;
mod file;
mod python_json;
mod render;
mod template;
mod tokenize;

pub use file::FileError;
pub use render::Renderer;

use crate::config::{TokenSource, TokensConfig};
use crate::error::ApiError;
use crate::prompt::PromptTokens;
use crate::request::{ApiRequest, Kind, Prompt};
use alerts::Alerts;
use cache::TokenCache;
use cut::Cut;
use file::Tokenizers;
use hyper::Uri;
use std::sync::Arc;
use tokio::time::Instant;

/// Source of tokens, with cache and alerts.
#[derive(Debug)]
pub struct Tokens {
    source: Source,
    cache: TokenCache,
    alerts: Alerts,
}

/// Tokens of a request's prompts.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Tokenised {
    /// Tokens of the first prompt.
    first: Arc<PromptTokens>,
    /// Number of tokens of all prompts.
    all: u64,
}

/// Why a request has no tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Missing {
    why: Unknown,
    /// Details for an operator, without any part of the prompt.
    detail: String,
}

type Made = Result<Tokenised, Missing>;

#[derive(Debug)]
enum Source {
    Files(Arc<Tokenizers>),
    Render(Box<Renderer>),
    None,
}

/// Result of looking up a request's tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// The tokens of the first prompt, and the number of tokens of all prompts.
    Tokens(Arc<PromptTokens>, u64),
    /// The tokens are unknown, for this reason.
    Unknown(Unknown),
}

/// Why tokens are unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    /// Tokenization is disabled by configuration.
    Off,
    /// There is no tokenizer for the model.
    NoTokenizer,
    /// The tokenizer's folder has no chat template.
    NoTemplate,
    /// The conversation contains more than text, or uses an option that only engines can process.
    NotText,
    /// The engine's endpoints did not answer.
    NotRendered,
    /// The request truncates its prompt (`truncate_prompt_tokens`) in a way that only the engine can.
    Truncated,
}

impl Unknown {
    /// All reasons.
    pub const ALL: [Self; 6] = [
        Self::Off,
        Self::NoTokenizer,
        Self::NoTemplate,
        Self::NotText,
        Self::NotRendered,
        Self::Truncated,
    ];

    /// Returns the reason as a metric's label.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::NoTokenizer => "no_tokenizer",
            Self::NoTemplate => "no_template",
            Self::NotText => "not_text",
            Self::NotRendered => "not_rendered",
            Self::Truncated => "truncated",
        }
    }

    /// Returns the reason with its usual detail.
    fn missing(self) -> Missing {
        let detail = match self {
            Self::Off => "--tokens none",
            Self::NoTokenizer => "no --tokenizer for the model",
            Self::NoTemplate => "the tokenizer's folder has no chat template",
            Self::NotText => {
                "more than text, or an option that only engines know; --tokens render knows more"
            }
            Self::NotRendered => "no server answered",
            Self::Truncated => {
                "only the engine can cut the prompt as truncate_prompt_tokens wants it"
            }
        };
        Missing { why: self, detail: detail.to_owned() }
    }
}

impl Tokenised {
    /// `None` without a prompt.
    fn from_prompts(prompts: Vec<PromptTokens>) -> Option<Self> {
        let all = prompts.iter().map(PromptTokens::count).sum();
        let first = Arc::new(prompts.into_iter().next()?);
        Some(Self { first, all })
    }
}

impl Tokens {
    /// Loads the tokenizers, if any.
    ///
    /// # Errors
    /// If a file cannot be read or parsed.
    pub fn new(config: &TokensConfig, renderer: Renderer) -> Result<Self, FileError> {
        let source = match config.source {
            TokenSource::File => Source::Files(Arc::new(Tokenizers::load(&config.files)?)),
            TokenSource::Render => Source::Render(Box::new(renderer)),
            TokenSource::None => Source::None,
        };
        let cache = TokenCache::new(config.cache_bytes);
        Ok(Self { source, cache, alerts: Alerts::default() })
    }

    /// Hits and misses of the cache.
    #[must_use]
    pub fn cache_counts(&self) -> (u64, u64) {
        self.cache.counts()
    }

    /// For these engines, or the configured render server: endpoint name, status of `/render` there, and number of
    /// servers. Empty if tokens come from another source.
    #[must_use]
    pub fn endpoint_counts(&self, engines: &[Uri]) -> Vec<((&'static str, u16), u64)> {
        match &self.source {
            Source::Render(renderer) => renderer.counts(engines),
            Source::Files(_) | Source::None => Vec::new(),
        }
    }

    /// Problems with the source of tokens, one line each.
    #[must_use]
    pub fn problems(&self, engines: &[Uri]) -> Vec<String> {
        let mut problems = match &self.source {
            Source::Render(renderer) => renderer.problems(engines),
            Source::Files(_) | Source::None => Vec::new(),
        };
        problems.extend(self.alerts.problems(Instant::now()));
        problems
    }

    /// Returns the tokens of a request, whose engines have the addresses `engines`, or why they are unknown. `model` is
    /// the model that the request's name means: the name may be an adapter or another name. Logs the reason.
    ///
    /// # Errors
    /// If the model's chat template rejects the conversation.
    pub async fn of(
        &self,
        model: &str,
        request: &ApiRequest,
        engines: &[Uri],
    ) -> Result<Found, ApiError> {
        let Missing { why, detail } = match self.compute_tokens(model, request, engines).await? {
            Ok(Tokenised { first, all }) => return Ok(Found::Tokens(first, all)),
            Err(missing) => missing,
        };
        if why != Unknown::Off {
            self.alerts.report(why, &request.model, &detail, Instant::now());
        }
        Ok(Found::Unknown(why))
    }

    /// Computes the tokens of a request: from token ids of the client if it sent any, else with the configured
    /// tokenizer file or render server.
    async fn compute_tokens(
        &self,
        model: &str,
        request: &ApiRequest,
        engines: &[Uri],
    ) -> Result<Made, ApiError> {
        if let Some(tokens) = &request.extension.token_data {
            let all = tokens.count();
            return Ok(Ok(Tokenised { first: Arc::clone(tokens), all }));
        }
        // Token ids from the client are used as they are, whatever the source.
        if request.kind == Kind::Completion
            && let prompts = request.prompts()?
            && let Some(Prompt::Tokens(_)) = prompts.first()
        {
            let cut = match Cut::from_request(request) {
                Ok(cut) => cut,
                Err(unknown) => return Ok(Err(unknown.missing())),
            };
            let tokens = |prompt: &Prompt| match prompt {
                Prompt::Tokens(tokens) => {
                    cut.map_or(tokens.as_slice(), |cut| cut.apply(tokens)).to_vec()
                }
                Prompt::Text(_) => Vec::new(),
            };
            let tokenised =
                Tokenised::from_prompts(prompts.iter().map(tokens).map(Into::into).collect());
            return Ok(tokenised.ok_or_else(|| Unknown::NotText.missing()));
        }
        match &self.source {
            Source::Files(files) => files.tokens(model, request, &self.cache).await,
            Source::Render(renderer) => {
                Ok(renderer.tokens(model, request, engines, &self.cache).await)
            }
            Source::None => Ok(Err(Unknown::Off.missing())),
        }
    }
}
