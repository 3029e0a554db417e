//! Timeouts for streamed answers from peers that may be slow or hostile. A long answer may take long while it makes
//! progress; a peer without progress cannot block its caller.

use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Timeout for the next part. All parts together may take this long plus [`ITEM_TIME`] per item.
pub const PART_TIMEOUT: Duration = Duration::from_secs(10);
/// Additional time per item of an answer.
pub const ITEM_TIME: Duration = Duration::from_millis(1);

/// Timer of one answer.
#[derive(Debug, Default)]
pub struct AnswerTimer {
    waited: Duration,
    items: u32,
}

/// Why an answer timed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Late {
    /// The next part did not arrive in time.
    #[error("no answer for {0:?}")]
    Silent(Duration),
    /// All parts together took too long for their number of items.
    #[error("too slow: {items} items in {waited:?}")]
    Slow {
        /// Number of items so far.
        items: u32,
        /// Time spent waiting for parts.
        waited: Duration,
    },
}

impl AnswerTimer {
    /// Waits for the next part. `count` returns the part's number of items.
    ///
    /// # Errors
    /// If the part does not arrive in time, or all parts together took too long.
    pub async fn next<P>(
        &mut self,
        part: impl Future<Output = P>,
        count: impl FnOnce(&P) -> usize,
    ) -> Result<P, Late> {
        let begin = Instant::now();
        let part = timeout(PART_TIMEOUT, part).await;
        let part = part.map_err(|_late| Late::Silent(PART_TIMEOUT))?;
        self.waited += begin.elapsed();
        let items = u32::try_from(count(&part)).unwrap_or(u32::MAX);
        self.items = self.items.saturating_add(items);
        if self.waited > PART_TIMEOUT + ITEM_TIME * self.items {
            return Err(Late::Slow { items: self.items, waited: self.waited });
        }
        Ok(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::sleep;

    /// Sends a hundred parts of `items` items, each after `after`; returns how many arrive.
    async fn come(items: usize, after: Duration) -> (usize, Option<Late>) {
        let mut answer_timer = AnswerTimer::default();
        for parts in 0..100 {
            if let Err(late) = answer_timer.next(sleep(after), |()| items).await {
                return (parts, Some(late));
            }
        }
        (100, None)
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_goes_on_for_as_long_as_it_brings_something() {
        let second = Duration::from_secs(1);
        assert_eq!(come(1_000, second).await, (100, None));
        let waited = 11 * second;
        assert_eq!(come(10, second).await, (10, Some(Late::Slow { items: 110, waited })));
        assert_eq!(come(0, second).await, (10, Some(Late::Slow { items: 0, waited })));
        assert_eq!(come(1 << 20, 11 * second).await, (0, Some(Late::Silent(PART_TIMEOUT))));
    }
}
