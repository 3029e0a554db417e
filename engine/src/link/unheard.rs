/// Rounds of replay with new batches that rule out mere lateness, if no live batch arrives meanwhile.
const ROUNDS: u32 = 4;

/// Detects a subscription to another topic than the engine's. All batches then arrive late, by replay only,
/// although the state looks healthy.
#[derive(Debug, Default)]
pub(super) struct Unheard {
    live_seen: bool,
    brought: bool,
    rounds: u32,
}

impl Unheard {
    /// Records a live message.
    pub(super) const fn receive_live(&mut self) {
        self.live_seen = true;
    }

    /// Records that a replayed batch was applied.
    pub(super) const fn apply_replayed(&mut self) {
        self.brought = true;
    }

    /// Records the end of a round of replay. Returns `true` once per connection, if the rounds show that no
    /// live batches arrive.
    pub(super) fn end_round(&mut self) -> bool {
        self.rounds += u32::from(std::mem::take(&mut self.brought) && self.rounds <= ROUNDS);
        let shows = self.rounds == ROUNDS && !self.live_seen;
        self.rounds += u32::from(shows);
        shows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(unheard: &mut Unheard, brought: &[bool]) -> Vec<bool> {
        let end = |&brought: &bool| {
            if brought {
                unheard.apply_replayed();
            }
            unheard.end_round()
        };
        brought.iter().map(end).collect()
    }

    #[test]
    fn what_comes_by_replay_only_is_noticed_once() {
        let some = [true, true, false, true, true, true, true, true, false];
        let mut expected = [false; 9];
        expected[4] = true;
        assert_eq!(rounds(&mut Unheard::default(), &some), expected);
        // A quiet engine, and one whose live batches arrive.
        assert_eq!(rounds(&mut Unheard::default(), &[true, true, true, false, false]), [false; 5]);
        let mut unheard = Unheard::default();
        unheard.receive_live();
        assert_eq!(rounds(&mut unheard, &[true; 9]), [false; 9]);
    }
}
