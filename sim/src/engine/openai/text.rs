//! Converts text to tokens, and generates answers without a model.

use super::template::Template;
use anyhow::{Context, Result, anyhow, ensure};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value as Json;
use std::fs::read_to_string;
use std::path::Path;
use tokenizers::Tokenizer;
use xxhash_rust::xxh3::Xxh3;

/// Number of different answer tokens without a tokenizer.
const PLAIN_VOCABULARY: u32 = 32_000;
/// Minimum number of complete words for answers. With fewer, answers use every token that is text.
const WORDS_MIN: usize = 16;
/// Name of the file with the chat template, beside the tokenizer.
const CONFIG_FILE: &str = "tokenizer_config.json";

/// The tokenizer of a model with its chat template.
///
/// Without a tokenizer, prompts must be token ids, and the text of an answer is its token ids.
#[derive(Debug)]
pub struct Text {
    tokenizer: Option<Tokenizer>,
    template: Template,
    /// The tokens that answers use.
    words: Vec<u32>,
}

/// An answer: its tokens, and the text of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// The text of each token.
    pub pieces: Vec<String>,
}

// === impl Text ===

impl Text {
    /// Creates an instance without a tokenizer.
    ///
    /// # Errors
    /// Never: the simple template is valid.
    pub fn plain() -> Result<Self> {
        let template = Template::of(&Json::Null)?;
        Ok(Self { tokenizer: None, template, words: Vec::new() })
    }

    /// Loads the tokenizer of a `tokenizer.json`. The chat template comes from `config`, a `tokenizer_config.json`, or
    /// from such a file in the same folder. Without one, it is [`SIMPLE`](super::template::SIMPLE).
    ///
    /// # Errors
    /// If a file cannot be read, or no token is text.
    pub fn load(file: &Path, config: Option<&Path>) -> Result<Self> {
        let tokenizer = Tokenizer::from_file(file);
        let tokenizer = tokenizer.map_err(|why| anyhow!("{}: {why}", file.display()))?;
        let beside = file.with_file_name(CONFIG_FILE);
        let config = config.or_else(|| beside.is_file().then_some(beside.as_path()));
        let config = match config {
            Some(path) => {
                let text = read_to_string(path).with_context(|| path.display().to_string())?;
                serde_json::from_str(&text).with_context(|| path.display().to_string())?
            }
            None => Json::Null,
        };
        Self::new(tokenizer, &config)
    }

    /// Combines a tokenizer with the content of a `tokenizer_config.json`.
    ///
    /// # Errors
    /// If the chat template cannot be read, or no token is text.
    pub fn new(tokenizer: Tokenizer, config: &Json) -> Result<Self> {
        let template = Template::of(config)?;
        let words = words(&tokenizer);
        ensure!(!words.is_empty(), "no token of the tokenizer is text");
        Ok(Self { tokenizer: Some(tokenizer), template, words })
    }

    /// The chat template.
    #[must_use]
    pub const fn template(&self) -> &Template {
        &self.template
    }

    /// The tokens of a text. `with_special` adds the tokenizer's special tokens, if it has some.
    ///
    /// # Errors
    /// If there is no tokenizer, or it rejects the text.
    pub fn encode(&self, text: &str, with_special: bool) -> Result<Vec<u32>> {
        let tokenizer = self.tokenizer.as_ref();
        let tokenizer = tokenizer.context("this engine has no tokenizer: send token ids")?;
        let encoding = tokenizer.encode_fast(text, with_special).map_err(|why| anyhow!("{why}"))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The answer to a prompt, with exactly `len` tokens. Equal prompts have equal answers. The answer consists of
    /// complete words, so that its text has the same tokens as part of a later prompt.
    ///
    /// # Errors
    /// If the tokenizer cannot decode the tokens.
    pub fn answer(&self, prompt: &[u32], len: usize) -> Result<Answer> {
        let mut hasher = Xxh3::new();
        prompt.iter().for_each(|token| hasher.update(&token.to_le_bytes()));
        let mut rng = ChaCha8Rng::seed_from_u64(hasher.digest());
        let token = |_| match self.tokenizer {
            Some(_) => self.words[rng.random_range(0..self.words.len())],
            None => rng.random_range(0..PLAIN_VOCABULARY),
        };
        self.written((0..len).map(token).collect())
    }

    /// Converts these tokens to an answer.
    ///
    /// # Errors
    /// If the tokenizer cannot decode them.
    pub fn written(&self, tokens: Vec<u32>) -> Result<Answer> {
        let Some(tokenizer) = &self.tokenizer else {
            let pieces = tokens.iter().map(|token| format!(" {token}")).collect();
            return Ok(Answer { tokens, pieces });
        };
        let mut text = tokenizer.decode_stream(true);
        let piece = |&token: &u32| text.step(token).map(Option::unwrap_or_default);
        let pieces = tokens.iter().map(piece).collect::<Result<_, _>>();
        Ok(Answer { pieces: pieces.map_err(|why| anyhow!("{why}"))?, tokens })
    }
}

/// The tokens that consist of a space and a word and stay so in any text. If there are few: all tokens that are text.
fn words(tokenizer: &Tokenizer) -> Vec<u32> {
    let count = u32::try_from(tokenizer.get_vocab_size(false)).unwrap_or(u32::MAX);
    let text = |id: u32| tokenizer.decode(&[id], true).ok();
    let is_word = |id: &u32| {
        let Some(text) = text(*id) else { return false };
        let letters = text.strip_prefix(' ').unwrap_or_default();
        let is_word = !letters.is_empty() && letters.bytes().all(|at| at.is_ascii_lowercase());
        is_word && tokenizer.encode_fast(text, false).is_ok_and(|at| at.get_ids() == [*id])
    };
    let words: Vec<u32> = (0..count).filter(is_word).collect();
    if words.len() >= WORDS_MIN {
        return words;
    }
    let is_text = |id: &u32| {
        text(*id)
            .is_some_and(|text| !text.is_empty() && !text.contains(char::REPLACEMENT_CHARACTER))
    };
    (0..count).filter(is_text).collect()
}

#[cfg(test)]
#[path = "text_test.rs"]
mod text_test;
