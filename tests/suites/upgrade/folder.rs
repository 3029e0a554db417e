//! Folders of recorded versions, and the scratch copies that tests open in their place.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// What a database leaves beside its data: nobody reads it back, and it names the machine.
const NOT_DATA: [&str; 2] = ["LOG", "LOCK"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/upgrades")
}

/// Folder of a version.
pub fn of(version: &str) -> PathBuf {
    root().join(version)
}

/// Folders of all recorded versions, in order.
pub fn versions() -> Result<Vec<PathBuf>> {
    let mut versions = Vec::new();
    for entry in fs::read_dir(root()).context("tests/data/upgrades")? {
        let path = entry?.path();
        if path.is_dir() {
            versions.push(path);
        }
    }
    ensure!(!versions.is_empty(), "no version is recorded");
    versions.sort();
    Ok(versions)
}

/// A copy that may be written to.
pub fn copy(from: &Path) -> Result<TempDir> {
    let scratch = TempDir::new()?;
    copy_into(from, scratch.path())?;
    Ok(scratch)
}

/// Copies a folder, without what is no data.
pub fn copy_into(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let path = entry.path();
        let name = entry.file_name();
        let target = to.join(&name);
        if path.is_dir() {
            copy_into(&path, &target)?;
        } else if !NOT_DATA.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            fs::copy(&path, &target)?;
        }
    }
    Ok(())
}

/// Writes what a recorded folder is to be read as.
pub fn expect(version: &Path, name: &str, text: &str) -> Result<()> {
    fs::create_dir_all(version)?;
    Ok(fs::write(version.join(name), text)?)
}

/// Compares with what was recorded.
pub fn compare(version: &Path, name: &str, text: &str) -> Result<()> {
    let path = version.join(name);
    let expected = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    for (at, (expected, found)) in expected.lines().zip(text.lines()).enumerate() {
        ensure!(expected == found, "{name}, line {}: {expected:?} is read as {found:?}", at + 1);
    }
    ensure!(expected == text, "{name}: {} bytes are read as {}", expected.len(), text.len());
    Ok(())
}
