//! Estimates how much of its pending prompts a rank has computed.
//!
//! A router sees only when a prompt is sent and when its first token is produced. Engines compute prompts in order of
//! arrival. So the estimate for the oldest prompt is the time since the rank's last first token, multiplied by the mean
//! pace so far.

use std::collections::BTreeMap;
use std::time::Duration;

/// Weight of the newest first token in the average pace: about 32 first tokens count.
const NEWEST_SHARE: f64 = 1.0 / 32.0;

/// The prompts of one rank, from arrival to first token.
#[derive(Debug, Default)]
pub(super) struct Prefills {
    /// Tokens to compute, by prompt number, oldest first.
    waiting: BTreeMap<u64, u64>,
    /// The number of the next prompt.
    next: u64,
    /// When the computation of the oldest prompt began. `None` if unknown, because the prompt before it was cancelled.
    since: Option<Duration>,
    /// Tokens that were computed in `seconds`; older ones have less weight.
    tokens: f64,
    seconds: f64,
}

/// The values of [`Prefills`] that a decision needs. It reads them for each rank, so durations are precomputed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pace {
    /// When the rank began to compute the oldest prompt.
    since_nanos: u64,
    /// Tokens of the oldest prompt; 0 without a prompt.
    oldest_tokens: u64,
    /// Tokens per nanosecond, in units of 2^−64: the upper half of a product is the number of tokens. 0 if unknown.
    tokens_per_nano: u64,
}

// === impl Prefills ===

impl Prefills {
    /// Adds a prompt with its number of tokens to compute. Returns a number for the prompt.
    pub(super) fn add(&mut self, tokens: u64, now: Duration) -> u64 {
        if self.waiting.is_empty() {
            self.since = Some(now);
        }
        let number = self.next;
        self.next += 1;
        self.waiting.insert(number, tokens);
        number
    }

    /// Records the first token of a prompt. If `shows_pace` is true, the time since the previous first token updates
    /// the pace. It is false if the prompt also waited for something other than its computation.
    pub(super) fn complete(&mut self, number: u64, now: Duration, shows_pace: bool) {
        let Some(tokens) = self.waiting.remove(&number) else {
            debug_assert!(false, "prompt {number} was waiting");
            return;
        };
        if let Some(since) = self.since.replace(now).filter(|_| shows_pace) {
            let took = now.saturating_sub(since).as_secs_f64();
            self.tokens += tokens as f64 - NEWEST_SHARE * self.tokens;
            self.seconds += took - NEWEST_SHARE * self.seconds;
        }
    }

    /// Removes a prompt that will not be computed.
    pub(super) fn cancel(&mut self, number: u64) {
        let oldest = self.waiting.first_key_value().map(|(number, _)| *number);
        let removed = self.waiting.remove(&number);
        debug_assert!(removed.is_some(), "prompt {number} was waiting");
        if oldest == Some(number) {
            self.since = None;
        }
    }

    /// The mean pace; `None` before the first token.
    pub(super) fn tokens_per_second(&self) -> Option<f64> {
        (self.seconds > 0.0 && self.tokens > 0.0).then(|| self.tokens / self.seconds)
    }

    pub(super) fn pace(&self) -> Pace {
        let Some(since) = self.since.filter(|_| self.seconds > 0.0) else { return Pace::UNKNOWN };
        let oldest_tokens = self.waiting.first_key_value().map_or(0, |(_, tokens)| *tokens);
        let tokens_per_nano = self.tokens / self.seconds / 1e9;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        let tokens_per_nano = (tokens_per_nano * 2_f64.powi(64)).ceil() as u64;
        Pace { since_nanos: nanos(since), oldest_tokens, tokens_per_nano }
    }
}

/// Nanoseconds as 64 bits, which suffice for 584 years.
#[inline]
const fn nanos(time: Duration) -> u64 {
    time.as_secs().wrapping_mul(1_000_000_000).wrapping_add(time.subsec_nanos() as u64)
}

// === impl Pace ===

impl Pace {
    pub(super) const UNKNOWN: Self = Self { since_nanos: 0, oldest_tokens: 0, tokens_per_nano: 0 };

