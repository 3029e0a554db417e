use std::time::Duration;

/// Exponential backoff with jitter: delays double between `min` and `max`. Jitter prevents a fleet from
/// reconnecting at the same time.
#[derive(Debug)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    current: Duration,
}

// === impl Backoff ===

impl Backoff {
    /// Delays that begin at `min`, limited to `max`.
    #[must_use]
    pub fn new(min: Duration, max: Duration) -> Self {
        let min = min.min(max);
        Self { min, max, current: min }
    }

    /// The next delay: a random value between half and all of the current step. `random` selects it.
    pub fn next_delay(&mut self, random: u32) -> Duration {
        let half = self.current / 2;
        let delay = half + half.mul_f64(f64::from(random) / f64::from(u32::MAX));
        self.current = self.current.saturating_mul(2).min(self.max);
        delay
    }

    /// Starts over at `min`.
    pub fn reset(&mut self) {
        self.current = self.min;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: Duration = Duration::from_millis(100);
    const MAX: Duration = Duration::from_millis(1500);

    #[test]
    fn delays_double_up_to_the_maximum_and_start_over() {
        let mut backoff = Backoff::new(MIN, MAX);
        let millis = |backoff: &mut Backoff| backoff.next_delay(u32::MAX).as_millis();
        let steps: Vec<u128> = (0..7).map(|_| millis(&mut backoff)).collect();
        assert_eq!(steps, [100, 200, 400, 800, 1500, 1500, 1500]);
        backoff.reset();
        assert_eq!(millis(&mut backoff), 100);
    }

    #[test]
    fn jitter_stays_in_the_upper_half() {
        for random in [0, 1, u32::MAX / 2, u32::MAX] {
            let delay = Backoff::new(MIN, MAX).next_delay(random);
            assert!(delay >= MIN / 2 && delay <= MIN, "random {random}: {delay:?}");
        }
    }

    #[test]
    fn a_minimum_above_the_maximum_is_cut() {
        assert_eq!(Backoff::new(MAX, MIN).next_delay(u32::MAX), MIN);
    }
}
