//! Detects that the gateway's tokens differ from the engines' tokens: prompts repeat and workers report blocks, but no
//! worker ever has a block of a prompt that was computed before.
//!
//! The usual causes: another tokenizer or chat template, another block size, or a cache salt that only one side uses.

use kvasir_proto::types::{PartitionKey, SequenceHash};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

/// Number of repeated prompts without a match, in a row, that indicates a mismatch.
const MISSES_MIN: u32 = 8;
/// Time until a served prompt is expected in the index.
const SETTLE: Duration = Duration::from_secs(1);
/// Maximum first blocks stored for each model.
const SERVED_MAX: usize = 4_096;
/// Maximum number of partitions.
const PARTITIONS_MAX: usize = 4_096;

/// State of each model and tenant.
#[derive(Debug, Default)]
pub struct Mismatches {
    partitions: BTreeMap<PartitionKey, Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// First blocks of served prompts, and when each was served first.
    served: HashMap<SequenceHash, Duration>,
    /// First blocks of served prompts, oldest first.
    order: VecDeque<SequenceHash>,
    /// Repeated prompts without a match, in a row.
    misses: u32,
    is_mismatched: bool,
}

/// Result of checking a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// No change.
    Unchanged,
    /// The tokens differ from the engines' tokens.
    Mismatched,
    /// The tokens match again.
    Matched,
}

impl Mismatches {
    /// Checks a prompt that was looked up, and returns whether its partition now matches, is mismatched, or is
    /// unchanged. `is_held`: a worker has the prompt's first block. `has_blocks`: the workers report any block at all.
    pub fn asked(
        &mut self,
        partition: &PartitionKey,
        first: SequenceHash,
        (is_held, has_blocks): (bool, bool),
        now: Duration,
    ) -> Verdict {
        let Some(seen) = self.partitions.get_mut(partition) else { return Verdict::Unchanged };
        if is_held {
            seen.misses = 0;
            let was_mismatched = std::mem::take(&mut seen.is_mismatched);
            return if was_mismatched { Verdict::Matched } else { Verdict::Unchanged };
        }
        let has_settled = |at: &Duration| now.saturating_sub(*at) >= SETTLE;
        if has_blocks && seen.served.get(&first).is_some_and(has_settled) {
            seen.misses = seen.misses.saturating_add(1);
        }
        if seen.misses < MISSES_MIN || std::mem::replace(&mut seen.is_mismatched, true) {
            return Verdict::Unchanged;
        }
        Verdict::Mismatched
    }

    /// Records that a worker has computed a prompt with this first block. At `SERVED_MAX` prompts, forgets the oldest
    /// one.
    pub fn served(&mut self, partition: &PartitionKey, first: SequenceHash, now: Duration) {
        if !self.partitions.contains_key(partition) && self.partitions.len() >= PARTITIONS_MAX {
            return;
        }
        let seen = self.partitions.entry(partition.clone()).or_default();
        if seen.served.contains_key(&first) {
            return;
        }
        seen.served.insert(first, now);
        seen.order.push_back(first);
        if seen.order.len() > SERVED_MAX
            && let Some(oldest) = seen.order.pop_front()
        {
            seen.served.remove(&oldest);
        }
    }

    /// The models whose tokens differ from the engines' tokens.
    #[must_use]
    pub fn mismatched(&self) -> Vec<PartitionKey> {
        let partitions = self.partitions.iter().filter(|(_, seen)| seen.is_mismatched);
        partitions.map(|(key, _)| key.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELD: (bool, bool) = (true, true);
    const MISSED: (bool, bool) = (false, true);
    const SILENT: (bool, bool) = (false, false);

    fn partition() -> PartitionKey {
        PartitionKey::new("m", "").expect("a name")
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Verdicts for one prompt, asked once a second from second 1 on.
    fn verdicts(mismatches: &mut Mismatches, answers: &[(bool, bool)]) -> Vec<Verdict> {
        let key = partition();
        mismatches.served(&key, SequenceHash(1), at(0));
        let ask = |(number, answer): (usize, &(bool, bool))| {
            mismatches.asked(&key, SequenceHash(1), *answer, at(1 + number as u64))
        };
        answers.iter().enumerate().map(ask).collect()
    }

    #[test]
    fn prompts_that_come_back_and_are_held_nowhere_are_noticed_once() {
        let mut mismatches = Mismatches::default();
        let found = verdicts(&mut mismatches, &[MISSED; 12]);
        let (before, after) = found.split_at(7);
        assert!(before.iter().all(|at| *at == Verdict::Unchanged), "{found:?}");
        assert_eq!(after.first(), Some(&Verdict::Mismatched));
        assert!(after.iter().skip(1).all(|at| *at == Verdict::Unchanged), "{found:?}");
        assert_eq!(mismatches.mismatched(), [partition()]);
        assert_eq!(
            verdicts(&mut mismatches, &[HELD, HELD]),
            [Verdict::Matched, Verdict::Unchanged]
        );
        assert_eq!(mismatches.mismatched(), []);
    }

    #[test]
    fn a_match_now_and_then_or_workers_without_blocks_are_none() {
        let mut row = [MISSED; 40];
        row.iter_mut().step_by(7).for_each(|at| *at = HELD);
        let found = verdicts(&mut Mismatches::default(), &row);
        assert!(found.iter().all(|at| *at == Verdict::Unchanged), "{found:?}");
        let found = verdicts(&mut Mismatches::default(), &[SILENT; 40]);
        assert!(found.iter().all(|at| *at == Verdict::Unchanged), "{found:?}");
    }

    #[test]
    fn prompts_that_are_new_or_have_just_been_served_tell_nothing() {
        let mut mismatches = Mismatches::default();
        let key = partition();
        for number in 0..10_000 {
            mismatches.served(&key, SequenceHash(number), at(number));
            let verdict = mismatches.asked(&key, SequenceHash(number), MISSED, at(number));
            assert_eq!(verdict, Verdict::Unchanged);
            let verdict = mismatches.asked(&key, SequenceHash(number + 1), MISSED, at(number));
            assert_eq!(verdict, Verdict::Unchanged);
        }
        let seen = mismatches.partitions.get(&key).expect("a model");
        assert_eq!((seen.served.len(), seen.order.len()), (SERVED_MAX, SERVED_MAX));
    }
}
