use crate::buffer::AlignedBuffer;
use crate::pinned::PinnedStorage;
use crate::region::{Access, AllocateError, Region};
use crate::system::SystemStorage;
use std::env;
use std::process::Command;

#[test]
fn alignments_are_kept() {
    for shift in [0, 3, 12, 16, 21] {
        let storage = SystemStorage::new(12_345, 1 << shift).expect("memory");
        let Access::Private(first) = storage.access() else { panic!("not private") };
        assert_eq!(first.as_ptr().align_offset(1 << shift), 0);
        assert_eq!(storage.bytes(), 12_345);
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let refused = |bytes, alignment| SystemStorage::new(bytes, alignment).map(drop);
    assert!(matches!(refused(0, 1), Err(AllocateError::Empty)));
    assert!(matches!(refused(1, 0), Err(AllocateError::Alignment(0))));
    assert!(matches!(refused(1, 3), Err(AllocateError::Alignment(3))));
    assert!(matches!(refused(usize::MAX, 1), Err(AllocateError::TooLarge { .. })));
    assert!(matches!(refused(1, 1 << 63), Err(AllocateError::TooLarge { .. })));
    assert!(matches!(refused(1 << 60, 1), Err(AllocateError::Refused { .. })));
}

#[test]
fn buffers_are_aligned_zeros_that_can_be_written() {
    let mut buffer = AlignedBuffer::new(70_000, 4096).expect("memory");
    assert_eq!((buffer.len(), buffer.as_ptr().align_offset(4096)), (70_000, 0));
    assert!(buffer.iter().all(|byte| *byte == 0));
    buffer[69_999] = 1;
    assert_eq!(buffer.last(), Some(&1));
}

#[test]
fn locked_memory_is_locked_or_says_which_limit_is_too_low() {
    // In a separate process, whose limit is lowered and which has no right to exceed it.
    if env::var_os("KVASIR_LOCK").is_some() {
        match PinnedStorage::new(1 << 20, 4096) {
            Ok(_) => panic!("locked"),
            Err(error) => println!("refused: {error}"),
        }
        return;
    }
    let small = PinnedStorage::new(64 << 10, 4096).expect("64 KiB of locked memory");
    assert_eq!(small.bytes(), 64 << 10);
    let name = "system::tests::locked_memory_is_locked_or_says_which_limit_is_too_low";
    let program = env::current_exe().expect("this test");
    // Root may lock any memory, so run this as user nobody if possible.
    let script =
        "ulimit -l 64; exec setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock -- \"$@\"";
    let output = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(program)
        .args(["--exact", name, "--nocapture"])
        .env("KVASIR_LOCK", "1")
        .output()
        .expect("a shell");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("RLIMIT_MEMLOCK is 65536 bytes: raise it"), "{text}{errors}");
}
