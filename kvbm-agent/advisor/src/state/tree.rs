use kvasir_proto::convert::{StorageBlock, WorkerAddress};
use kvasir_proto::types::PartitionKey;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::time::Duration;

/// Maximum number of places (locations of workers).
pub const PLACES_MAX: usize = 16_384;

/// Number of a place, never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlaceId(u32);

/// Key of a block. Sequence hashes of different models or tenants are unrelated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockKey {
    pub(super) partition: u32,
    /// Sequence hash of the block.
    pub sequence: u64,
}

/// A worker's location, with its blocks.
#[derive(Debug)]
struct Place {
    address: WorkerAddress,
    location: String,
    partition: u32,
    /// Sequence hashes of the blocks, each with the number of the last image that listed it.
    blocks: FxHashMap<u64, u32>,
    bytes: u64,
    /// Number of the latest image, complete or in progress.
    image: u32,
    /// Blocks refused since the last image began, because the tree was full.
    refused: u64,
}

/// A block that at least one place has.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) parent: Option<u64>,
    pub(super) bytes: u64,
    pub(super) places: SmallVec<[PlaceId; 2]>,
    heat: f64,
    used: Duration,
}

/// Public view of a place.
#[derive(Debug, Clone, Copy)]
pub struct PlaceView<'a> {
    /// Number of the place.
    pub id: PlaceId,
    /// The worker.
    pub address: &'a WorkerAddress,
    /// The location.
    pub location: &'a str,
    /// Number of blocks in the place.
    pub blocks: usize,
    /// Size of the place's blocks in bytes.
    pub bytes: u64,
}

/// Copies per block of capacity: a tree for 1,000 blocks accepts 4,000 copies.
pub(super) const BLOCK_COPIES: usize = 4;

/// Prefix tree of blocks, with the places that have each block. Blocks and copies are limited.
#[derive(Debug)]
pub struct Tree {
    blocks_max: usize,
    half_life: Duration,
    /// Numbers of partitions, at most [`PLACES_MAX`].
    partitions: FxHashMap<PartitionKey, u32>,
    ids: FxHashMap<(WorkerAddress, String), PlaceId>,
    places: BTreeMap<PlaceId, Place>,
    next_place: u32,
    nodes: FxHashMap<BlockKey, Node>,
    /// Number of copies: each block counts once per place.
    copies: usize,
    refused: u64,
}

impl Tree {
    /// Creates an empty tree for `blocks_max` blocks. The weight of a use halves after `half_life`.
    #[must_use]
    pub fn new(blocks_max: usize, half_life: Duration) -> Self {
        Self {
            blocks_max,
            half_life,
            partitions: FxHashMap::default(),
            ids: FxHashMap::default(),
            places: BTreeMap::new(),
            next_place: 0,
            nodes: FxHashMap::default(),
            copies: 0,
            refused: 0,
        }
    }

    /// Id of a worker's location, registered if it is new. `None` if there are [`PLACES_MAX`] places.
    pub fn place(&mut self, address: &WorkerAddress, location: &str) -> Option<PlaceId> {
        let key = (address.clone(), location.to_owned());
        if let Some(id) = self.ids.get(&key) {
            return Some(*id);
        }
        if self.places.len() >= PLACES_MAX {
            return None;
        }
        if self.partitions.len() >= PLACES_MAX {
            self.forget_partitions();
        }
        let new = u32::try_from(self.partitions.len()).unwrap_or(u32::MAX);
        let partition = *self.partitions.entry(address.partition.clone()).or_insert(new);
        let id = PlaceId(self.next_place);
        self.next_place = self.next_place.checked_add(1)?;
        let place = Place {
            address: address.clone(),
            location: location.to_owned(),
            partition,
            blocks: FxHashMap::default(),
            bytes: 0,
            image: 0,
            refused: 0,
        };
        self.places.insert(id, place);
        self.ids.insert(key, id);
        Some(id)
    }

    /// Clears the tree with its places, because the number of partitions has reached [`PLACES_MAX`].
    fn forget_partitions(&mut self) {
        self.partitions.clear();
        self.ids.clear();
        self.places.clear();
        self.nodes.clear();
        self.copies = 0;
    }

    /// Stores a block in a place. Counts a use of the block, and of the block that it continues.
    pub fn store(&mut self, place: PlaceId, block: &StorageBlock, now: Duration) {
        if !self.insert(place, block, now) {
            return;
        }
        let Some(partition) = self.places.get(&place).map(|at| at.partition) else { return };
        let used = [Some(block.sequence), block.prefix];
        for sequence in used.into_iter().flatten() {
            let half_life = self.half_life;
            let key = BlockKey { partition, sequence: sequence.0 };
            if let Some(node) = self.nodes.get_mut(&key) {
                node.heat = node.heat_at(now, half_life) + 1.0;
                node.used = now;
            }
        }
    }

    /// Removes a block from a place.
    pub fn remove(&mut self, place: PlaceId, sequence: u64) {
        let Some(at) = self.places.get_mut(&place) else { return };
        if at.blocks.remove(&sequence).is_none() {
            return;
        }
        self.copies -= 1;
        let key = BlockKey { partition: at.partition, sequence };
        let Some(node) = self.nodes.get_mut(&key) else { return };
        at.bytes = at.bytes.saturating_sub(node.bytes);
        node.places.retain(|other| *other != place);
        if node.places.is_empty() {
            self.nodes.remove(&key);
        }
    }

