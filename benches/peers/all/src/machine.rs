//! What a figure was measured on.

use bench_figures::memory;
use std::fs;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

/// The machine at the time of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Machine {
    /// Name of the processor.
    pub(crate) processor: String,
    /// Processors that this process may use.
    pub(crate) processors: usize,
    /// Memory in GiB.
    pub(crate) memory_gib: u64,
    /// Load averages over 1, 5 and 15 minutes.
    pub(crate) load: String,
    /// Day of the run, UTC.
    pub(crate) date: String,
}

impl Machine {
    /// This machine, now; what cannot be read is said to be unknown.
    #[must_use]
    pub(crate) fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
        };
        let load = read("/proc/loadavg");
        let load: Vec<&str> = load.split(' ').take(3).collect();
        Self {
            processor: field(&read("/proc/cpuinfo"), "model name")
                .unwrap_or_else(|| "unknown processor".to_owned()),
            processors: thread::available_parallelism().map_or(0, usize::from),
            memory_gib: memory::total_bytes() >> 30,
            load: load.join(" "),
            date: today(),
        }
    }
}

fn today() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (year, month, day) = civil(now.as_secs() / 86_400);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Year, month and day of a number of days since 1970-01-01.
fn civil(days: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let (mut year, mut left) = (1970, days);
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if left < length {
            break;
        }
        left -= length;
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        for (days, date) in [
            (0, (1970, 1, 1)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (20_778, (2026, 11, 21)),
        ] {
            assert_eq!(civil(days), date);
        }
    }

    #[test]
    fn this_machine_is_described() {
        let machine = Machine::here();
        assert!(machine.processors > 0 && machine.date.len() == 10, "{machine:?}");
    }
}
