//! Tokenizes prompts with tokenizers from files.

use super::cache::TokenCache;
use super::cut::Cut;
use super::template::ChatTemplate;
use super::tokenize::adds_special;
use super::{Made, Tokenised, Unknown};
use crate::error::ApiError;
use crate::request::{ApiRequest, Kind, Prompt};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokenizers::{Encoding, Tokenizer};
use tokio::task::spawn_blocking;

/// Configuration beside a tokenizer, with its chat template.
const CONFIG: &str = "tokenizer_config.json";
/// Separate file with the chat template, used by newer models.
const TEMPLATE: &str = "chat_template.jinja";

/// A tokenizer that cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[error("tokenizer: {}: {problem}", path.display())]
pub struct FileError {
    path: PathBuf,
    problem: String,
}

/// The tokenizers by model; the entry "" serves all other models.
#[derive(Debug)]
pub(super) struct Tokenizers(BTreeMap<String, Arc<ModelTokenizer>>);

/// The tokenizer of a model.
#[derive(Debug)]
struct ModelTokenizer {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
}

/// A text to tokenize.
struct Text {
    text: String,
    with_special: bool,
    /// Truncation of the text's tokens.
    cut: Option<Cut>,
}

impl Tokenizers {
    /// Loads all tokenizers. Logs a warning for a tokenizer without a chat template.
    pub(super) fn load(files: &BTreeMap<String, PathBuf>) -> Result<Self, FileError> {
        let read = files.iter().map(|(model, file)| {
            let tokenizer = ModelTokenizer::load(file)?;
            if tokenizer.template.is_none() {
                tracing::warn!(file = %file.display(), "no chat template: load alone decides for chats");
            }
            Ok((model.clone(), Arc::new(tokenizer)))
        });
        read.collect::<Result<_, _>>().map(Self)
    }

    /// Tokenizes a request for a model, with the file of the request's name, else of the model, else of all models. If
    /// there is none, returns why the tokens are unknown.
    pub(super) async fn tokens(
        self: &Arc<Self>,
        model: &str,
        request: &ApiRequest,
        cache: &TokenCache,
    ) -> Result<Made, ApiError> {
        let names = [request.model.as_str(), model, ""];
        let of_model = names.into_iter().find_map(|name| self.0.get(name));
        let Some(model) = of_model else { return Ok(Err(Unknown::NoTokenizer.missing())) };
        let texts = match model.texts(request)? {
            Ok(texts) => texts,
            Err(unknown) => return Ok(Err(unknown.missing())),
        };
        let mut all: Option<Tokenised> = None;
        for text in texts {
            let encoded = model.encode(&request.model, text, cache).await?;
            let Some(tokens) = encoded else { return Ok(Err(Unknown::Truncated.missing())) };
            match &mut all {
                Some(all) => all.all += tokens.all,
                None => all = Some(tokens),
            }
        }
        all.map(Ok).ok_or_else(|| ApiError::internal("a request without a prompt"))
    }
}

impl ModelTokenizer {
    /// Loads a tokenizer file, and the chat template in the same folder, if there is one.
    fn load(path: &Path) -> Result<Self, FileError> {
        let refused = |path: &Path, problem: String| FileError { path: path.to_owned(), problem };
        let tokenizer = Tokenizer::from_file(path);
        let mut tokenizer = tokenizer.map_err(|error| refused(path, error.to_string()))?;
        // Engines neither truncate nor pad.
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
        let template = ChatTemplate::load(&config, own);
        let template = template.map_err(|error| refused(&beside(CONFIG), error.to_string()))?;
        Ok(Self { tokenizer, template })
    }

    /// Returns the texts of a request to tokenize, or why its tokens are unknown.
    fn texts(&self, request: &ApiRequest) -> Result<Result<Vec<Text>, Unknown>, ApiError> {
        let cut = match Cut::from_request(request) {
            Ok(cut) => cut,
            Err(unknown) => return Ok(Err(unknown)),
        };
        // A chat template writes special tokens itself.
        let with_special = adds_special(request);
        if request.kind == Kind::Completion {
            let text = |prompt| match prompt {
                Prompt::Text(text) => Some(Text { text, with_special, cut }),
                Prompt::Tokens(_) => None,
            };
            let texts: Option<Vec<_>> = request.prompts()?.into_iter().map(text).collect();
            return Ok(texts.ok_or(Unknown::NotText));
        }
        let Some(template) = &self.template else { return Ok(Err(Unknown::NoTemplate)) };
        let rendered = template.render(request);
        let rendered = rendered.map_err(|error| ApiError::invalid("messages", error))?;
        let text = |text| vec![Text { text, with_special, cut }];
        Ok(rendered.map(text).ok_or(Unknown::NotText))
    }

    /// Tokenizes a text. Returns `None` if the special tokens alone fill the truncated length.
    async fn encode(
        self: &Arc<Self>,
        model: &str,
        text: Text,
        cache: &TokenCache,
    ) -> Result<Option<Tokenised>, ApiError> {
        let Text { text, with_special, cut } = text;
        let limit = format!("{cut:?}");
        let parts = [model.as_bytes(), &[with_special.into()], limit.as_bytes(), text.as_bytes()];
        let key = TokenCache::key(&parts);
        if let Some(tokens) = cache.get(key) {
            return Ok(Some(tokens));
        }
        let own = Arc::clone(self);
        // Long prompts take milliseconds, which would delay other requests.
        let encoded = spawn_blocking(move || {
            let encoding = own.tokenizer.encode_fast(text, with_special)?;
            Ok::<_, tokenizers::Error>(kept(&encoding, cut))
        });
        let encoded = encoded.await.map_err(|error| ApiError::internal(error.to_string()))?;
        let tokens = encoded.map_err(|error| ApiError::internal(format!("tokenizer: {error}")))?;
        let tokens = tokens.and_then(|tokens| Tokenised::from_prompts(vec![tokens.into()]));
        if let Some(tokens) = &tokens {
            cache.insert(key, tokens.clone());
        }
        Ok(tokens)
    }
}

/// The tokens of a text that the engine keeps, always including the special tokens around it.
fn kept(encoding: &Encoding, cut: Option<Cut>) -> Option<Vec<u32>> {
    let tokens = encoding.get_ids();
    let Some(cut) = cut else { return Some(tokens.to_vec()) };
    let mask = encoding.get_special_tokens_mask();
    let front = mask.iter().take_while(|is_special| **is_special == 1).count();
    let back = mask.iter().skip(front).rev().take_while(|is_special| **is_special == 1).count();
    cut.apply_between(tokens, front, back)
}
