//! The files that the rules are about.

use std::fs;
use std::path::{Path, PathBuf};

/// One source file.
pub struct Source {
    /// Path from the root of the repository.
    pub path: String,
    pub text: String,
}

impl Source {
    /// Lines before the file's unit tests.
    pub fn production_lines(&self) -> usize {
        self.text.lines().take_while(|line| *line != "#[cfg(test)]").count()
    }

    pub fn is_test(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        name.ends_with("_test.rs")
            || self.path.starts_with("tests/")
            || self.path.starts_with("benches/")
            || self.path.contains("/tests/")
            || self.path.contains("/fuzz/")
    }
}

/// Folders with Rust code.
const FOLDERS: [&str; 10] = [
    "proto",
    "engine",
    "kit",
    "indexer-server",
    "router-client",
    "kvbm-agent",
    "clients",
    "sim",
    "tests",
    "benches",
];

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace's folder")
}

pub fn read(path: &str) -> String {
    let full = root().join(path);
    fs::read_to_string(&full).unwrap_or_else(|error| panic!("{}: {error}", full.display()))
}

/// All Rust files of the workspace but generated ones.
pub fn rust_files() -> Vec<Source> {
    let mut files = Vec::new();
    for folder in FOLDERS {
        walk(&root().join(folder), &mut files);
    }
    assert!(files.len() > 50, "the walk found {} files", files.len());
    files.sort();
    let relative =
        |path: &PathBuf| path.strip_prefix(root()).expect("inside the root").display().to_string();
    let sources = files.iter().map(|path| Source {
        path: relative(path),
        text: fs::read_to_string(path).expect("a text file"),
    });
    sources.filter(|source| !source.path.contains("/src/gen/")).collect()
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).expect("a folder");
    for entry in entries.map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() {
            if !entry.ends_with("target") {
                walk(&entry, files);
            }
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            files.push(entry);
        }
    }
}
