//! Tests device memory with a simulated driver (`tests/device/driver.c`): the calls, their order, and errors. It does
//! not test behaviour that requires an accelerator.
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

use kvasir_memory::{
    Arena, DeviceAllocator, Region, RegionKind, SlotLayout, StorageAllocator, SystemAllocator, copy,
};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

const LAYOUT: SlotLayout = SlotLayout { block_bytes: 50_000, stride_bytes: 50_176, slots: 2 };

fn driver(folder: &Path) -> PathBuf {
    let library = folder.join("libcuda-of-tests.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/device/driver.c");
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(source)
        .status()
        .expect("a C compiler");
    assert!(status.success());
    library
}

#[test]
fn blocks_go_to_the_device_and_come_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let devices = DeviceAllocator::with_driver(&driver(folder.path()), 0).expect("a device");
    let bytes = LAYOUT.bytes().expect("bytes");
    let memory = devices.allocate(bytes, 256).expect("device memory");
    assert_eq!((memory.kind(), memory.bytes()), (RegionKind::Device(0), bytes));
    let device = Arena::new(memory, LAYOUT).expect("an arena");
    let pinned = devices.pinned(bytes).expect("pinned memory");
    assert_eq!(pinned.kind(), RegionKind::Pinned);
    let pinned = Arena::new(Box::new(pinned), LAYOUT).expect("an arena");
    let system = SystemAllocator.allocate(bytes, 4096).expect("memory");
    let system = Arena::new(system, LAYOUT).expect("an arena");

    let block: Vec<u8> = (0..=250).cycle().take(LAYOUT.block_bytes).collect();
    let mut source = pinned.write(0).expect("a free slot");
    assert!(source.as_slice().expect("host memory").iter().all(|byte| *byte == 0));
    source.write(0, &block).expect("room");
    let source = source.into_read();
    let mut on_device = device.write(1).expect("a free slot");
    assert!(on_device.as_slice().is_none());
    assert_eq!(copy(&source, &mut on_device, block.len(), |_| true), Ok(true));
    let on_device = on_device.into_read();
    // Read from another thread, on which the context was never current.
    let back = thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut target = system.write(0).expect("a free slot");
            assert_eq!(copy(&on_device, &mut target, block.len(), |_| true), Ok(true));
            target.as_slice().expect("host memory").to_vec()
        });
        reader.join().expect("a thread that ended")
    });
    assert_eq!(back, block);
    assert!(on_device.read(block.len() - 1, &mut [0, 0]).is_err());
}

#[test]
fn what_is_missing_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let error = |driver: &Path, device| {
        DeviceAllocator::with_driver(driver, device).map(drop).expect_err("an error").to_string()
    };
    let none = error(&folder.path().join("libcuda.so.1"), 0);
    assert!(none.contains("no CUDA driver is installed"), "{none}");
    let library = driver(folder.path());
    let third = error(&library, 3);
    assert!(third.contains("accelerator 3 does not exist: the driver has 1"), "{third}");
    let devices = DeviceAllocator::with_driver(&library, 0).expect("a device");
    let refusal = |bytes, alignment| {
        devices.allocate(bytes, alignment).map(drop).expect_err("an error").to_string()
    };
    assert!(refusal(2 << 30, 256).contains("cuMemAlloc: out of memory (error 2)"));
    assert!(refusal(4096, 4096).contains("aligned to 256 bytes, not to 4096"));
    let libc = error(Path::new("libm.so.6"), 0);
    assert!(libc.contains("is not a CUDA driver"), "{libc}");
}