    /// Estimated tokens of the oldest prompt computed by `now`, at most all its tokens.
    #[inline(always)]
    pub(super) fn computed_tokens(&self, now: Duration) -> u64 {
        let passed = nanos(now).saturating_sub(self.since_nanos);
        let (_, tokens) = passed.carrying_mul(self.tokens_per_nano, 0);
        tokens.min(self.oldest_tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn without_a_first_token_nothing_counts_as_computed() {
        let mut prefills = Prefills::default();
        prefills.add(1_000, at(0));
        assert_eq!(prefills.pace().computed_tokens(at(60_000)), 0);
    }

    /// At 1,000 tokens a second, half of the oldest prompt is computed after half of its time, and never more than all.
    #[test]
    fn first_tokens_show_the_pace() {
        let mut prefills = Prefills::default();
        let first = prefills.add(1_000, at(0));
        let second = prefills.add(2_000, at(100));
        prefills.add(500, at(200));
        prefills.complete(first, at(1_000), true);
        let pace = prefills.pace();
        assert_eq!([1_000, 2_000, 9_000].map(|ms| pace.computed_tokens(at(ms))), [0, 1_000, 2_000]);
        prefills.complete(second, at(3_000), true);
        assert_eq!(prefills.pace().computed_tokens(at(3_250)), 250);
    }

    /// Idle time of an engine does not count as computing time of the next prompt.
    #[test]
    fn idle_time_does_not_count() {
        let mut prefills = Prefills::default();
        let first = prefills.add(1_000, at(0));
        prefills.complete(first, at(1_000), true);
        let second = prefills.add(1_000, at(61_000));
        assert_eq!(prefills.pace().computed_tokens(at(61_500)), 500);
        prefills.complete(second, at(62_000), true);
        prefills.add(1_000, at(70_000));
        assert_eq!(prefills.pace().computed_tokens(at(70_500)), 500);
    }

    /// Removing a prompt from the middle of the queue does not change the oldest prompt.
    #[test]
    fn a_cancelled_prompt_is_forgotten() {
        let mut prefills = Prefills::default();
        let numbers = [1_000, 700, 300].map(|tokens| prefills.add(tokens, at(0)));
        prefills.cancel(numbers[1]);
        prefills.complete(numbers[0], at(1_000), true);
        assert_eq!(prefills.pace().computed_tokens(at(9_000)), 300);
        prefills.cancel(numbers[2]);
        assert_eq!(prefills.pace().computed_tokens(at(9_000)), 0);
    }

    /// The time of a cancelled prompt counts neither as progress of the next one nor for the pace.
    #[test]
    fn after_the_oldest_was_cancelled_nothing_counts_until_a_first_token() {
        let mut prefills = Prefills::default();
        let [first, second, third] =
            [1_000, 1_000, 1_000].map(|tokens| prefills.add(tokens, at(0)));
        prefills.complete(first, at(1_000), true);
        prefills.cancel(second);
        assert_eq!(prefills.pace().computed_tokens(at(1_900)), 0);
        prefills.complete(third, at(9_000), true);
        prefills.add(1_000, at(10_000));
        assert_eq!(prefills.pace().computed_tokens(at(10_500)), 500);
    }

    /// A prompt that waited for its blocks does not show the pace; the next prompt begins at its first token.
    #[test]
    fn a_fetch_does_not_slow_the_pace() {
        let mut prefills = Prefills::default();
        let first = prefills.add(1_000, at(0));
        assert_eq!(prefills.tokens_per_second(), None);
        prefills.complete(first, at(1_000), true);
        let fetched = prefills.add(10, at(1_000));
        prefills.complete(fetched, at(9_000), false);
        assert_eq!(prefills.tokens_per_second(), Some(1_000.0));
        prefills.add(1_000, at(9_000));
        assert_eq!(prefills.pace().computed_tokens(at(9_500)), 500);
    }

    proptest! {
        /// An engine of a steady pace that computes one prompt after the other: the estimate is right to within 2 % of
        /// the oldest prompt, once a few first tokens were out.
        #[test]
        fn a_steady_engine_is_estimated_well(
            pace in 500_u64..50_000,
            prompts in proptest::collection::vec(1_000_u64..30_000, 8..40),
        ) {
            let mut prefills = Prefills::default();
            let numbers: Vec<_> = prompts.iter().map(|tokens| prefills.add(*tokens, at(0))).collect();
            let mut computed = 0;
            for (number, tokens) in numbers.iter().zip(&prompts) {
                let begin = Duration::from_nanos(computed * 1_000_000_000 / pace);
                let half = begin + Duration::from_nanos(tokens * 500_000_000 / pace);
                if computed > 0 {
                    let estimate = prefills.pace().computed_tokens(half);
                    prop_assert!(estimate.abs_diff(tokens / 2) <= tokens / 50 + 1, "{estimate} of {tokens}");
                }
                computed += tokens;
                prefills.complete(*number, Duration::from_nanos(computed * 1_000_000_000 / pace), true);
            }
        }
    }
}
