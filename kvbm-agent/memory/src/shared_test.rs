use super::{Backing, HEADER_BYTES, SharedStorage};
use crate::arena::{Arena, SlotLayout};
use crate::region::AllocateError;
use rustix::process::{Resource, getrlimit};
use std::env::current_exe;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

const LAYOUT: SlotLayout = SlotLayout { block_bytes: 5000, stride_bytes: 8192, slots: 3 };

fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("kvasir-arena").tempdir_in("/dev/shm").expect("a folder")
}

/// An engine in Python: it maps the file, reads the header, changes one block and leaves a value in another.
const ENGINE: &str = r#"
import mmap, struct, sys
with open(sys.argv[1], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
magic, version, start, block, stride, slots = struct.unpack_from("<8sIIQQQ", memory)
assert (magic, version) == (b"KVASIRSM", 1), (magic, version)
assert len(memory) == start + stride * slots
assert memory[start:start + block] == bytes([7]) * block
at = start + stride
memory[at:at + block] = bytes(i % 256 for i in range(block))
print(start, block, stride, slots)
"#;

fn python_maps(storage: SharedStorage) {
    let path = storage.path();
    let arena = Arena::new(Box::new(storage), LAYOUT).expect("an arena");
    arena.write(0).expect("a writer").write(0, &[7; 5000]).expect("room");
    let engine = Command::new("python3").args(["-c", ENGINE]).arg(&path).output().expect("python3");
    let errors = String::from_utf8_lossy(&engine.stderr);
    assert!(engine.status.success(), "{errors}");
    assert_eq!(String::from_utf8_lossy(&engine.stdout).trim(), "4096 5000 8192 3");
    let mut block = vec![0; 5000];
    arena.read(1).expect("a reader").read(0, &mut block).expect("a block");
    assert!(block.iter().enumerate().all(|(at, byte)| usize::from(*byte) == at % 256));
}

#[test]
fn python_maps_a_memfd() {
    python_maps(SharedStorage::create(&Backing::Memfd, LAYOUT).expect("shared memory"));
}

#[test]
fn python_maps_a_file() {
    let folder = folder();
    let path = folder.path().join("arena");
    python_maps(SharedStorage::create(&Backing::File(path.clone()), LAYOUT).expect("a file"));
    assert!(!path.exists(), "the owner removes its file");
}

#[test]
fn the_other_side_maps_what_was_made() {
    let owner = SharedStorage::create(&Backing::Memfd, LAYOUT).expect("shared memory");
    let engine = SharedStorage::open(&owner.path()).expect("the same memory");
    assert_eq!(engine.layout(), LAYOUT);
    let owner = Arena::new(Box::new(owner), LAYOUT).expect("an arena");
    let engine = Arena::new(Box::new(engine), LAYOUT).expect("an arena");
    engine.write(2).expect("a writer").write(4990, b"0123456789").expect("room");
    let mut seen = [0; 10];
    owner.read(2).expect("a reader").read(4990, &mut seen).expect("a block");
    assert_eq!(&seen, b"0123456789");
}

#[test]
fn nobody_changes_the_size_of_a_memfd() {
    let storage = SharedStorage::create(&Backing::Memfd, LAYOUT).expect("shared memory");
    let file = fs::OpenOptions::new().write(true).open(storage.path()).expect("the same file");
    assert!(file.set_len(0).is_err());
    assert!(file.set_len(1 << 20).is_err());
}

#[test]
fn a_file_has_one_owner_and_outlives_a_crash() {
    let folder = folder();
    let path = folder.path().join("arena");
    let backing = Backing::File(path.clone());
    let owner = SharedStorage::create(&backing, LAYOUT).expect("a file");
    let second = SharedStorage::create(&backing, LAYOUT).map(drop);
    assert!(matches!(second, Err(AllocateError::InUse { .. })), "{second:?}");
    assert!(path.exists());
    drop(owner);
    // A file left behind by a killed owner.
    fs::write(&path, super::header(LAYOUT)).expect("a file");
    let owner = SharedStorage::create(&backing, LAYOUT).expect("a fresh file");
    assert_eq!(SharedStorage::open(&path).expect("an arena").layout(), LAYOUT);
    drop(owner);
}

#[test]
fn what_is_no_arena_is_refused() {
    let folder = folder();
    let path = folder.path().join("file");
    let refused = |bytes: &[u8]| -> String {
        fs::write(&path, bytes).expect("a file");
        SharedStorage::open(&path).map(drop).expect_err("no arena").to_string()
    };
    assert!(refused(b"short").contains("too short"));
    assert!(refused(&[0; HEADER_BYTES]).contains("does not begin as one"));
    let mut header = super::header(LAYOUT);
    header.resize(HEADER_BYTES, 0);
    assert!(refused(&header).contains("do not fit"));
    header[8] = 9;
    assert!(refused(&header).contains("version 9, and this is version 1"));
    header[8] = 1;
    header[12] = 1;
    assert!(refused(&header).contains("begin at"));
}

/// A mistyped path does not destroy another file.
#[test]
fn a_file_of_others_is_not_replaced() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    fs::write(&path, b"weights of a model").expect("a file");
    let outcome = SharedStorage::create(&Backing::File(path.clone()), LAYOUT).map(drop);
    assert!(matches!(outcome, Err(AllocateError::Foreign { .. })), "{outcome:?}");
    assert_eq!(fs::read(&path).expect("it is there"), b"weights of a model");
}

#[test]
fn more_than_the_machine_has_is_refused_at_once() {
    let layout = SlotLayout { block_bytes: 1 << 40, stride_bytes: 1 << 40, slots: 64 };
    let outcome = SharedStorage::create(&Backing::Memfd, layout).map(drop);
    assert!(matches!(outcome, Err(AllocateError::Refused { .. })), "{outcome:?}");
}

/// Also runs in a second process, which may not create files of more than 64 KiB.
#[test]
fn a_file_that_finds_no_room_is_not_left_behind() {
    if getrlimit(Resource::Fsize).current == Some(65_536) {
        let layout = SlotLayout { slots: 100, ..LAYOUT };
        let path = PathBuf::from("arena");
        let refused = SharedStorage::create(&Backing::File(path.clone()), layout).map(drop);
        assert!(matches!(refused, Err(AllocateError::File { .. })), "{refused:?}");
        assert!(!path.exists(), "it is left behind");
        return;
    }
    let folder = folder();
    let this = "shared::tests::a_file_that_finds_no_room_is_not_left_behind";
    // The limit is in blocks of 512 bytes. The signal is ignored.
    let limited = "trap '' XFSZ; ulimit -f 128; exec \"$0\" --exact \"$1\"";
    let own = current_exe().expect("this program");
    let mut child = Command::new("sh");
    child.args(["-c", limited]).arg(own).arg(this).current_dir(&folder);
    let output = child.output().expect("sh");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
}
