//! Measures time and memory.

use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// CPU time used by this process, over all threads.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Sum of measured times.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Spent {
    pub(crate) cpu: Duration,
    pub(crate) wall: Duration,
}

impl Spent {
    /// Runs `work` and adds its duration.
    pub(crate) fn add<R>(&mut self, work: impl FnOnce() -> R) -> R {
        let cpu = cpu_time();
        let wall = Instant::now();
        let result = work();
        self.wall += wall.elapsed();
        self.cpu += cpu_time() - cpu;
        result
    }
}

/// Resident memory of this process in bytes, after the allocator has returned unused memory.
pub(crate) fn resident_bytes() -> u64 {
    give_back();
    let statm = std::fs::read_to_string("/proc/self/statm").expect("statm can be read");
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.expect("statm has a second number") * rustix::param::page_size() as u64
}

#[cfg(feature = "mimalloc")]
#[expect(unsafe_code, reason = "the allocator's own interface")]
fn give_back() {
    // SAFETY: the function takes no pointer; mimalloc allows it at any time, on any thread.
    unsafe { libmimalloc_sys::mi_collect(true) }
}

#[cfg(not(feature = "mimalloc"))]
#[expect(unsafe_code, reason = "the allocator's own interface")]
fn give_back() {
    // SAFETY: the function takes no pointer; glibc allows it at any time, on any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
