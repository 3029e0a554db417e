use super::report::{SourceCounts, SourceReport, SourceStatus, complaint};
use super::{HubConfig, HubError};
use crate::consolidate::{ConsolidateConfig, Consolidator, SOURCES_MAX, SourceNumber};
use crate::feed::Standing;
use crate::journal::AppendError;
use kvasir_proto::limits::{EVENT_BLOCKS_MAX, WORKER_RANKS_MAX};
use kvasir_proto::types::{CopyMode, DpRank, KvEvent, SourceState};
use std::collections::BTreeMap;
use std::mem;
use tokio::sync::watch;

/// An open source: its place, and which of those that had the place it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    number: SourceNumber,
    opened: u64,
}

/// What a source has said of a rank.
#[derive(Debug, Default)]
struct Spoken {
    /// Batches so far.
    batches: u64,
    /// Whether any came since the last clear.
    since_clear: bool,
}

#[derive(Debug)]
struct Source {
    opened: u64,
    name: String,
    copy_mode: CopyMode,
    ranks: BTreeMap<DpRank, Spoken>,
    counts: SourceCounts,
    /// Operations that had not been taken when it held nothing last.
    not_taken_before: u64,
    status: watch::Sender<SourceStatus>,
}

impl Source {
    /// Whether it may hold blocks that were not taken.
    fn lacks_blocks(&self) -> bool {
        self.counts.not_taken() > self.not_taken_before
    }
}

/// What is to be said of ranks, in order.
pub(super) type Said = Vec<(DpRank, Vec<KvEvent>)>;

/// The sources of an agent, and what they say together.
#[derive(Debug)]
pub(super) struct Sources {
    config: HubConfig,
    /// How the agent's stream is read.
    copy_mode: CopyMode,
    /// None where each rank has one source.
    consolidator: Option<Consolidator>,
    open: BTreeMap<SourceNumber, Source>,
    opened: u64,
    /// Ranks that anything was ever said of, and who did last.
    ranks: BTreeMap<DpRank, SourceNumber>,
}

/// What comes of a batch.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Its number among those of its source and rank, from 0.
    pub(super) id: u64,
    pub(super) refused: u64,
    pub(super) events: Vec<KvEvent>,
}

impl Sources {
    pub(super) fn new(config: HubConfig, copy_mode: CopyMode) -> Result<Self, HubError> {
        if !(1..=SOURCES_MAX).contains(&config.sources_max) {
            return Err(HubError::SourcesMax(config.sources_max));
        }
        if config.consolidate && copy_mode != CopyMode::Set {
            return Err(HubError::NotSet);
        }
        let bounds = ConsolidateConfig { names_max: config.names_max };
        Ok(Self {
            config,
            copy_mode,
            consolidator: config.consolidate.then(|| Consolidator::new(bounds)),
            open: BTreeMap::new(),
            opened: 0,
            ranks: BTreeMap::new(),
        })
    }

    pub(super) fn open(&mut self, name: &str, copy_mode: CopyMode) -> Result<Key, HubError> {
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
        let source = Source {
            opened: self.opened,
            name,
            copy_mode,
            ranks: BTreeMap::new(),
            counts: SourceCounts::default(),
            not_taken_before: 0,
            status: watch::Sender::new(SourceStatus::COLD),
        };
        self.open.insert(number, source);
        Ok(Key { number, opened: self.opened })
    }

    fn check_copy_mode(&self, name: &str, asked: CopyMode) -> Result<(), HubError> {
        let present = self.copy_mode;
        if self.consolidator.is_none() && asked != present {
            return Err(HubError::CopyMode { name: name.to_owned(), asked, present });
        }
        Ok(())
    }

    fn source(&mut self, key: Key) -> Result<&mut Source, HubError> {
        let found = self.open.get_mut(&key.number);
        found.filter(|source| source.opened == key.opened).ok_or(HubError::Closed)
    }

