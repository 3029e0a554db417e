/// Maximum block operations in one critical section of a shard's lock, while no reader waits.
pub const HOLD_OPERATIONS_MAX: usize = 1_024;

/// Maximum block operations of one slice. A critical section ends after the slice in which a reader came.
pub const STEP_OPERATIONS_MAX: usize = 64;

/// Size of the first slice if a reader ended the previous critical section early: another reader is likely.
const CROWDED_STEP_OPERATIONS: usize = 2;

/// Size of a writer's critical sections: long without readers, short while readers wait. A pure rule;
/// [`Shard`](super::Shard) is the lock.
#[derive(Debug, Default)]
pub struct Pace {
    /// Whether a reader ended the last critical section early.
    crowded: bool,
    /// Operations left in this critical section.
    left: usize,
    /// Operations of the next slice, if there is one.
    step: usize,
}

impl Pace {
    /// Begins a critical section.
    pub const fn begin(&mut self) {
        self.left = HOLD_OPERATIONS_MAX;
        self.step = if self.crowded { CROWDED_STEP_OPERATIONS } else { STEP_OPERATIONS_MAX };
        self.crowded = false;
    }

    /// Number of operations that the next slice may do.
    #[must_use]
    pub fn step(&self) -> usize {
        self.step.min(self.left)
    }

    /// Ends a slice of `done` operations. Returns whether the critical section may continue. A slice counts as at least
    /// one operation, so that every critical section ends.
    pub fn may_continue(&mut self, done: usize, reader_waits: bool) -> bool {
        debug_assert!(self.step > 0, "a hold has begun");
        debug_assert!(self.left > 0, "the hold has not ended");
        self.left = self.left.saturating_sub(done.max(1));
        self.step = (self.step * 2).min(STEP_OPERATIONS_MAX);
        self.crowded = reader_waits;
        self.left > 0 && !reader_waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slices of one critical section, if a reader comes in the given slice.
    fn run_section(pace: &mut Pace, reader_in: Option<usize>) -> Vec<usize> {
        let mut steps = Vec::new();
        pace.begin();
        loop {
            steps.push(pace.step());
            if !pace.may_continue(pace.step(), reader_in == Some(steps.len())) {
                return steps;
            }
        }
    }

    #[test]
    fn a_hold_is_long_while_nobody_reads_and_short_while_somebody_does() {
        let mut pace = Pace::default();
        let alone = vec![STEP_OPERATIONS_MAX; HOLD_OPERATIONS_MAX / STEP_OPERATIONS_MAX];
        assert_eq!(run_section(&mut pace, None), alone);
        assert_eq!(run_section(&mut pace, Some(3)), [64, 64, 64]);
        assert_eq!(run_section(&mut pace, Some(1)), [2]);
        assert_eq!(run_section(&mut pace, Some(2)), [2, 4]);
        let after = run_section(&mut pace, None);
        assert_eq!(after[..7], [2, 4, 8, 16, 32, 64, 64]);
        assert_eq!(after.iter().sum::<usize>(), HOLD_OPERATIONS_MAX);
        assert_eq!(run_section(&mut pace, None), alone);
    }

    #[test]
    fn steps_that_do_nothing_end_the_hold_too() {
        let mut pace = Pace::default();
        pace.begin();
        let mut steps = 1;
        while pace.may_continue(0, false) {
            steps += 1;
        }
        assert_eq!(steps, HOLD_OPERATIONS_MAX);
    }
}
