//! Tokenizers in files.

use super::cache::TokenCache;
use super::template::ChatTemplate;
use super::{Found, TokenList, Unknown};
use crate::error::ApiError;
use crate::request::{ApiRequest, Kind, Prompt};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokenizers::Tokenizer;
use tokio::task::spawn_blocking;

/// The configuration beside a tokenizer, which has its chat template.
const CONFIG: &str = "tokenizer_config.json";
/// The chat template in a file of its own, as newer models have it.
const TEMPLATE: &str = "chat_template.jinja";

/// A tokenizer that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("tokenizer: {}: {problem}", path.display())]
pub struct FileError {
    path: PathBuf,
    problem: String,
}

/// The tokenizers, by model; that of "" serves all models without one.
#[derive(Debug)]
pub(super) struct Tokenizers(BTreeMap<String, Arc<ModelTokenizer>>);

/// The tokenizer of a model.
#[derive(Debug)]
struct ModelTokenizer {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
}

/// A text to be tokenised.
struct Text {
    text: String,
    with_special: bool,
}

impl Tokenizers {
    /// Reads them all.
    pub(super) fn read(files: &BTreeMap<String, PathBuf>) -> Result<Self, FileError> {
        let read = files.iter().map(|(model, file)| {
            let tokenizer = ModelTokenizer::read(file)?;
            if tokenizer.template.is_none() {
                tracing::warn!(file = %file.display(), "no chat template: load alone decides for chats");
            }
            Ok((model.clone(), Arc::new(tokenizer)))
        });
        read.collect::<Result<_, _>>().map(Self)
    }

    /// The tokens of a request.
    pub(super) async fn tokens(
        self: &Arc<Self>,
        request: &ApiRequest,
        cache: &TokenCache,
    ) -> Result<Found, ApiError> {
        let of_model = self.0.get(&request.model).or_else(|| self.0.get(""));
        let Some(model) = of_model else { return Ok(Found::Unknown(Unknown::NoTokenizer)) };
        let texts = match model.texts(request)? {
            Ok(texts) => texts,
            Err(unknown) => return Ok(Found::Unknown(unknown)),
        };
        let mut first: Option<TokenList> = None;
        let mut all = 0;
        for text in texts {
            let tokens = model.encode(&request.model, text, cache).await?;
            all += tokens.len() as u64;
            first.get_or_insert(tokens);
        }
        let first = first.ok_or_else(|| ApiError::internal("a request without a prompt"))?;
        Ok(Found::Tokens(first, all))
    }
}

impl ModelTokenizer {
    fn read(path: &Path) -> Result<Self, FileError> {
        let refused = |path: &Path, problem: String| FileError { path: path.to_owned(), problem };
        let tokenizer = Tokenizer::from_file(path);
        let mut tokenizer = tokenizer.map_err(|error| refused(path, error.to_string()))?;
        // Engines do neither.
        tokenizer
            .with_truncation(None)
            .map_err(|error| refused(path, error.to_string()))?
            .with_padding(None);
        let beside = |name| path.with_file_name(name);
        let config: Value = match fs::read_to_string(beside(CONFIG)) {
            Ok(text) => serde_json::from_str(&text)
                .map_err(|error| refused(&beside(CONFIG), error.to_string()))?,
            Err(_) => Value::Null,
        };
        let own = fs::read_to_string(beside(TEMPLATE)).ok();
        let template = ChatTemplate::read(&config, own);
        let template = template.map_err(|error| refused(&beside(CONFIG), error.to_string()))?;
        Ok(Self { tokenizer, template })
    }

    /// What is tokenised of a request, or why nothing is.
    fn texts(&self, request: &ApiRequest) -> Result<Result<Vec<Text>, Unknown>, ApiError> {
        let special = request.body.get("add_special_tokens").and_then(Value::as_bool);
        if request.kind == Kind::Completion {
            let text = |prompt| match prompt {
                Prompt::Text(text) => Some(Text { text, with_special: special.unwrap_or(true) }),
                Prompt::Tokens(_) => None,
            };
            let texts: Option<Vec<_>> = request.prompts()?.into_iter().map(text).collect();
            return Ok(texts.ok_or(Unknown::NotText));
        }
        let Some(template) = &self.template else { return Ok(Err(Unknown::NoTemplate)) };
        let rendered = template.render(request);
        let rendered = rendered.map_err(|error| ApiError::invalid("messages", error))?;
        // The template writes them itself.
        let text = |text| vec![Text { text, with_special: special.unwrap_or(false) }];
        Ok(rendered.map(text).ok_or(Unknown::NotText))
    }

    async fn encode(
        self: &Arc<Self>,
        model: &str,
        text: Text,
        cache: &TokenCache,
    ) -> Result<TokenList, ApiError> {
        let Text { text, with_special } = text;
        let key = TokenCache::key(&[model.as_bytes(), &[with_special.into()], text.as_bytes()]);
        if let Some(tokens) = cache.get(key) {
            return Ok(tokens);
        }
        let own = Arc::clone(self);
        // Long prompts take milliseconds, which other requests would wait for.
        let encoded = spawn_blocking(move || {
            own.tokenizer.encode_fast(text, with_special).map(|at| TokenList::from(at.get_ids()))
        });
        let encoded = encoded.await.map_err(|error| ApiError::internal(error.to_string()))?;
        let tokens = encoded.map_err(|error| ApiError::internal(format!("tokenizer: {error}")))?;
        cache.put(key, Arc::clone(&tokens));
        Ok(tokens)
    }
}
