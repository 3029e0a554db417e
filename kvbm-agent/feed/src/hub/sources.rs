use super::left::Left;
use super::persisted::Persisted;
use super::report::{SourceCounts, SourceReport, problem};
use super::source::{Gone, Key, Outcome, RankUse, Released, Resumption, Source};
use super::{HubConfig, HubError};
use crate::consolidate::{
    ConsolidateConfig, Consolidated, Consolidator, Naming, SOURCES_MAX, SourceNumber,
};
use crate::disk::{Flaws, NewIncarnation, PersistedSource, SourceChange, SourcePosition, Verdict};
use crate::feed::FeedState;
use crate::journal::AppendError;
use kvasir_proto::convert::KnownName;
use kvasir_proto::limits::{EVENT_BLOCKS_MAX, WORKER_RANKS_MAX};
use kvasir_proto::types::{
    CopyMode, DpRank, Group, KvEvent, Reason, SourceState, SourceStatus, StateReason,
};
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// All sources of an agent, and the state that they share.
#[derive(Debug)]
pub(super) struct Sources {
    pub(super) config: HubConfig,
    /// Copy mode of the agent's stream.
    copy_mode: CopyMode,
    /// `None` if each rank has one source.
    pub(super) consolidator: Option<Consolidator>,
    pub(super) open: BTreeMap<SourceNumber, Source>,
    opened: u64,
    /// All ranks that were ever used, with the last source of each.
    pub(super) ranks: BTreeMap<DpRank, SourceNumber>,
    /// Whether there is a journal on disk.
    pub(super) has_disk: bool,
    /// Sources that are on disk, but not open yet.
    pub(super) left: Left,
    /// Whether it is decided which incarnation continues.
    pub(super) is_settled: bool,
}

/// Creates a consolidator without sources.
pub(super) const fn consolidator(config: &HubConfig, tells_holdings: bool) -> Consolidator {
    Consolidator::new(ConsolidateConfig { names_max: config.names_max, tells_holdings })
}

impl Sources {
    /// Creates an empty set of sources. Fails if the maximum is out of range, or if sources are to be consolidated and
    /// their copies counted.
    pub(super) fn new(
        config: HubConfig,
        copy_mode: CopyMode,
        has_disk: bool,
    ) -> Result<Self, HubError> {
        if !(1..=SOURCES_MAX).contains(&config.sources_max) {
            return Err(HubError::SourcesMax(config.sources_max));
        }
        if config.consolidate && copy_mode != CopyMode::Set {
            return Err(HubError::NotSet);
        }
        Ok(Self {
            config,
            copy_mode,
            consolidator: config.consolidate.then(|| consolidator(&config, has_disk)),
            open: BTreeMap::new(),
            opened: 0,
            ranks: BTreeMap::new(),
            has_disk,
            left: Left::default(),
            is_settled: true,
        })
    }

    /// Opens a source, which continues from disk as `resumption` states. Fails if the name is taken, there are too many
    /// sources, or the copy mode does not fit. A position is used only if kind and copy mode are unchanged.
    pub(super) fn open_source(
        &mut self,
        name: &str,
        copy_mode: CopyMode,
        resumption: Resumption,
    ) -> Result<Key, HubError> {
        self.check_copy_mode(name, copy_mode)?;
        if self.open.values().any(|source| source.name == name) {
            return Err(HubError::NameTaken(name.to_owned()));
        }
        let limit = self.config.sources_max;
        let mut numbers = (0..limit).map(SourceNumber);
        let free = numbers.find(|number| !self.open.contains_key(number));
        let name = name.to_owned();
        let Some(number) = free else { return Err(HubError::TooManySources { name, limit }) };
        self.opened += 1;
        let kind = resumption.kind();
        let persisted = self.take_position(&name, copy_mode, kind);
        let names_left = self.left.names.remove(&name).filter(|_| persisted.is_some());
        let ranks: BTreeMap<DpRank, RankUse> = persisted
            .iter()
            .flat_map(|persisted| &persisted.ranks)
            .map(|rank| (*rank, RankUse { batches: 0, since_clear: true }))
            .collect();
        self.ranks.extend(ranks.keys().map(|rank| (*rank, number)));
        let fresh =
            kind.filter(|_| self.has_disk).map(|kind| Persisted::new(&name, kind, copy_mode));
        let naming = match resumption {
            Resumption::Image(_) => Naming::Canonical,
            Resumption::Never | Resumption::Position(_) => Naming::own(&name),
        };
        let source = Source {
            opened: self.opened,
            name,
            copy_mode,
            naming,
            ranks,
            counts: SourceCounts::default(),
            not_taken_before: 0,
            doubtful_before: 0,
            reasons: Vec::new(),
            uncleared: BTreeSet::new(),
            status: watch::Sender::new(SourceStatus::default()),
            persisted: persisted.map(Persisted::from_disk).or(fresh),
            names_left: names_left.unwrap_or_default(),
        };
        self.open.insert(number, source);
        self.take_holdings(number, resumption);
        Ok(Key { number, opened: self.opened })
    }

