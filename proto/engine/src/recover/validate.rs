use super::{
    config::{PAST_LIVES_MAX, Recourse},
    recovery::Recovery,
};
use crate::order::Item;
use kvasir_proto::types::LossPolicy;

impl<I: Item, C> Recovery<I, C> {
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
    fn facts(&self) -> [(&'static str, bool); 14] {
        let Self { config, life, past, buffer, asks, counts, damage, .. } = self;
        let held = u64::try_from(buffer.len()).unwrap_or(u64::MAX);
        let front = buffer.front().map(|batch| batch.sequence);
        let asked = config.recourse == Recourse::Ask;
        let needs_dump = life.is_some_and(|life| life.needs_dump);
        let waits = asks.round().is_some() || asks.deadline().is_some();
        let dropping = damage.is_some_and(|damage| damage.drop_suspects_at.is_some());
        let settled = counts.settled() + self.refused;
        let is_past = life.is_some_and(|life| past.contains(life.incarnation));
        let fits = |at: u64| life.is_some_and(|life| life.expected() == Some(at));
        [
            ("one outcome each, or buffered", self.received == settled + held),
            ("no life: nothing is buffered", life.is_some() || held == 0),
            ("no life: nobody is asked", life.is_some() || !waits),
            ("the present life is not past", !is_past),
            ("few lives are remembered", past.len() <= PAST_LIVES_MAX),
            (
                "what is buffered is ahead",
                !front.is_some_and(|at| life.is_some_and(|life| life.covers(at))),
            ),
            ("no batch waits in vain", needs_dump || !front.is_some_and(fits)),
            ("bytes add up", buffer.bytes() == buffer.bytes_recounted()),
            ("few are buffered", buffer.len() <= config.buffer_batches_max.max(1)),
            ("only who can be asked is asked", asked || !waits),
            ("only who can be asked is waited for", asked || (held == 0 && !needs_dump)),
            ("what is missing is asked for", !asked || waits || (held == 0 && !needs_dump)),
            ("half a dump is no base", !asks.is_dumping() || needs_dump),
            ("only kept blocks are doubtful", !dropping || config.loss_policy == LossPolicy::Keep),
        ]
    }
}
