//! Example of third-party regions: one that the processor addresses, and one that it accesses by copies.
#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
#![expect(unsafe_code, reason = "whoever implements a region promises what its pointer leads to")]

use kvasir_memory::{
    Access, AccessError, AllocateError, Arena, ClaimError, Copies, Region, RegionKind, SlotLayout,
    StorageAllocator, copy,
};
use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

const LAYOUT: SlotLayout = SlotLayout { block_bytes: 30_000, stride_bytes: 32_768, slots: 4 };

/// Memory from another allocator, here the heap.
#[derive(Debug)]
struct Heap(Box<[UnsafeCell<u8>]>);

// SAFETY: only the arena accesses the bytes, and its claims separate threads.
unsafe impl Sync for Heap {}

// SAFETY: the box owns initialised bytes, which do not move with the value; the type exposes no other access.
unsafe impl Region for Heap {
    fn kind(&self) -> RegionKind {
        RegionKind::Foreign
    }

    fn bytes(&self) -> usize {
        self.0.len()
    }

    fn access(&self) -> Access<'_> {
        // A pointer to all bytes, through cells, so that they may be written.
        Access::Private(NonNull::from(&*self.0).cast())
    }
}

/// Memory behind a device's interface. Its only unsafe part is the promise of the trait, and it has no pointer.
#[derive(Debug)]
struct Remote(Mutex<Vec<u8>>);

// SAFETY: there is no pointer; the size never changes.
unsafe impl Region for Remote {
    fn kind(&self) -> RegionKind {
        RegionKind::Device(7)
    }

    fn bytes(&self) -> usize {
        self.0.lock().expect("not poisoned").len()
    }

    fn access(&self) -> Access<'_> {
        Access::Copied(self)
    }
}

impl Copies for Remote {
    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), AccessError> {
        let memory = self.0.lock().expect("not poisoned");
        AccessError::check(offset, into.len(), memory.len())?;
        into.copy_from_slice(&memory[offset..offset + into.len()]);
        Ok(())
    }

    fn write(&self, offset: usize, from: &[u8]) -> Result<(), AccessError> {
        let mut memory = self.0.lock().expect("not poisoned");
        AccessError::check(offset, from.len(), memory.len())?;
        memory[offset..offset + from.len()].copy_from_slice(from);
        Ok(())
    }
}

#[derive(Debug)]
struct HeapAllocator;

impl StorageAllocator for HeapAllocator {
    fn allocate(&self, bytes: usize, alignment: usize) -> Result<Box<dyn Region>, AllocateError> {
        if alignment > 1 {
            return Err(AllocateError::Alignment(alignment));
        }
        Ok(Box::new(Heap((0..bytes).map(|_| UnsafeCell::new(0)).collect())))
    }
}

#[derive(Debug)]
struct RemoteAllocator;

impl StorageAllocator for RemoteAllocator {
    fn allocate(&self, bytes: usize, _: usize) -> Result<Box<dyn Region>, AllocateError> {
        Ok(Box::new(Remote(Mutex::new(vec![0; bytes]))))
    }
}

fn arena(allocator: &dyn StorageAllocator) -> Arc<Arena> {
    let region = allocator.allocate(LAYOUT.bytes().expect("bytes"), 1).expect("memory");
    Arena::new(region, LAYOUT).expect("an arena")
}

#[test]
fn plugged_in_memory_is_used_like_any_other() {
    let block: Vec<u8> = (0..=250).cycle().take(LAYOUT.block_bytes).collect();
    let heap = arena(&HeapAllocator);
    let remote = arena(&RemoteAllocator);
    for (from, to) in [(&heap, &remote), (&remote, &heap), (&remote, &remote), (&heap, &heap)] {
        let mut source = from.write(1).expect("a free slot");
        source.write(0, &block).expect("room");
        let source = source.into_read();
        let mut target = to.write(3).expect("a free slot");
        let mut seen = Vec::new();
        let look = |piece: &[u8]| {
            seen.extend_from_slice(piece);
            true
        };
        assert_eq!(copy(&source, &mut target, block.len(), look), Ok(true));
        assert_eq!(seen, block);
        assert_eq!(to.write(3).err(), Some(ClaimError::Written(3)));
        let mut back = vec![0; block.len()];
        target.into_read().read(0, &mut back).expect("a block");
        assert_eq!(back, block);
    }
    assert!(heap.read(0).expect("a reader").as_slice().is_some());
    assert!(remote.read(0).expect("a reader").as_slice().is_none());
}
