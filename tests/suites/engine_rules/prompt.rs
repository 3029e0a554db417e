//! Prompts: tokens, and what besides tokens decides the content of blocks.

use crate::setup::{PROMPT_BLOCKS_MAX, Setup};
use kvasir_proto::hash::{MultimodalSpan, multimodal_hash};
use kvasir_tests::script::ScriptRng;
use rand::Rng;

/// Salts; one is named like an adapter.
pub const SALTS: [&str; 3] = ["tenant-a", "tenant-b", "sql"];
/// Adapters; the engine states no name of the last one.
pub const ADAPTERS: [&str; 3] = ["sql", "ada", "anon"];
/// The adapter without a name.
pub const UNNAMED: usize = 2;
const IMAGES: usize = 3;
/// The token in place of an image.
const PLACEHOLDER: u32 = 9;
/// The token between two images, so that tokens show where an image begins.
const SEPARATOR: u32 = 8;

/// A prompt with the output that follows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    pub tokens: Vec<u32>,
    /// Index into [`SALTS`].
    pub salt: Option<usize>,
    /// Index into [`ADAPTERS`].
    pub adapter: Option<usize>,
    pub images: Vec<Image>,
    /// Embeddings that were sent in place of tokens; the tokens are zeros.
    pub embeddings: Option<u64>,
}

/// An image in place of tokens `start..end`: at least a block long, so that one image at most begins in each block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Image {
    pub id: usize,
    pub start: usize,
    pub end: usize,
}

impl Image {
    /// How the engine and clients call the image.
    pub fn identifier(id: usize, has_digests: bool) -> String {
        let id = id as u64 + 1;
        if has_digests {
            format!("{:016x}", id.wrapping_mul(0x9e37_79b9_7f4a_7c15)).repeat(4)
        } else {
            format!("image-{id}")
        }
    }
}

impl Prompt {
    /// A prompt as users of this engine send them: prefixes are shared often.
    pub fn draw(setup: &Setup, rng: &mut ScriptRng) -> Self {
        let options = setup.options;
        let mut prompt = Self {
            tokens: Vec::new(),
            salt: (options.salts && rng.random_bool(0.5)).then(|| rng.random_range(0..SALTS.len())),
            adapter: None,
            images: Vec::new(),
            embeddings: None,
        };
        if options.adapters && rng.random_bool(0.5) {
            prompt.adapter = Some(rng.random_range(0..UNNAMED));
        }
        if options.has_unnamed_adapter && rng.random_bool(0.2) {
            prompt.adapter = Some(UNNAMED);
        }
        let segments = rng.random_range(1..=4);
        prompt.grow(setup, segments, rng);
        if options.embeddings && rng.random_bool(0.2) {
            prompt.images.clear();
            prompt.tokens.fill(0);
            prompt.embeddings = Some(rng.random_range(0..3));
        }
        prompt
    }

    /// The next turn: more tokens behind.
    pub fn grow(&mut self, setup: &Setup, segments: usize, rng: &mut ScriptRng) {
        let size = setup.block_size;
        for _ in 0..segments {
            let has_image = setup.options.images && rng.random_bool(0.35);
            let length = if has_image {
                rng.random_range(size..=2 * size)
            } else {
                rng.random_range(1..=size + 1)
            };
            if self.tokens.len() + length + 1 > PROMPT_BLOCKS_MAX * size {
                return;
            }
            if !has_image || self.embeddings.is_some() {
                self.add_text(rng.random_range(0..3), length);
                continue;
            }
            if self.images.last().is_some_and(|last| last.end == self.tokens.len()) {
                self.tokens.push(SEPARATOR);
            }
            let start = self.tokens.len();
            self.images.push(Image { id: rng.random_range(0..IMAGES), start, end: start + length });
            self.tokens.resize(start + length, PLACEHOLDER);
        }
    }

    fn add_text(&mut self, text: u32, length: usize) {
        let base = if self.embeddings.is_some() { 0 } else { 100 * (text + 1) };
        self.tokens.extend((base..).take(length));
        if self.embeddings.is_some() {
            self.tokens.fill(0);
        }
    }

    /// The first tokens of the prompt.
    pub fn cut(&mut self, length: usize) {
        self.tokens.truncate(length);
        self.images.retain(|image| image.start < length);
        self.images.iter_mut().for_each(|image| image.end = image.end.min(length));
    }

    /// The first tokens of the prompt, without a piece of an image that is shorter than a block.
    pub fn cut_whole(&mut self, length: usize, size: usize) {
        self.cut(length);
        if let Some(last) = self.images.last().filter(|last| last.end - last.start < size) {
            self.cut(last.start);
        }
    }

    /// A prompt like this one, which the engine may or may not be able to answer from the same blocks.
    pub fn vary(&self, setup: &Setup, rng: &mut ScriptRng) -> Self {
        let mut other = self.clone();
        let size = setup.block_size;
        match rng.random_range(0..10) {
            0 => other.salt = None,
            1 => other.salt = Some(rng.random_range(0..SALTS.len())),
            2 => other.adapter = None,
            3 => other.adapter = Some(rng.random_range(0..ADAPTERS.len())),
            4 => other.images.clear(),
            5 => {
                if let Some(image) = other.images.first_mut() {
                    image.id = (image.id + 1) % IMAGES;
                }
            }
            6 => other.add_text(rng.random_range(0..3), size),
            7 => other.cut(rng.random_range(0..=self.tokens.len())),
            8 => other.cut(self.tokens.len() / size * size),
            _ => other.change_token(rng),
        }
        other.embeddings = other.embeddings.filter(|_| rng.random_bool(0.5));
        other
    }

    /// Another token, in a place that belongs to no image.
    fn change_token(&mut self, rng: &mut ScriptRng) {
        let is_text =
            |at: &usize| self.images.iter().all(|image| !(image.start..image.end).contains(at));
        let texts: Vec<usize> = (0..self.tokens.len()).filter(is_text).collect();
        if !texts.is_empty() {
            self.tokens[texts[rng.random_range(0..texts.len())]] = rng.random_range(100..104);
        }
    }

    /// Its images as a client states them.
    pub fn spans(&self, setup: &Setup) -> Vec<MultimodalSpan> {
        let span = |&Image { id, start, end }: &Image| MultimodalSpan {
            hash: multimodal_hash(&Image::identifier(id, setup.has_digests)),
            start,
            end,
        };
        self.images.iter().map(span).collect()
    }
}