    fn check_copy_mode(&self, name: &str, requested: CopyMode) -> Result<(), HubError> {
        let present = self.copy_mode;
        if self.consolidator.is_none() && requested != present {
            return Err(HubError::CopyMode { name: name.to_owned(), requested, present });
        }
        Ok(())
    }

    fn source(&mut self, key: Key) -> Result<&mut Source, HubError> {
        let found = self.open.get_mut(&key.number);
        found.filter(|source| source.opened == key.opened).ok_or(HubError::Closed)
    }

    /// Applies a source's events of one rank, and returns the events to publish. Fails, and changes nothing, if an
    /// event is too large or another source feeds the rank.
    pub(super) fn apply_events(
        &mut self,
        key: Key,
        rank: DpRank,
        events: Vec<KvEvent>,
        position: Option<&SourcePosition>,
    ) -> Result<Outcome, HubError> {
        let read = self.source(key)?.consolidated(key.number);
        check_events(&events)?;
        self.check_rank(key.number, rank)?;
        self.ranks.insert(rank, key.number);
        let operations: usize = events.iter().map(KvEvent::operations).sum();
        let is_cleared = events.contains(&KvEvent::Cleared);
        let mut hidden = 0;
        let (refused, Consolidated { events, holdings }) = match &mut self.consolidator {
            Some(consolidator) => {
                let events = remove_further_groups(events, &mut hidden);
                let before = consolidator.counts().refused;
                let consolidated = consolidator.take(read, rank, events);
                (consolidator.counts().refused - before, consolidated)
            }
            None => (0, Consolidated { events, holdings: Vec::new() }),
        };
        let source = self.source(key)?;
        if let (Some(persisted), Some(position)) = (&mut source.persisted, position) {
            persisted.record_batch(rank, is_cleared, position);
        }
        if let (Some(persisted), true) = (&mut source.persisted, refused > 0) {
            persisted.add(Flaws { lacks_blocks: true, ..Flaws::default() });
        }
        source.counts.batches += 1;
        source.counts.operations += operations as u64;
        source.counts.refused += refused;
        source.counts.doubtful += hidden;
        let used = source.ranks.entry(rank).or_default();
        let id = used.batches;
        used.batches += 1;
        used.since_clear = true;
        if is_cleared {
            source.rank_cleared(rank);
        }
        if refused > 0 || hidden > 0 {
            source.doubt_ranks();
        }
        if hidden > 0 {
            let reason = Reason::UnannouncedGroups;
            let example = "several sources of one rank".into();
            let seen = StateReason { reason, count: hidden, example, since: Duration::ZERO };
            StateReason::note(&mut source.reasons, seen);
        }
        Ok(Outcome { id, refused, events, holdings })
    }

    /// Checks that a source may feed a rank. Without consolidation, a rank has one source, and a source that is still
    /// pending reserves its ranks.
    fn check_rank(&self, number: SourceNumber, rank: DpRank) -> Result<(), HubError> {
        let Some(owner) = self.ranks.get(&rank) else {
            let limit = WORKER_RANKS_MAX;
            let is_full = self.ranks.len() >= limit;
            return if is_full { Err(HubError::TooManyRanks { rank, limit }) } else { Ok(()) };
        };
        let other = self.open.get(owner).filter(|other| {
            *owner != number && self.consolidator.is_none() && other.ranks.contains_key(&rank)
        });
        let Some(other) = other else { return Ok(()) };
        let owner = other.name.clone();
        Err(if other.is_pending() {
            HubError::RankReserved { rank, owner }
        } else {
            HubError::RankTaken { rank, owner }
        })
    }

