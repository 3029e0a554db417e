/// So many rounds of replay that brought new batches, and not one live batch: none of them was sent late.
const ROUNDS: u32 = 4;

/// Finds an engine whose batches come by replay only, so that its state looks healthy while all of them are late: the
/// link has subscribed to another topic than the engine's.
#[derive(Debug, Default)]
pub(super) struct Unheard {
    is_heard: bool,
    brought: bool,
    rounds: u32,
}

impl Unheard {
    /// A live message came.
    pub(super) const fn hear(&mut self) {
        self.is_heard = true;
    }

    /// A replayed batch was applied.
    pub(super) const fn apply(&mut self) {
        self.brought = true;
    }

    /// A round of replay ended. Whether that shows, for the first time on this connection, that nothing comes live.
    pub(super) fn end_round(&mut self) -> bool {
        self.rounds += u32::from(std::mem::take(&mut self.brought) && self.rounds <= ROUNDS);
        let shows = self.rounds == ROUNDS && !self.is_heard;
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
                unheard.apply();
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
        // An engine that is quiet, or is heard.
        assert_eq!(rounds(&mut Unheard::default(), &[true, true, true, false, false]), [false; 5]);
        let mut heard = Unheard::default();
        heard.hear();
        assert_eq!(rounds(&mut heard, &[true; 9]), [false; 9]);
    }
}
