use std::time::Duration;

/// Number of recent answers that are recorded.
const RECENT: usize = 64;
/// Minimum number of answers for a percentile.
const LEAST: usize = 8;

/// Latencies of a replica's recent answers, in a ring buffer.
#[derive(Debug, Clone)]
pub(super) struct Latencies {
    micros: [u32; RECENT],
    filled: usize,
    next: usize,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { micros: [0; RECENT], filled: 0, next: 0 }
    }
}

impl Latencies {
    /// Adds the duration of one query, in place of the oldest of the last [`RECENT`].
    pub(super) fn add(&mut self, took: Duration) {
        if let Some(place) = self.micros.get_mut(self.next) {
            *place = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        }
        self.next = (self.next + 1) % RECENT;
        self.filled = (self.filled + 1).min(RECENT);
        debug_assert!(
            self.next < RECENT && self.next <= self.filled,
            "all before `next` are filled"
        );
    }

    /// Returns the 95th percentile of recent durations, or `None` if there are fewer than [`LEAST`].
    pub(super) fn p95(&self) -> Option<Duration> {
        if self.filled < LEAST {
            return None;
        }
        let mut sorted = self.micros;
        let known = sorted.get_mut(..self.filled)?;
        let (_, at, _) = known.select_nth_unstable((self.filled * 95 / 100).min(self.filled - 1));
        Some(Duration::from_micros(u64::from(*at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_all_but_the_slowest() {
        let mut latencies = Latencies::default();
        for micros in 1..8 {
            latencies.add(Duration::from_micros(micros));
        }
        assert_eq!(latencies.p95(), None);
        latencies.add(Duration::MAX);
        assert_eq!(latencies.p95(), Some(Duration::from_micros(u64::from(u32::MAX))));
        for micros in (1..=64).rev() {
            latencies.add(Duration::from_micros(micros));
        }
        assert_eq!(latencies.p95(), Some(Duration::from_micros(61)));
    }
}
