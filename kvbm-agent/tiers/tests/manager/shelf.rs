//! Volumes for tests: one in a map, and, with feature `objects`, real ones in memory and in files.

use kvasir_memory::{ReadSlot, WriteSlot};
use kvasir_proto::types::SequenceHash;
use kvasir_tiers::faults::Damage;
use kvasir_tiers::{
    Cancel, Checksum, NewBlock, Place, Sealed, Storage, StorageKind, TransferError,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

/// A volume whose objects a test can change.
pub(crate) trait Shelf: Debug + Send + Sync {
    fn storage(&self) -> Arc<dyn Storage>;

    /// The stored blocks, by their headers.
    fn blocks(&self) -> Vec<Sealed>;

    /// Changes the stored bytes of a block.
    fn edit(&self, sequence: SequenceHash, change: &dyn Fn(&mut Vec<u8>));

    /// Stores the object of one block under the name of another.
    fn replace(&self, sequence: SequenceHash, by: SequenceHash);

    fn damage(&self, sequence: SequenceHash, at: usize) {
        self.edit(sequence, &|bytes| bytes[at] ^= 1);
    }

    fn cut(&self, sequence: SequenceHash) {
        self.edit(sequence, &|bytes| bytes.truncate(1_000));
    }

    fn has(&self, sequence: SequenceHash) -> bool {
        self.blocks().iter().any(|block| block.identity.sequence_hash == sequence.0)
    }
}

/// One volume of each kind.
pub(crate) fn all() -> Vec<Arc<dyn Shelf>> {
    #[cfg(feature = "objects")]
    let objects = crate::objects::all();
    #[cfg(not(feature = "objects"))]
    let objects = [];
    std::iter::once(Map::shelf()).chain(objects).collect()
}

/// Flips a bit of some object.
pub(crate) fn flips(shelf: &Arc<dyn Shelf>) -> Damage {
    let shelf = Arc::clone(shelf);
    Box::new(move |_, random| {
        let blocks = shelf.blocks();
        let Some(at) = (random as usize).checked_rem(blocks.len()) else { return };
        let sequence = SequenceHash(blocks[at].identity.sequence_hash);
        shelf.damage(sequence, (random >> 32) as usize % blocks[at].bytes);
    })
}

/// Blocks by name, in a map.
#[derive(Default)]
pub(crate) struct Map(Arc<Mutex<Objects>>);

type Objects = BTreeMap<u64, (Sealed, Vec<u8>)>;

impl Debug for Map {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str("a map")
    }
}

impl Map {
    pub(crate) fn shelf() -> Arc<dyn Shelf> {
        Arc::new(Self::default())
    }
}

impl Shelf for Map {
    fn storage(&self) -> Arc<dyn Storage> {
        Arc::new(Self(Arc::clone(&self.0)))
    }

    fn blocks(&self) -> Vec<Sealed> {
        self.0.lock().values().map(|(block, _)| *block).collect()
    }

    fn edit(&self, sequence: SequenceHash, change: &dyn Fn(&mut Vec<u8>)) {
        if let Some((_, bytes)) = self.0.lock().get_mut(&sequence.0) {
            change(bytes);
        }
    }

    fn replace(&self, sequence: SequenceHash, by: SequenceHash) {
        let mut map = self.0.lock();
        let other = map.get(&by.0).expect("a block").clone();
        map.insert(sequence.0, other);
    }
}

impl Storage for Map {
    fn kind(&self) -> StorageKind {
        StorageKind::Foreign
    }

    fn block_bytes(&self) -> usize {
        crate::world::BLOCK_BYTES
    }

    fn slots(&self) -> Option<u32> {
        None
    }

    fn store(
        &self,
        _: Place,
        block: &NewBlock,
        source: &ReadSlot,
        cancel: &Cancel,
    ) -> Result<Sealed, TransferError> {
        cancel.check()?;
        let NewBlock { identity, bytes, checksum } = *block;
        let mut copy = vec![0; bytes];
        source.read(0, &mut copy)?;
        let found = Checksum::of(identity.sequence_hash, &copy);
        if let Some(expected) = checksum.filter(|stated| *stated != found) {
            return Err(TransferError::Corrupt { expected, found });
        }
        let sealed = Sealed { identity, bytes, checksum: found };
        Ok(self.0.lock().entry(identity.sequence_hash).or_insert((sealed, copy)).0)
    }

    fn load(
        &self,
        _: Place,
        block: &Sealed,
        target: &mut WriteSlot,
        cancel: &Cancel,
    ) -> Result<(), TransferError> {
        cancel.check()?;
        let name = block.identity.sequence_hash;
        let (_, bytes) = self.0.lock().get(&name).cloned().ok_or(TransferError::Missing)?;
        if bytes.len() != block.bytes {
            return Err(TransferError::Short { done: bytes.len(), wanted: block.bytes });
        }
        target.write(0, &bytes)?;
        match Checksum::of(name, &bytes) {
            found if found == block.checksum => Ok(()),
            found => Err(TransferError::Corrupt { expected: block.checksum, found }),
        }
    }

    fn erase(&self, _: Place, name: u64, cancel: &Cancel) -> Result<(), TransferError> {
        cancel.check()?;
        self.0.lock().remove(&name);
        Ok(())
    }
}
