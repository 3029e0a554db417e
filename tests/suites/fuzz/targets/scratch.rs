//! Folders for databases: in memory, where the system has a place for that.

use std::path::Path;
use tempfile::TempDir;

const IN_MEMORY: &str = "/dev/shm";

pub(super) fn folder() -> TempDir {
    let in_memory = Path::new(IN_MEMORY);
    let folder = if in_memory.is_dir() { TempDir::new_in(in_memory) } else { TempDir::new() };
    folder.expect("a folder")
}
