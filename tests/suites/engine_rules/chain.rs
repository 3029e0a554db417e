//! What the engine's hashes cover, and so what a block is.

use crate::prompt::Prompt;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The engine's hash of a block.
pub type Name = u64;

/// Content of a block: the engine's hash covers all of it, and nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Content {
    pub parent: Option<Name>,
    pub tokens: Vec<u32>,
    pub keys: Keys,
    /// What follows the block, where hashes look ahead.
    pub next: Option<Next>,
}

/// What a block contains besides tokens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Keys {
    pub adapter: Option<Loaded>,
    /// Of the first block only.
    pub salt: Option<usize>,
    /// Images with the offset at which each begins, negative in later blocks.
    pub images: Vec<(usize, i64)>,
    pub embeddings: Option<u64>,
}

/// The token after a block, and the image that begins there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Next {
    pub token: u32,
    pub image: Option<usize>,
}

/// An adapter as the engine has loaded it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Loaded {
    /// Index of its name.
    pub adapter: usize,
    /// Where it was loaded from.
    pub path: u64,
}

/// A block of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    pub name: Name,
    pub content: Content,
}

/// The complete blocks of a prompt at an engine that has loaded its adapter from `path`. Without a next token, the last
/// block of an engine that looks ahead has no hash yet.
pub fn blocks(prompt: &Prompt, size: usize, path: u64, looks_ahead: bool) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for (at, tokens) in prompt.tokens.chunks_exact(size).enumerate() {
        let start = at * size;
        let end = (at + 1) * size;
        let within = prompt.images.iter().filter(|image| image.start < end && image.end > start);
        let keys = Keys {
            adapter: prompt.adapter.map(|adapter| Loaded { adapter, path }),
            salt: prompt.salt.filter(|_| at == 0),
            images: within.map(|image| (image.id, image.start as i64 - start as i64)).collect(),
            embeddings: prompt.embeddings,
        };
        let image = prompt.images.iter().find(|image| image.start == end).map(|image| image.id);
        let next = prompt.tokens.get(end).map(|&token| Next { token, image });
        let parent = blocks.last().map(|last| last.name);
        let next = next.filter(|_| looks_ahead);
        let content = Content { parent, tokens: tokens.to_vec(), keys, next };
        let mut hasher = DefaultHasher::new();
        content.hash(&mut hasher);
        blocks.push(Block { name: hasher.finish(), content });
    }
    blocks
}
