//! Limits the age of connections, so that clients reconnect and find other servers, new addresses and changed rights.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::Duration;

/// Time from the notice that a connection is old until its endless streams end. The client must receive the notice
/// first; else it would open the next stream on this connection, too.
pub const STREAMS_GRACE: Duration = Duration::from_secs(1);
/// Time from the notice until the connection is closed with all active calls. A dump has this long to finish.
pub const CUT_GRACE: Duration = Duration::from_secs(120);

/// Steps in the end of an old connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AgeStep {
    /// Ask the client to use another connection for further calls (GOAWAY).
    Tell,
    /// End endless streams, each between two messages.
    EndStreams,
    /// Close the connection.
    Cut,
}

/// Returns the time of each step after the connection was opened. The age is varied by `random`.
pub(crate) fn age_steps(age: Duration, random: u64) -> [(Duration, AgeStep); 3] {
    let told = spread(age, random);
    let steps = [
        (Duration::ZERO, AgeStep::Tell),
        (STREAMS_GRACE, AgeStep::EndStreams),
        (CUT_GRACE, AgeStep::Cut),
    ];
    steps.map(|(grace, step)| (told.saturating_add(grace), step))
}

/// The age limit of one connection, varied randomly by up to a tenth, so that connections opened together do not end
/// together.
pub(crate) fn spread(age: Duration, random: u64) -> Duration {
    const PARTS: u32 = 1_000;
    let tenth = age / 10;
    // At most PARTS.
    let part = u32::try_from(random % u64::from(PARTS + 1)).unwrap_or_default();
    (age - tenth).saturating_add(2 * tenth / PARTS * part)
}

/// A random number that differs between connections and processes.
pub(crate) fn chance() -> u64 {
    // Each `RandomState` has its own keys.
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