    /// Begins an image of a place. Earlier blocks stay until [`Tree::end_image`].
    pub fn begin_image(&mut self, place: PlaceId) {
        if let Some(at) = self.places.get_mut(&place) {
            at.image = at.image.wrapping_add(1);
            at.refused = 0;
        }
    }

    /// Adds a block of an image, without counting a use.
    pub fn restore(&mut self, place: PlaceId, block: &StorageBlock, now: Duration) {
        self.insert(place, block, now);
    }

    /// Ends an image: removes the blocks that it did not list.
    pub fn end_image(&mut self, place: PlaceId) {
        let Some(at) = self.places.get(&place) else { return };
        let gone = at.blocks.iter().filter(|(_, image)| **image != at.image);
        let gone: Vec<_> = gone.map(|(sequence, _)| *sequence).collect();
        for sequence in gone {
            self.remove(place, sequence);
        }
    }

    /// Removes a place and its blocks.
    pub fn forget(&mut self, place: PlaceId) {
        let Some(at) = self.places.get(&place) else { return };
        let all: Vec<_> = at.blocks.keys().copied().collect();
        for sequence in all {
            self.remove(place, sequence);
        }
        if let Some(at) = self.places.remove(&place) {
            self.ids.remove(&(at.address, at.location));
        }
    }

    /// Adds a block to a place. Returns whether the place has the block now.
    fn insert(&mut self, place: PlaceId, block: &StorageBlock, now: Duration) -> bool {
        let copies_max = self.copies_max();
        let Some(at) = self.places.get_mut(&place) else { return false };
        let sequence = block.sequence.0;
        let key = BlockKey { partition: at.partition, sequence };
        let is_full = match self.nodes.get(&key) {
            None => self.nodes.len() >= self.blocks_max,
            Some(_) => self.copies >= copies_max && !at.blocks.contains_key(&sequence),
        };
        if is_full {
            at.refused += 1;
            self.refused += 1;
            return false;
        }
        let parent = block.prefix.map(|prefix| prefix.0);
        let new =
            || Node { parent, bytes: block.bytes, places: SmallVec::new(), heat: 0.0, used: now };
        let node = self.nodes.entry(key).or_insert_with(new);
        if at.blocks.insert(sequence, at.image).is_none() {
            at.bytes = at.bytes.saturating_add(node.bytes);
            node.places.push(place);
            self.copies += 1;
        }
        true
    }

    const fn copies_max(&self) -> usize {
        self.blocks_max.saturating_mul(BLOCK_COPIES)
    }

    /// Number of different blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether the tree has no blocks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Whether a tenth of the room for blocks and copies is free, if the tree has `len` blocks.
    #[must_use]
    pub const fn has_room(&self, len: usize) -> bool {
        len <= self.blocks_max / 10 * 9 && self.copies <= self.copies_max() / 10 * 9
    }

    /// Number of blocks refused because the tree was full.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// Whether blocks of a place were refused for lack of room.
    #[must_use]
    pub fn is_partial(&self, place: PlaceId) -> bool {
        self.places.get(&place).is_some_and(|at| at.refused > 0)
    }

    /// All places.
    pub fn places(&self) -> impl Iterator<Item = PlaceView<'_>> {
        self.places.iter().map(|(id, at)| PlaceView {
            id: *id,
            address: &at.address,
            location: &at.location,
            blocks: at.blocks.len(),
            bytes: at.bytes,
        })
    }

    /// One place; `None` if it is unknown.
    #[must_use]
    pub fn view(&self, place: PlaceId) -> Option<PlaceView<'_>> {
        let at = self.places.get(&place)?;
        let blocks = at.blocks.len();
        let bytes = at.bytes;
        Some(PlaceView { id: place, address: &at.address, location: &at.location, blocks, bytes })
    }

    /// Sequence hashes of a place's blocks, in order.
    #[must_use]
    pub fn blocks_of(&self, place: PlaceId) -> Vec<u64> {
        let blocks = self.places.get(&place).map(|at| at.blocks.keys().copied());
        let mut blocks: Vec<_> = blocks.into_iter().flatten().collect();
        blocks.sort_unstable();
        blocks
    }

    /// All blocks, in no order.
    pub(super) fn nodes(&self) -> impl Iterator<Item = (BlockKey, &Node)> {
        self.nodes.iter().map(|(key, node)| (*key, node))
    }

    pub(super) fn node(&self, key: BlockKey) -> Option<&Node> {
        self.nodes.get(&key)
    }

    /// The block that a block continues; `None` if the tree lacks it.
    pub(super) fn parent(&self, key: BlockKey) -> Option<(BlockKey, &Node)> {
        let sequence = self.node(key)?.parent?;
        let key = BlockKey { sequence, ..key };
        Some((key, self.node(key)?))
    }

    /// Recent uses of a block, weighted by age.
    pub(super) fn heat(&self, node: &Node, now: Duration) -> f64 {
        node.heat_at(now, self.half_life)
    }
}

impl Node {
    fn heat_at(&self, now: Duration, half_life: Duration) -> f64 {
        let half_lives = self.idle(now).as_secs_f64() / half_life.as_secs_f64().max(1e-3);
        self.heat * (-half_lives).exp2()
    }

    pub(super) const fn idle(&self, now: Duration) -> Duration {
        now.saturating_sub(self.used)
    }
}
