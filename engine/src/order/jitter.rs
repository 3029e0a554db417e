use std::time::Duration;

/// Reproducible pseudo-random numbers (`SplitMix64`), sufficient to spread retries.
#[derive(Debug, Clone)]
pub(crate) struct Jitter(u64);

impl Jitter {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A random duration from 0 to `limit` inclusive, in microseconds.
    pub(crate) fn up_to(&mut self, limit: Duration) -> Duration {
        let micros = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX - 1);
        Duration::from_micros(self.next() % micros.saturating_add(1))
    }
}

/// Exponential backoff with jitter: minimum and maximum time between two attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BackOff {
    pub(crate) min: Duration,
    pub(crate) max: Duration,
}

impl BackOff {
    /// Backoff after `failed` consecutive attempts, at least one. It doubles with each attempt; half of it is
    /// random.
    pub(crate) fn delay_after(self, failed: u32, jitter: &mut Jitter) -> Duration {
        debug_assert!(failed > 0, "the first attempt is not backed off");
        let factor = 2_u32.saturating_pow(failed.saturating_sub(1));
        let half = self.min.saturating_mul(factor).min(self.max) / 2;
        half + jitter.up_to(half)
    }
}