    /// Checks whether a source must wait before it publishes for a rank. Other errors occur on publishing.
    pub(super) fn check_turn(&self, key: Key, rank: DpRank) -> Result<(), HubError> {
        match self.check_rank(key.number, rank) {
            Err(error @ HubError::RankReserved { .. }) => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Records that a source's engine has survived. Returns whether this decides that the agent's incarnation
    /// continues.
    pub(super) fn prove_survival(&mut self, key: Key) -> bool {
        let source = self.source(key).ok();
        let is_news =
            source.and_then(|source| source.persisted.as_mut()).is_some_and(Persisted::confirm);
        is_news && !mem::replace(&mut self.is_settled, true)
    }

    /// Clears a source: its incarnation is over (`is_over`), or events were lost. Returns the removals to publish, and
    /// the verdict if this settles the incarnation.
    pub(super) fn clear_source(&mut self, key: Key, is_over: bool) -> Result<Gone, HubError> {
        let source = self.source(key)?;
        let mut was_pending = false;
        if let Some(persisted) = &mut source.persisted {
            was_pending = persisted.confirm();
            if is_over || was_pending {
                persisted.end_incarnation();
            } else {
                persisted.record_loss();
            }
        }
        let released = self.clear(key)?;
        if was_pending {
            // The ranks belong to an incarnation that is over.
            self.source(key)?.ranks.clear();
        }
        if !was_pending || mem::replace(&mut self.is_settled, true) {
            return Ok(Gone { released, verdict: None });
        }
        if self.open.values().any(Source::holds_something) {
            return Ok(Gone { released, verdict: Some(Verdict::Continued) });
        }
        Ok(Gone {
            released: Vec::new(),
            verdict: Some(Verdict::NewIncarnation(NewIncarnation::Engine)),
        })
    }

    /// Records differences between a source and the agent's stream. Any rank of the source may be concerned.
    pub(super) fn add_flaws(&mut self, key: Key, flaws: Flaws) {
        let Ok(source) = self.source(key) else { return };
        source.doubt_ranks();
        if let Some(persisted) = &mut source.persisted {
            persisted.add(flaws);
        }
    }

    /// Names of sources that continue if their engines prove that they survived.
    pub(super) fn all_pending(&self) -> Vec<String> {
        let pending = self.open.values().filter(|source| source.is_pending());
        pending.map(|source| source.name.clone()).collect()
    }

    /// Diagnosis of a source with refused blocks since its last clear. `None` if all blocks were accepted, or the cause
    /// is unknown.
    pub(super) fn lacking(&self, key: Key, block_size: u32) -> Option<String> {
        let source = self.open.get(&key.number).filter(|source| source.opened == key.opened)?;
        source.lacks_blocks().then(|| problem(&source.counts, block_size))?
    }

    /// A source's position to write.
    pub(super) fn change(&self, key: Key) -> SourceChange<'_> {
        let source = self.open.get(&key.number).filter(|source| source.opened == key.opened);
        let persisted = source.and_then(|source| source.persisted.as_ref());
        persisted.map_or(SourceChange::None, Persisted::change)
    }

    /// Position of a source that may continue, until its engine has reported.
    pub(super) fn pending(&mut self, key: Key) -> Option<PersistedSource> {
        self.source(key).ok()?.persisted.as_ref()?.pending().cloned()
    }

    /// Takes the meanings of names from an earlier process.
    pub(super) fn take_names(&mut self, key: Key) -> Vec<KnownName> {
        self.source(key).map(|source| mem::take(&mut source.names_left)).unwrap_or_default()
    }

    /// A source's reported state, worsened by flaws from before.
    pub(super) fn state(&mut self, key: Key, state: SourceState) -> SourceState {
        let persisted = self.source(key).ok().and_then(|source| source.persisted.as_ref());
        persisted.map_or(state, |persisted| persisted.state(state))
    }

    /// Clears a source at the ranks that it fed since the last clear. Returns the resulting removals.
    fn clear(&mut self, key: Key) -> Result<Vec<Released>, HubError> {
        let source = self.source(key)?;
        source.nothing_held();
        let used = source.ranks.iter_mut();
        let used = used.filter_map(|(rank, at)| mem::take(&mut at.since_clear).then_some(*rank));
        let ranks: Vec<DpRank> = used.collect();
        let name = source.name.clone();
        let read = source.consolidated(key.number);
        Ok(match &mut self.consolidator {
            Some(consolidator) => {
                let cleared = consolidator.clear(read).into_iter();
                let of = |(rank, changed)| Released { source: name.clone(), rank, changed };
                cleared.map(of).collect()
            }
            None => ranks.into_iter().map(|rank| Released::whole(name.clone(), rank)).collect(),
        })
    }

    /// Closes a source.
    pub(super) fn close(&mut self, key: Key) -> Result<Gone, HubError> {
        let gone = self.clear_source(key, true)?;
        self.open.remove(&key.number);
        Ok(gone)
    }

    /// Changes a source's copy mode, at the beginning of an incarnation.
    pub(super) fn set_copy_mode(&mut self, key: Key, copy_mode: CopyMode) -> Result<(), HubError> {
        let name = self.source(key)?.name.clone();
        self.check_copy_mode(&name, copy_mode)?;
        let source = self.source(key)?;
        source.copy_mode = copy_mode;
        if let Some(persisted) = &mut source.persisted {
            persisted.set_copy_mode(copy_mode);
        }
        Ok(())
    }

    /// Records why a source is not exact.
    pub(super) fn note_reason(&mut self, key: Key, seen: StateReason) {
        if let Ok(source) = self.source(key) {
            StateReason::note(&mut source.reasons, seen);
        }
    }

    pub(super) fn counts(&mut self, key: Key) -> Result<&mut SourceCounts, HubError> {
        Ok(&mut self.source(key)?.counts)
    }

    pub(super) fn status(
        &mut self,
        key: Key,
    ) -> Result<&watch::Sender<SourceStatus<Instant>>, HubError> {
        Ok(&self.source(key)?.status)
    }

    /// Returns how far all sources together can be trusted: the worst state and all reasons.
    pub(super) fn feed_state(&self) -> FeedState {
        let mut feed_state = FeedState::OWN;
        for source in self.open.values() {
            feed_state.state = feed_state.state.max(source.state());
            for seen in source.reasons() {
                StateReason::note(&mut feed_state.reasons, seen);
            }
            let status = source.status.borrow();
            feed_state.connected &= status.connected;
            let times = [feed_state.verified_at, status.verified_at].into_iter().flatten();
            feed_state.verified_at = times.min();
        }
        feed_state
    }

    pub(super) fn watch(&self, name: &str) -> Option<watch::Receiver<SourceStatus<Instant>>> {
        let found = self.open.values().find(|source| source.name == name);
        found.map(|source| source.status.subscribe())
    }

    pub(super) fn reports(&self, block_size: u32) -> Vec<SourceReport> {
        let reports = self.open.values().map(|source| SourceReport {
            name: source.name.clone(),
            copy_mode: source.copy_mode,
            status: SourceStatus { state: source.state(), ..source.status.borrow().clone() },
            counts: source.counts.clone(),
            problem: problem(&source.counts, block_size),
        });
        reports.collect()
    }
}

/// Refuses events that the journal would refuse, before anything changes.
fn check_events(events: &[KvEvent]) -> Result<(), HubError> {
    let limit = EVENT_BLOCKS_MAX;
    for (index, event) in events.iter().enumerate() {
        let count = event.operations();
        if count > limit {
            return Err(AppendError::TooManyBlocks { index, count, limit }.into());
        }
    }
    Ok(())
}

/// Removes the blocks of further KV-cache groups, and counts them. Consolidation gives blocks names by their chain, which
/// these blocks lack.
fn remove_further_groups(events: Vec<KvEvent>, hidden: &mut u64) -> Vec<KvEvent> {
    let mut kept = Vec::with_capacity(events.len());
    for event in events {
        match &event {
            KvEvent::Stored { blocks, .. }
                if blocks.first().is_some_and(|first| Group::is_mark(first.local)) =>
            {
                *hidden = hidden.saturating_add(blocks.len() as u64);
            }
            KvEvent::Stored { .. }
            | KvEvent::StoredNames { .. }
            | KvEvent::Removed { .. }
            | KvEvent::Gone { .. }
            | KvEvent::Cleared
            | KvEvent::ClearedTier(_) => kept.push(event),
        }
    }
    kept
}