    /// Reads what is said of a rank.
    pub(super) fn take(
        &mut self,
        key: Key,
        rank: DpRank,
        events: Vec<KvEvent>,
    ) -> Result<Outcome, HubError> {
        let copy_mode = self.source(key)?.copy_mode;
        check_events(&events)?;
        self.check_rank(key.number, rank)?;
        self.ranks.insert(rank, key.number);
        let operations: usize = events.iter().map(KvEvent::operations).sum();
        let (mut refused, mut events) = (0, events);
        if let Some(consolidator) = &mut self.consolidator {
            let before = consolidator.counts().refused;
            events = consolidator.take((key.number, copy_mode), rank, events);
            refused = consolidator.counts().refused - before;
        }
        let source = self.source(key)?;
        source.counts.batches += 1;
        source.counts.operations += operations as u64;
        source.counts.refused += refused;
        let spoken = source.ranks.entry(rank).or_default();
        let id = spoken.batches;
        spoken.batches += 1;
        spoken.since_clear = true;
        Ok(Outcome { id, refused, events })
    }

    fn check_rank(&self, number: SourceNumber, rank: DpRank) -> Result<(), HubError> {
        let Some(owner) = self.ranks.get(&rank) else {
            let limit = WORKER_RANKS_MAX;
            let is_full = self.ranks.len() >= limit;
            return if is_full { Err(HubError::TooManyRanks { rank, limit }) } else { Ok(()) };
        };
        let other = self.open.get(owner).filter(|other| {
            *owner != number && self.consolidator.is_none() && other.ranks.contains_key(&rank)
        });
        other.map_or(Ok(()), |other| Err(HubError::RankTaken { rank, owner: other.name.clone() }))
    }

    /// A source holds nothing any more.
    pub(super) fn clear(&mut self, key: Key) -> Result<Said, HubError> {
        let source = self.source(key)?;
        source.not_taken_before = source.counts.not_taken();
        let spoken = source.ranks.iter_mut();
        let spoken =
            spoken.filter_map(|(rank, at)| mem::take(&mut at.since_clear).then_some(*rank));
        let ranks: Vec<DpRank> = spoken.collect();
        Ok(match &mut self.consolidator {
            Some(consolidator) => consolidator.clear(key.number),
            None => ranks.into_iter().map(|rank| (rank, vec![KvEvent::Cleared])).collect(),
        })
    }

    /// A source is gone.
    pub(super) fn close(&mut self, key: Key) -> Result<Said, HubError> {
        let said = self.clear(key)?;
        self.open.remove(&key.number);
        Ok(said)
    }

    /// Second announcements are read otherwise, in a life that begins.
    pub(super) fn set_copy_mode(&mut self, key: Key, copy_mode: CopyMode) -> Result<(), HubError> {
        let name = self.source(key)?.name.clone();
        self.check_copy_mode(&name, copy_mode)?;
        self.source(key)?.copy_mode = copy_mode;
        Ok(())
    }

    pub(super) fn counts(&mut self, key: Key) -> Result<&mut SourceCounts, HubError> {
        Ok(&mut self.source(key)?.counts)
    }

    pub(super) fn status(&mut self, key: Key) -> Result<&watch::Sender<SourceStatus>, HubError> {
        Ok(&self.source(key)?.status)
    }

    /// How far what they say together can be trusted.
    pub(super) fn standing(&self) -> Standing {
        let mut standing = Standing::OWN;
        for source in self.open.values() {
            let lacks =
                if source.lacks_blocks() { SourceState::Partial } else { SourceState::Exact };
            let status = *source.status.borrow();
            standing.state = standing.state.max(status.state).max(lacks);
            let times = [standing.verified_at, status.verified_at].into_iter().flatten();
            standing.verified_at = times.min();
        }
        standing
    }

    pub(super) fn watch(&self, name: &str) -> Option<watch::Receiver<SourceStatus>> {
        let found = self.open.values().find(|source| source.name == name);
        found.map(|source| source.status.subscribe())
    }

    pub(super) fn reports(&self, block_size: u32) -> Vec<SourceReport> {
        let reports = self.open.values().map(|source| SourceReport {
            name: source.name.clone(),
            copy_mode: source.copy_mode,
            status: *source.status.borrow(),
            counts: source.counts.clone(),
            complaint: complaint(&source.counts, block_size),
        });
        reports.collect()
    }
}

/// What the journal would refuse is refused before anything has changed.
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
