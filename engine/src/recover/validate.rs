use super::config::Recourse;
use super::recovery::Recovery;
use crate::order::Item;

impl<I: Item, C> Recovery<I, C> {
    /// Invariants between two inputs, one per line.
    pub(super) fn facts(&self) -> impl Iterator<Item = (&'static str, bool)> {
        let Self { config, core, progress, past, asks, .. } = self;
        let front = core.buffer.front().map(|batch| batch.sequence);
        let is_empty = front.is_none();
        let can_ask = config.recourse == Recourse::Ask;
        let needs_dump = progress.is_some_and(|progress| progress.needs_dump);
        let waits = asks.is_active();
        let is_past = progress.is_some_and(|progress| past.contains(progress.incarnation));
        let fits = |at: u64| progress.is_some_and(|progress| progress.expected() == Some(at));
        let facts = [
            ("no incarnation: nothing is buffered", progress.is_some() || is_empty),
            ("no incarnation: no request", progress.is_some() || !waits),
            ("the present incarnation is not past", !is_past),
            ("few incarnations are remembered", past.is_in_order()),
            (
                "what is buffered is ahead",
                !front.is_some_and(|at| progress.is_some_and(|progress| progress.is_beyond(at))),
            ),
            ("no batch waits in vain", needs_dump || !front.is_some_and(fits)),
            ("requests only where they are possible", can_ask || !waits),
            ("waiting only where requests are possible", can_ask || (is_empty && !needs_dump)),
            ("what is missing is requested", !can_ask || waits || (is_empty && !needs_dump)),
            ("half a dump is no base", !self.is_dumping() || needs_dump),
        ];
        facts.into_iter().chain(core.facts(self.refused))
    }
}
