//! Describes the machine of a measurement.

use bench_figures::memory;
use std::fs;
use std::thread;

/// Description of this machine and its current load; unreadable values are shown as unknown.
pub(crate) fn description() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let processors = read("/proc/cpuinfo");
    let model = processors.lines().find(|line| line.starts_with("model name"));
    let model = model.and_then(|line| line.split_once(": ")).map(|(_, model)| model);
    let load = read("/proc/loadavg");
    format!(
        "{}, {} processors, {} GiB; load {} when the run began",
        model.unwrap_or("unknown processor"),
        thread::available_parallelism().map_or(0, usize::from),
        memory::total_bytes() >> 30,
        load.split(' ').take(3).collect::<Vec<_>>().join(" "),
    )
}
