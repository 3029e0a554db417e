//! Reads the amount of memory of this machine.

use std::fs;

/// Total memory in bytes; 0 if unknown.
#[must_use]
pub fn total_bytes() -> u64 {
    kibibytes("MemTotal") << 10
}

/// Memory available without swapping, in bytes; 0 if unknown.
#[must_use]
pub fn available_bytes() -> u64 {
    kibibytes("MemAvailable") << 10
}

fn kibibytes(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or(0)
}
