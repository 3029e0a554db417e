//! Rate limiter for log lines that a peer can cause: the first line is logged immediately, later ones once
//! per interval, with the number of suppressed lines.

use std::time::Duration;
use tokio::time::Instant;

/// Rate limiter for one kind of log line.
#[derive(Debug)]
pub struct Throttle {
    interval: Duration,
    logged_at: Option<Instant>,
    suppressed: u64,
}

impl Throttle {
    /// Allows at most one line per `interval`.
    #[must_use]
    pub const fn every(interval: Duration) -> Self {
        Self { interval, logged_at: None, suppressed: 0 }
    }

    /// Returns the number of lines suppressed since the last one, if a line may be logged now.
    pub fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.logged_at.is_some_and(|logged_at| now < logged_at + self.interval) {
            self.suppressed += 1;
            return None;
        }
        self.logged_at = Some(now);
        Some(std::mem::take(&mut self.suppressed))
    }

    /// Records that the problem is over: the next line is logged immediately.
    pub const fn reset(&mut self) {
        (self.logged_at, self.suppressed) = (None, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_and_one_in_a_while() {
        let began = Instant::now();
        let mut throttle = Throttle::every(Duration::from_secs(60));
        let at = |seconds| began + Duration::from_secs(seconds);
        assert_eq!(throttle.admit(at(0)), Some(0));
        for seconds in [1, 30, 59] {
            assert_eq!(throttle.admit(at(seconds)), None, "after {seconds} s");
        }
        assert_eq!(throttle.admit(at(60)), Some(3));
        assert_eq!(throttle.admit(at(61)), None);
        throttle.reset();
        assert_eq!(throttle.admit(at(62)), Some(0), "what comes after the end is news");
    }
}
