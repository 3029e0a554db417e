//! How old a connection gets, so that clients find other servers, other addresses and other rights by connecting again.

use std::{collections::hash_map::RandomState, hash::BuildHasher, time::Duration};

/// From the notice that a connection is old until its endless streams end. The notice must be there first: else their
/// client would open the next stream on this connection, too.
pub const STREAMS_GRACE: Duration = Duration::from_secs(1);
/// From the same notice until a connection is closed with whatever is under way: the time that a dump has left.
pub const CUT_GRACE: Duration = Duration::from_secs(120);

/// What happens to a connection that is old.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AgeStep {
    /// The client is told to make further calls on another connection.
    Tell,
    /// Endless streams end, each between two messages.
    EndStreams,
    /// The connection is closed.
    Cut,
}

/// When each of these happens, after the connection was opened.
pub(crate) fn age_steps(age: Duration, random: u64) -> [(Duration, AgeStep); 3] {
    let told = spread(age, random);
    let steps = [
        (Duration::ZERO, AgeStep::Tell),
        (STREAMS_GRACE, AgeStep::EndStreams),
        (CUT_GRACE, AgeStep::Cut),
    ];
    steps.map(|(grace, step)| (told.saturating_add(grace), step))
}

/// The age of one connection: up to a tenth more or less, by chance, so that those that were opened together do not
/// end together.
pub(crate) fn spread(age: Duration, random: u64) -> Duration {
    const PARTS: u32 = 1_000;
    let tenth = age / 10;
    // Below PARTS + 1.
    let part = u32::try_from(random % u64::from(PARTS + 1)).unwrap_or_default();
    (age - tenth).saturating_add(2 * tenth / PARTS * part)
}

/// A number that differs between connections and processes.
pub(crate) fn chance() -> u64 {
    // Each state has keys of its own.
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ages_differ_by_a_tenth_at_most_and_steps_come_in_order(
            millis in 1_000_u64..1 << 40,
            random: u64,
        ) {
            let age = Duration::from_millis(millis);
            let steps = age_steps(age, random);
            let told = steps[0].0;
            prop_assert!(told >= age * 9 / 10 && told <= age * 11 / 10, "{told:?}");
            prop_assert_eq!(steps.map(|(_, step)| step), [AgeStep::Tell, AgeStep::EndStreams, AgeStep::Cut]);
            prop_assert_eq!(steps[1].0 - told, STREAMS_GRACE);
            prop_assert_eq!(steps[2].0 - told, CUT_GRACE);
        }
    }

    #[test]
    fn ages_are_spread_over_the_whole_range() {
        let age = Duration::from_secs(1_000);
        let ages: Vec<_> = (0..1_000).map(|random| spread(age, random).as_secs()).collect();
        assert_eq!((ages.iter().min(), ages.iter().max()), (Some(&900), Some(&1_099)));
        assert!(spread(Duration::MAX, u64::MAX).as_secs() > 1 << 60);
    }
}
