//! Cache of earlier prompts' tokens, by a hash of the inputs from which they were made.

use super::Tokenised;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use std::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::Xxh3;

/// Size of an entry apart from its tokens, in bytes: an estimate of the table's overhead.
const ENTRY_BYTES: usize = 96;
/// Expected bytes per prompt, which determine the size of the table.
const EXPECTED_BYTES: usize = 4 << 10;

/// A cache with a limit in bytes.
#[derive(Debug)]
pub(super) struct TokenCache {
    entries: Cache<u128, Tokenised, Bytes>,
    hits: AtomicU64,
    misses: AtomicU64,
}

#[derive(Debug, Clone)]
struct Bytes;

impl Weighter<u128, Tokenised> for Bytes {
    fn weight(&self, _key: &u128, tokens: &Tokenised) -> u64 {
        (ENTRY_BYTES + tokens.first.bytes()) as u64
    }
}

impl TokenCache {
    pub(super) fn new(bytes_max: usize) -> Self {
        let expected = (bytes_max / EXPECTED_BYTES).max(1);
        let entries = Cache::with_weighter(expected, bytes_max as u64, Bytes);
        Self { entries, hits: AtomicU64::new(0), misses: AtomicU64::new(0) }
    }

    /// The cache key of a prompt, from all parts that determine its tokens.
    pub(super) fn key(parts: &[&[u8]]) -> u128 {
        let mut hasher = Xxh3::new();
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher.digest128()
    }

    pub(super) fn get(&self, key: u128) -> Option<Tokenised> {
        let found = self.entries.get(&key);
        let count = if found.is_some() { &self.hits } else { &self.misses };
        count.fetch_add(1, Ordering::Relaxed);
        found
    }

    pub(super) fn insert(&self, key: u128, tokens: Tokenised) {
        self.entries.insert(key, tokens);
    }

    pub(super) fn counts(&self) -> (u64, u64) {
        (self.hits.load(Ordering::Relaxed), self.misses.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(token: u32, count: usize) -> Tokenised {
        Tokenised::from_prompts(vec![vec![token; count].into()]).expect("a prompt")
    }

    #[test]
    fn it_keeps_within_its_bytes() {
        let cache = TokenCache::new(64 << 10);
        for number in 0..1_000_u32 {
            let key = TokenCache::key(&[&number.to_le_bytes()]);
            cache.insert(key, tokens(number, 256));
            assert!(cache.entries.weight() <= 64 << 10);
        }
        assert!(cache.entries.len() >= 16, "{}", cache.entries.len());
        let last = TokenCache::key(&[&999_u32.to_le_bytes()]);
        let parts = TokenCache::key(&[b"a", b"bc"]);
        assert_ne!(parts, TokenCache::key(&[b"ab", b"c"]));
        cache.insert(last, tokens(1, 1));
        assert_eq!(cache.get(last), Some(tokens(1, 1)));
        assert_eq!(cache.counts(), (1, 0));
    }
}
