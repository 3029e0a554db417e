//! The download folder of tests, and free ports for their processes.

use anyhow::{Result, bail};
use std::env;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};

/// The download folder: `KVASIR_CACHE`, or `.cache/kvasir` in the home folder.
#[must_use]
pub fn cache() -> PathBuf {
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache/kvasir"));
    let chosen = env::var_os("KVASIR_CACHE").map(PathBuf::from);
    chosen.or_else(home).unwrap_or_else(env::temp_dir)
}

/// A free port outside the range that the system assigns, so that no other process takes it first.
///
/// # Errors
/// If no port is free.
pub fn free_port() -> Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = u16::try_from(std::process::id() % 10_000)?;
    for _ in 0..1_000 {
        let port = 20_000 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 12_000;
        if TcpListener::bind(("0.0.0.0", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port between 20000 and 32000")
}
