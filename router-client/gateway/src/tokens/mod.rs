//! From a request to the tokens that its engine will compute: by a tokenizer in a file, or by the engine's own endpoints.
//!
//! Tokens that differ from the engine's cost cache hits, never an answer: a request whose tokens are not known is routed by
//! load alone.

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

/// Where tokens come from.
#[derive(Debug)]
pub struct Tokens {
    source: Source,
    cache: TokenCache,
    alerts: Alerts,
}

/// The tokens of a request's prompts.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Tokenised {
    /// Tokens of the first prompt.
    first: Arc<PromptTokens>,
    /// The number of all.
    all: u64,
}

/// Why there are none.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Missing {
    why: Unknown,
    /// For an operator. It contains nothing of the prompt.
    detail: String,
}

type Made = Result<Tokenised, Missing>;

#[derive(Debug)]
enum Source {
    Files(Arc<Tokenizers>),
    Render(Box<Renderer>),
    None,
}

/// What became of a request's tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// They are known: those of its first prompt, and the number of all.
    Tokens(Arc<PromptTokens>, u64),
    /// They are not, for this reason.
    Unknown(Unknown),
}

/// Why tokens are not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    /// Nothing makes tokens, by configuration.
    Off,
    /// There is no tokenizer for the model.
    NoTokenizer,
    /// The tokenizer's folder has no chat template.
    NoTemplate,
    /// The conversation has more than text, or is asked for in a way that only engines know.
    NotText,
    /// The engine's endpoints did not answer.
    NotRendered,
    /// The request has its prompt cut (`truncate_prompt_tokens`) in a way that only the engine can.
    Truncated,
}

impl Unknown {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Off,
        Self::NoTokenizer,
        Self::NoTemplate,
        Self::NotText,
        Self::NotRendered,
        Self::Truncated,
    ];

    /// As a label of a metric.
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

    /// Without further knowledge of a request.
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
    /// `None` if there is no prompt.
    fn of(prompts: Vec<PromptTokens>) -> Option<Self> {
        let all = prompts.iter().map(PromptTokens::count).sum();
        let first = Arc::new(prompts.into_iter().next()?);
        Some(Self { first, all })
    }
}

impl Tokens {
    /// Reads the tokenizers, if there are any.
    ///
    /// # Errors
    /// If a file cannot be read or understood.
    pub fn new(config: &TokensConfig, renderer: Renderer) -> Result<Self, FileError> {
        let source = match config.source {
            TokenSource::File => Source::Files(Arc::new(Tokenizers::read(&config.files)?)),
            TokenSource::Render => Source::Render(Box::new(renderer)),
            TokenSource::None => Source::None,
        };
        let cache = TokenCache::new(config.cache_bytes);
        Ok(Self { source, cache, alerts: Alerts::default() })
    }

    /// How often the tokens of an earlier prompt served, and how often there were none.
    #[must_use]
    pub fn cache_counts(&self) -> (u64, u64) {
        self.cache.counts()
    }

    /// How many of these engines, or of the servers in their place, make tokens by which endpoint: its name, the status of
    /// `/render` there, and the number of servers. Empty without such servers.
    #[must_use]
    pub fn endpoint_counts(&self, engines: &[Uri]) -> Vec<((&'static str, u16), u64)> {
        match &self.source {
            Source::Render(renderer) => renderer.counts(engines),
            Source::Files(_) | Source::None => Vec::new(),
        }
    }

    /// Where tokens do not come from as they should, a line each.
    #[must_use]
    pub fn problems(&self, engines: &[Uri]) -> Vec<String> {
        let mut problems = match &self.source {
            Source::Render(renderer) => renderer.problems(engines),
            Source::Files(_) | Source::None => Vec::new(),
        };
        problems.extend(self.alerts.problems(Instant::now()));
        problems
    }

    /// The tokens of a request, whose engines are at these addresses.
    ///
    /// # Errors
    /// If the model's chat template refuses the conversation.
    pub async fn of(&self, request: &ApiRequest, engines: &[Uri]) -> Result<Found, ApiError> {
        let Missing { why, detail } = match self.make(request, engines).await? {
            Ok(Tokenised { first, all }) => return Ok(Found::Tokens(first, all)),
            Err(missing) => missing,
        };
        if why != Unknown::Off {
            self.alerts.note(why, &request.model, &detail, Instant::now());
        }
        Ok(Found::Unknown(why))
    }

    async fn make(&self, request: &ApiRequest, engines: &[Uri]) -> Result<Made, ApiError> {
        if let Some(tokens) = &request.extension.token_data {
            let all = tokens.count();
            return Ok(Ok(Tokenised { first: Arc::clone(tokens), all }));
        }
        // Tokens are what they are, whatever the source.
        if request.kind == Kind::Completion
            && let prompts = request.prompts()?
            && let Some(Prompt::Tokens(_)) = prompts.first()
        {
            let cut = match Cut::of(request) {
                Ok(cut) => cut,
                Err(unknown) => return Ok(Err(unknown.missing())),
            };
            let tokens = |prompt: &Prompt| match prompt {
                Prompt::Tokens(tokens) => {
                    cut.map_or(tokens.as_slice(), |cut| cut.apply(tokens)).to_vec()
                }
                Prompt::Text(_) => Vec::new(),
            };
            let tokenised = Tokenised::of(prompts.iter().map(tokens).map(Into::into).collect());
            return Ok(tokenised.ok_or_else(|| Unknown::NotText.missing()));
        }
        match &self.source {
            Source::Files(files) => files.tokens(request, &self.cache).await,
            Source::Render(renderer) => Ok(renderer.tokens(request, engines, &self.cache).await),
            Source::None => Ok(Err(Unknown::Off.missing())),
        }
    }
}
