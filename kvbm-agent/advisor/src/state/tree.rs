use kvasir_proto::convert::{StorageBlock, WorkerAddress};
use kvasir_proto::types::PartitionKey;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::time::Duration;

/// Most places (locations of workers) at a time.
pub const PLACES_MAX: usize = 16_384;

/// Number of a place. It is not used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlaceId(u32);

/// Names a block: sequence hashes of different models or tenants have nothing to do with one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockKey {
    pub(super) partition: u32,
    /// Its sequence hash.
    pub sequence: u64,
}

/// A location of a worker, and what it has.
#[derive(Debug)]
struct Place {
    address: WorkerAddress,
    location: String,
    partition: u32,
    /// Its blocks, each with the last image that had it.
    blocks: FxHashMap<u64, u32>,
    bytes: u64,
    /// Number of the image that is being taken, or was taken last.
    image: u32,
    /// Blocks that were not taken, for the tree was full, since the last image began.
    refused: u64,
}

/// A block that some place has.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) parent: Option<u64>,
    pub(super) bytes: u64,
    pub(super) places: SmallVec<[PlaceId; 2]>,
    heat: f64,
    used: Duration,
}

/// A place as it is shown.
#[derive(Debug, Clone, Copy)]
pub struct PlaceView<'a> {
    /// Its number.
    pub id: PlaceId,
    /// The worker.
    pub address: &'a WorkerAddress,
    /// The location.
    pub location: &'a str,
    /// Blocks that it has.
    pub blocks: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// Copies for each block that may be: a tree for 1,000 blocks takes 4,000 copies.
pub(super) const BLOCK_COPIES: usize = 4;

/// Blocks by their prefixes, and the places that have them; at most so many.
#[derive(Debug)]
pub struct Tree {
    blocks_max: usize,
    half_life: Duration,
    /// Numbers of partitions, at most as many as there were places.
    partitions: FxHashMap<PartitionKey, u32>,
    ids: FxHashMap<(WorkerAddress, String), PlaceId>,
    places: BTreeMap<PlaceId, Place>,
    next_place: u32,
    nodes: FxHashMap<BlockKey, Node>,
    /// Blocks of all places, each as often as places have it.
    copies: usize,
    refused: u64,
}

impl Tree {
    /// An empty one for `blocks_max` blocks. A use counts half as much after `half_life`.
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

    /// The place of a worker's location, which is new if it was not known; none if there are [`PLACES_MAX`].
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

    /// Forgets everything, places too: there were more partitions than there may be places.
    fn forget_partitions(&mut self) {
        self.partitions.clear();
        self.ids.clear();
        self.places.clear();
        self.nodes.clear();
        self.copies = 0;
    }

    /// A block is stored in a place: a use of it, and of the block that it continues.
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

    /// A block is removed from a place.
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

    /// All that a place has is about to be told. What it had stays until [`Tree::end_image`].
    pub fn begin_image(&mut self, place: PlaceId) {
        if let Some(at) = self.places.get_mut(&place) {
            at.image = at.image.wrapping_add(1);
            at.refused = 0;
        }
    }

    /// A block of an image: no use of it.
    pub fn restore(&mut self, place: PlaceId, block: &StorageBlock, now: Duration) {
        self.insert(place, block, now);
    }

    /// All was told: what was not is gone.
    pub fn end_image(&mut self, place: PlaceId) {
        let Some(at) = self.places.get(&place) else { return };
        let gone = at.blocks.iter().filter(|(_, image)| **image != at.image);
        let gone: Vec<_> = gone.map(|(sequence, _)| *sequence).collect();
        for sequence in gone {
            self.remove(place, sequence);
        }
    }

    /// Forgets a place and what it has.
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

    /// Whether the place has the block now.
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

    /// Blocks that any place has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Whether a tenth of its room is free again.
    #[must_use]
    pub const fn has_room(&self, len: usize) -> bool {
        len <= self.blocks_max / 10 * 9 && self.copies <= self.copies_max() / 10 * 9
    }

    /// Blocks that were not taken, for the tree was full.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// Whether a place lacks blocks that there was no room for.
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

    /// One place.
    #[must_use]
    pub fn view(&self, place: PlaceId) -> Option<PlaceView<'_>> {
        let at = self.places.get(&place)?;
        let blocks = at.blocks.len();
        let bytes = at.bytes;
        Some(PlaceView { id: place, address: &at.address, location: &at.location, blocks, bytes })
    }

    /// Blocks of a place, by their sequence hashes in order.
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

    /// The block that a block continues, if any place has it.
    pub(super) fn parent(&self, key: BlockKey) -> Option<(BlockKey, &Node)> {
        let sequence = self.node(key)?.parent?;
        let key = BlockKey { sequence, ..key };
        Some((key, self.node(key)?))
    }

    /// Uses of a block of late.
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
