//! Compares the predicted reuse of a rank's prompts with the actual reuse that its engine reports.

use kvasir_proto::types::{PromptReuse, Reason};

/// Number of the last requests that count.
const REQUESTS_KEPT: u32 = u64::BITS;
/// Fewer requests prove nothing. Single ones differ: requests race, and an engine may have been reset.
const REQUESTS_MIN: u32 = 16;
/// A reason begins when 1 of this many requests differs in its direction. Against vLLM 0.32, racing requests were
/// 15 of 640.
const BEGINS_SHARE: u32 = 4;
/// A reason ends when fewer than 1 of this many requests differ in its direction.
const ENDS_SHARE: u32 = 8;

/// The last reported requests of a rank.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ReuseHistory {
    /// Number of requests, up to [`REQUESTS_KEPT`].
    requests: u32,
    fewer: Differing,
    more: Differing,
}

/// The requests that differ in one direction.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Differing {
    /// One bit per request, the last one lowest.
    requests: u64,
    /// The last request that differed.
    last: Option<PromptReuse>,
    is_persistent: bool,
}

impl Differing {
    fn add(&mut self, differs: bool, reused: PromptReuse, requests: u32) {
        self.requests = self.requests << 1 | u64::from(differs);
        if differs {
            self.last = Some(reused);
        }
        let count = self.requests.count_ones();
        self.is_persistent = if self.is_persistent {
            count * ENDS_SHARE >= requests
        } else {
            requests >= REQUESTS_MIN && count * BEGINS_SHARE >= requests
        };
    }
}

impl ReuseHistory {
    /// Adds a request.
    pub(crate) fn add(&mut self, reused: PromptReuse, block_size: u32) {
        let difference = reused.difference(block_size);
        self.requests = (self.requests + 1).min(REQUESTS_KEPT);
        self.fewer.add(difference < 0, reused, self.requests);
        self.more.add(difference > 0, reused, self.requests);
    }

    /// Whether the actual reuse is below the prediction for many requests.
    pub(crate) const fn is_high(&self) -> bool {
        self.fewer.is_persistent
    }

    /// Whether the actual reuse differs from the prediction for many requests.
    pub(crate) const fn differs(&self) -> bool {
        self.fewer.is_persistent || self.more.is_persistent
    }

    /// The persistent differences: reason, number of requests, and the last one.
    pub(crate) fn reasons(&self) -> impl Iterator<Item = (Reason, u64, PromptReuse)> {
        let directions =
            [(Reason::ContradictedByEngine, &self.fewer), (Reason::EngineReusesMore, &self.more)];
        directions
            .into_iter()
            .filter(|(_, at)| at.is_persistent)
            .filter_map(|(reason, at)| Some((reason, at.requests.count_ones().into(), at.last?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u32 = 16;

    fn request(cached: u32) -> PromptReuse {
        PromptReuse { prompt: 1_000, expected: 320, cached }
    }

    fn reasons(history: &ReuseHistory) -> Vec<(Reason, u64, PromptReuse)> {
        history.reasons().collect()
    }

    #[test]
    fn a_persistent_difference_is_a_reason_with_its_direction() {
        let mut history = ReuseHistory::default();
        for number in 1..REQUESTS_MIN {
            history.add(request(0), BLOCK);
            assert!(!history.is_high(), "{number} requests prove nothing");
        }
        history.add(request(0), BLOCK);
        assert!(history.is_high());
        assert_eq!(reasons(&history), [(Reason::ContradictedByEngine, 16, request(0))]);
        for _ in 0..REQUESTS_KEPT {
            history.add(request(640), BLOCK);
        }
        assert!(!history.is_high());
        assert_eq!(reasons(&history), [(Reason::EngineReusesMore, 64, request(640))]);
    }

    #[test]
    fn single_differences_are_no_reason_and_a_reason_ends() {
        let mut history = ReuseHistory::default();
        // 1 of 5 is less than the share that begins a reason.
        for number in 0..1_000 {
            history.add(request(if number % 5 == 4 { 0 } else { 320 }), BLOCK);
            assert_eq!(reasons(&history), [], "after {number} requests");
        }
        for _ in 0..4 {
            history.add(request(0), BLOCK);
        }
        assert!(history.is_high());
        // 1 of 5 is more than the share that ends it.
        for number in 0..1_000 {
            history.add(request(if number % 5 == 4 { 0 } else { 320 }), BLOCK);
            assert!(history.is_high(), "after {number} requests");
        }
        for _ in 0..REQUESTS_KEPT {
            history.add(request(320), BLOCK);
        }
        assert_eq!(reasons(&history), []);
    }
}
