use super::{
    replays::Plan,
    sequencer::{Connection, Sequencer},
};
use crate::order::Item;
use kvasir_proto::types::LossPolicy;

impl<I: Item> Sequencer<I> {
    /// Checks the facts that hold between two inputs. In tests and debug builds.
    pub(super) fn validate(&self) {
        if cfg!(debug_assertions) {
            let broken: Vec<_> = self
                .facts()
                .into_iter()
                .filter(|(_, holds)| !holds)
                .map(|(fact, _)| fact)
                .collect();
            debug_assert!(broken.is_empty(), "{broken:?}");
        }
    }

    /// One fact a line.
    fn facts(&self) -> [(&'static str, bool); 20] {
        let Self { config, connection, life, next, buffer, replays, counts, damage, .. } = self;
        let (round, plan) = (replays.round(), replays.plan());
        let front = buffer.front().map(|received| received.sequence);
        let held = u64::try_from(buffer.len()).unwrap_or(u64::MAX);
        let up = matches!(connection, Connection::Up { .. });
        let cursor = life.position().map(|position| position.sequence);
        let dropping = damage.is_some_and(|damage| damage.drop_suspects_at.is_some());
        [
            ("one outcome each, or buffered", self.received == counts.settled() + held),
            ("the next batch follows the cursor", *next == life.next()),
            ("what was given up is behind", self.given_up_below <= *next),
            ("what is buffered is ahead", front.is_none_or(|front| front >= *next)),
            ("no batch waits in vain", front != Some(*next) || life.is_doubtful()),
            ("bytes add up", buffer.bytes() == buffer.bytes_recounted()),
            ("few are buffered", buffer.len() <= config.buffer_batches_max.max(1)),
            ("down: nothing is buffered", up || held == 0),
            ("down: nothing is exact", up || !self.caught_up),
            ("down: no replay", up || (round.is_none() && plan == Plan::None)),
            ("down: live numbers start over", up || self.last_live == life.position()),
            ("no replay socket: no round", config.replay || round.is_none()),
            (
                "no replay socket: doubt ends",
                config.replay || !up || !life.is_doubtful() || self.prove_by.is_some(),
            ),
            ("no replay socket: no waiting", config.replay || held == 0),
            ("one round at a time", round.is_none() || plan == Plan::None),
            (
                "a round is always ahead",
                !config.replay || !up || round.is_some() || plan != Plan::None,
            ),
            (
                "gaps are recovered",
                held == 0 || round.is_some() || matches!(plan, Plan::Recover(_)),
            ),
            ("attempts are bounded", replays.fruitless() < config.replay_attempts_max),
            ("the cursor never goes back", round.is_none_or(|round| round.cursor <= cursor)),
            ("only kept blocks are doubtful", !dropping || config.loss_policy == LossPolicy::Keep),
        ]
    }
}
