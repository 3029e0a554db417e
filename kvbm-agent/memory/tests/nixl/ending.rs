//! The end of a process that has used NIXL.

use crate::found::library;
use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

/// UCX then loads two copies of libnl-route, whose initialisers and finalisers must not call each other's functions.
#[test]
fn a_process_ends_cleanly_where_the_system_has_rdma_libraries() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nixl/rdma");
    let made = Command::new(script).arg(library("tests/nixl/library")).arg(folder.path()).status();
    assert!(made.expect("the script").success(), "the libraries can't be made");

    let log = folder.path().join("linker");
    let output = Command::new(env::current_exe().expect("this program"))
        .args(["--exact", "blocks_of_a_peer_are_read_byte_for_byte"])
        .env("LD_LIBRARY_PATH", folder.path())
        // The dynamic linker logs the files that it loads. It appends the process id to the log's name.
        .env("LD_DEBUG", "files")
        .env("LD_DEBUG_OUTPUT", &log)
        .output()
        .expect("a process");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains("1 passed"), "{told}");
    assert!(output.status.success(), "{}", output.status);

    let linked: String = fs::read_dir(folder.path())
        .expect("the folder")
        .map(|file| file.expect("a file").path())
        .filter(|path| path.to_string_lossy().contains("linker."))
        .map(|path| fs::read_to_string(path).expect("a text"))
        .collect();
    for name in ["libefa.so.1", "libnl-route-3.so.200"] {
        let path = folder.path().join(name);
        assert!(linked.contains(&format!("calling init: {}", path.display())), "no {name}");
    }
}
