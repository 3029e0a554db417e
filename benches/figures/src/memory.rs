//! How much memory this machine has.

use std::fs;

/// Bytes of memory; 0 if not known.
#[must_use]
pub fn total_bytes() -> u64 {
    kibibytes("MemTotal") << 10
}

/// Bytes that can still be used without swapping; 0 if not known.
#[must_use]
pub fn available_bytes() -> u64 {
    kibibytes("MemAvailable") << 10
}

fn kibibytes(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or(0)
}
