//! From a request to the tokens that its engine will compute: by a tokenizer in a file, or by the engine's own endpoint.
//!
//! Tokens that differ from the engine's cost cache hits, never an answer: a request whose tokens are not known is routed by
//! load alone.

mod cache;
mod file;
mod python_json;
mod render;
mod template;

pub use file::FileError;
pub use render::Renderer;

use crate::config::{TokenSource, TokensConfig};
use crate::error::ApiError;
use crate::request::{ApiRequest, Kind, Prompt};
use cache::TokenCache;
use file::Tokenizers;
use hyper::Uri;
use std::sync::Arc;

/// Tokens of a prompt.
pub type TokenList = Arc<[u32]>;

/// Where tokens come from.
#[derive(Debug)]
pub struct Tokens {
    source: Source,
    cache: TokenCache,
}

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
    Tokens(TokenList, u64),
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
    /// The engine's endpoint did not answer.
    NotRendered,
}

impl Unknown {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Off, Self::NoTokenizer, Self::NoTemplate, Self::NotText, Self::NotRendered];

    /// As a label of a metric.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::NoTokenizer => "no_tokenizer",
            Self::NoTemplate => "no_template",
            Self::NotText => "not_text",
            Self::NotRendered => "not_rendered",
        }
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
        Ok(Self { source, cache: TokenCache::new(config.cache_bytes) })
    }

    /// How often the tokens of an earlier prompt served, and how often there were none.
    #[must_use]
    pub fn cache_counts(&self) -> (u64, u64) {
        self.cache.counts()
    }

    /// The tokens of a request, whose engines are at these addresses.
    ///
    /// # Errors
    /// If the model's chat template refuses the conversation.
    pub async fn of(&self, request: &ApiRequest, engines: &[Uri]) -> Result<Found, ApiError> {
        if let Some(tokens) = &request.extension.token_data {
            let count = tokens.len() as u64;
            return Ok(Found::Tokens(tokens.as_slice().into(), count));
        }
        // Tokens are what they are, whatever the source.
        if request.kind == Kind::Completion
            && let [Prompt::Tokens(first), rest @ ..] = request.prompts()?.as_slice()
        {
            let count = |at: &Prompt| match at {
                Prompt::Tokens(tokens) => tokens.len() as u64,
                Prompt::Text(_) => 0,
            };
            let all = first.len() as u64 + rest.iter().map(count).sum::<u64>();
            return Ok(Found::Tokens(first.as_slice().into(), all));
        }
        match &self.source {
            Source::Files(files) => files.tokens(request, &self.cache).await,
            Source::Render(renderer) => Ok(renderer.tokens(request, engines, &self.cache).await),
            Source::None => Ok(Found::Unknown(Unknown::Off)),
        }
    }
}
