//! Physical blocks of one engine: allocation, prefix cache, reference counts, LRU eviction.
//!
//! A block is *in use* (references > 0) or in the free list. A free block keeps its content and its cache entry until
//! it is allocated again, which evicts the content. The free list is ordered by the time of freeing, so its head is the
//! least recently used block.

use std::collections::{BTreeMap, HashMap};

/// Number of a physical block.
pub type BlockId = u32;

/// Marks the end of the free list.
const NONE: u32 = u32::MAX;

/// Content of a block in the prefix cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheKey {
    /// KV-cache group; the same name may be cached once per group.
    pub group: u8,
    /// The engine's hash of the block and its prefix.
    pub name: u64,
}

#[derive(Debug, Clone)]
struct Block {
    key: Option<CacheKey>,
    references: u32,
    free: bool,
    previous: u32,
    next: u32,
}

/// Physical blocks with a prefix cache and LRU eviction.
#[derive(Debug)]
pub struct BlockPool {
    blocks: Vec<Block>,
    /// The physical blocks with each content, oldest first. Content without a block has no entry.
    cached: HashMap<CacheKey, Vec<BlockId>>,
    head: u32,
    tail: u32,
    free: usize,
}

impl BlockPool {
    /// Creates a pool of `capacity` empty blocks.
    ///
    /// # Panics
    /// If `capacity` does not fit a block number.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        assert!(capacity < NONE as usize, "capacity of {capacity} blocks is too large");
        let empty = Block { key: None, references: 0, free: false, previous: NONE, next: NONE };
        let mut pool = Self {
            blocks: vec![empty; capacity],
            cached: HashMap::new(),
            head: NONE,
            tail: NONE,
            free: 0,
        };
        for id in 0..capacity as u32 {
            pool.push_free(id);
        }
        pool
    }

    /// Number of physical blocks.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.blocks.len()
    }

    /// Number of free blocks, including cached ones that can be evicted.
    #[must_use]
    pub fn free_len(&self) -> usize {
        self.free
    }

    /// The oldest block with this content.
    #[must_use]
    pub fn lookup(&self, key: CacheKey) -> Option<BlockId> {
        self.cached.get(&key).and_then(|copies| copies.first().copied())
    }

    /// True if the block has no user.
    #[must_use]
    pub fn is_free(&self, id: BlockId) -> bool {
        self.blocks[id as usize].free
    }

    /// Adds a user to a block.
    pub fn acquire(&mut self, id: BlockId) {
        if self.blocks[id as usize].free {
            self.unlink_free(id);
        }
        self.blocks[id as usize].references += 1;
    }

    /// Allocates the least recently used free block for one user, and returns it with its evicted content, if any.
    /// `None` if every block is in use.
    pub fn allocate(&mut self) -> Option<(BlockId, Option<CacheKey>)> {
        if self.head == NONE {
            return None;
        }
        let id = self.head;
        self.unlink_free(id);
        let evicted = self.forget(id);
        self.blocks[id as usize].references = 1;
        Some((id, evicted))
    }

    /// Caches the content of a block in use. Other blocks may have the same content.
    ///
    /// # Panics
    /// If the block is free or already has a content.
    pub fn cache(&mut self, id: BlockId, key: CacheKey) {
        let block = &mut self.blocks[id as usize];
        assert!(block.references > 0, "block {id} is free");
        assert!(block.key.is_none(), "block {id} already holds {:?}", block.key);
        block.key = Some(key);
        self.cached.entry(key).or_default().push(id);
    }

    /// Removes a user from a block. A block without users moves to the end of the free list.
    ///
    /// # Panics
    /// If the block has no user.
    pub fn release(&mut self, id: BlockId) {
        let block = &mut self.blocks[id as usize];
        assert!(block.references > 0, "block {id} has no user");
        block.references -= 1;
        if block.references == 0 {
            self.push_free(id);
        }
    }

    /// Removes all contents. Returns false, without effect, while any block is in use.
    pub fn reset(&mut self) -> bool {
        if self.free != self.blocks.len() {
            return false;
        }
        self.cached.clear();
        for block in &mut self.blocks {
            block.key = None;
        }
        true
    }

    /// Number of physical copies of a content.
    #[must_use]
    pub fn copies(&self, key: CacheKey) -> u32 {
        self.cached.get(&key).map_or(0, |copies| copies.len() as u32)
    }

    /// Contents of one group with their numbers of physical copies.
    #[must_use]
    pub fn contents(&self, group: u8) -> BTreeMap<u64, u32> {
        let of_group = self.cached.iter().filter(|(key, _)| key.group == group);
        of_group.map(|(key, copies)| (key.name, copies.len() as u32)).collect()
    }

    /// Checks every invariant of the pool.
    ///
    /// # Panics
    /// If an invariant is violated.
    pub fn validate(&self) {
        let mut walked = 0;
        let mut id = self.head;
        let mut previous = NONE;
        while id != NONE {
            let block = &self.blocks[id as usize];
            assert!(block.free && block.references == 0, "used block {id} in the free list");
            assert_eq!(block.previous, previous, "free list is torn at {id}");
            walked += 1;
            assert!(walked <= self.blocks.len(), "free list has a cycle");
            (previous, id) = (id, block.next);
        }
        assert_eq!(previous, self.tail, "free list ends elsewhere");
        assert_eq!(walked, self.free, "free blocks are miscounted");
        let unused = self.blocks.iter().filter(|block| block.references == 0).count();
        assert_eq!(unused, self.free, "a block without users is not in the free list");
        let mut copies = 0;
        for (key, ids) in &self.cached {
            assert!(!ids.is_empty(), "empty cache entry {key:?}");
            for &id in ids {
                assert_eq!(self.blocks[id as usize].key, Some(*key), "block {id} holds another");
            }
            copies += ids.len();
        }
        let with_content = self.blocks.iter().filter(|block| block.key.is_some()).count();
        assert_eq!(with_content, copies, "a content is missing from the cache");
    }

    /// Removes the content of a block from the cache.
    fn forget(&mut self, id: BlockId) -> Option<CacheKey> {
        let key = self.blocks[id as usize].key.take()?;
        if let Some(copies) = self.cached.get_mut(&key) {
            copies.retain(|&copy| copy != id);
            if copies.is_empty() {
                self.cached.remove(&key);
            }
        }
        Some(key)
    }

    fn push_free(&mut self, id: BlockId) {
        let tail = self.tail;
        let block = &mut self.blocks[id as usize];
        (block.free, block.previous, block.next) = (true, tail, NONE);
        match tail {
            NONE => self.head = id,
            _ => self.blocks[tail as usize].next = id,
        }
        self.tail = id;
        self.free += 1;
    }

    fn unlink_free(&mut self, id: BlockId) {
        let block = &mut self.blocks[id as usize];
        let previous = block.previous;
        let next = block.next;
        (block.free, block.previous, block.next) = (false, NONE, NONE);
        match previous {
            NONE => self.head = next,
            _ => self.blocks[previous as usize].next = next,
        }
        match next {
            NONE => self.tail = previous,
            _ => self.blocks[next as usize].previous = previous,
        }
        self.free -= 1;
    }
}

#[cfg(test)]
#[path = "pool_test.rs"]
mod pool_test;
