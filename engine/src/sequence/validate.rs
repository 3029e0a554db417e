use super::sequencer::{Connection, Sequencer};
use crate::order::Item;

impl<I: Item> Sequencer<I> {
    /// Invariants between two inputs, one per line.
    pub(super) fn facts(&self) -> impl Iterator<Item = (&'static str, bool)> {
        let Self { config, core, connection, progress, next, replays, .. } = self;
        let front = core.buffer.front().map(|received| received.sequence);
        let is_empty = front.is_none();
        let up = matches!(connection, Connection::Up { .. });
        let cursor = progress.position().map(|position| position.sequence);
        let round = replays.rounds.under_way();
        let facts = [
            ("the next batch follows the cursor", *next == progress.next()),
            ("what was given up is behind", self.given_up_below <= *next),
            ("what is buffered is ahead", front.is_none_or(|front| front >= *next)),
            ("no batch waits in vain", front != Some(*next) || progress.is_unproven()),
            ("down: nothing is buffered", up || is_empty),
            ("down: nothing is exact", up || !self.caught_up),
            ("down: no replay", up || !replays.rounds.is_active()),
            ("down: live numbers start over", up || self.last_live == progress.position()),
            ("no replay socket: no round", config.replay || round.is_none()),
            (
                "no replay socket: doubt ends",
                config.replay || !up || !progress.is_unproven() || self.prove_by.is_some(),
            ),
            ("no replay socket: no waiting", config.replay || is_empty),
            ("a round is always ahead", !config.replay || !up || replays.rounds.is_active()),
            ("gaps are recovered", is_empty || replays.is_recovering()),
            ("attempts are bounded", !replays.rounds.is_exhausted()),
            ("the cursor never goes back", round.is_none_or(|round| round.cursor <= cursor)),
        ];
        facts.into_iter().chain(core.facts(0))
    }
}
