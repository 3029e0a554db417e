//! An oracle that plays the index, with one fault: what the suite must notice.

use crate::dumps::most_of_one_rank;
use crate::subject::{DumpedRecord, DumpedTail, Piece, RankSizes, Refusal, Sizes, Subject};
use kvasir_proto::types::{BlockCounts, CopyMode, DpRank, KvEvent, Tier, TierSet, WorkerId};
use kvasir_tests::oracle::{Found, Held, Oracle, OracleLimits, Question, Roles, SourceNo};
use kvasir_tests::script::{ScriptLimits, SourceSpec};
use std::collections::BTreeMap;

/// One way to be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    CountsAlways,
    CountsNever,
    UnknownParentIsRoot,
    RemovesFromDevice,
    ForgetsHostTier,
    ClearsAllRanks,
    SourcesAreOne,
    RanksAreOne,
    NoSuspects,
    NamesAreIgnored,
    ChainsOneLonger,
    OneMoreParked,
    CountsUnaskedTiers,
    IgnoresFilter,
    IgnoresMinimum,
    DumpIsOld,
    RemovalKeepsLastName,
    LongEventsLoseTheirEnd,
    PoolsAreCandidates,
    PoolsAreNotRead,
    AllReadAllPools,
    PoolsDoNotChange,
    ChunksMayBeIncomplete,
}

impl Fault {
    pub const ALL: [Self; 23] = [
        Self::CountsAlways,
        Self::CountsNever,
        Self::UnknownParentIsRoot,
        Self::RemovesFromDevice,
        Self::ForgetsHostTier,
        Self::ClearsAllRanks,
        Self::SourcesAreOne,
        Self::RanksAreOne,
        Self::NoSuspects,
        Self::NamesAreIgnored,
        Self::ChainsOneLonger,
        Self::OneMoreParked,
        Self::CountsUnaskedTiers,
        Self::IgnoresFilter,
        Self::IgnoresMinimum,
        Self::DumpIsOld,
        Self::RemovalKeepsLastName,
        Self::LongEventsLoseTheirEnd,
        Self::PoolsAreCandidates,
        Self::PoolsAreNotRead,
        Self::AllReadAllPools,
        Self::PoolsDoNotChange,
        Self::ChunksMayBeIncomplete,
    ];
}

pub struct Double {
    oracle: Oracle,
    fault: Fault,
    dirty_names_max: usize,
    specs: BTreeMap<SourceNo, SourceSpec>,
    /// Clears and sweeps of each worker so far; each aborts its dumps.
    sweeps: BTreeMap<WorkerId, u64>,
    has_roles: bool,
}

pub struct DoubleScan {
    worker: WorkerId,
    rank: Option<DpRank>,
    begun: Vec<DumpedRecord<SourceNo>>,
    read: usize,
    sweeps: u64,
}

impl Double {
    pub fn new(limits: ScriptLimits, fault: Fault) -> Self {
        let more = |fits: Fault| usize::from(fault == fits);
        let oracle = Oracle::new(OracleLimits {
            chain_blocks_max: limits.chain_blocks_max + more(Fault::ChainsOneLonger),
            rank_parked_max: limits.rank_parked_max + more(Fault::OneMoreParked),
        });
        let dirty_names_max = limits.dirty_names_max;
        let specs = BTreeMap::new();
        let sweeps = BTreeMap::new();
        Self { oracle, fault, dirty_names_max, specs, sweeps, has_roles: false }
    }

    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    fn blamed(&self, source: SourceNo) -> SourceNo {
        if !self.is(Fault::SourcesAreOne) {
            return source;
        }
        let worker = &self.specs[&source].worker;
        let first = self.specs.iter().find(|(_, spec)| spec.worker == *worker);
        first.map_or(source, |(&first, _)| first)
    }

    fn note_sweep(&mut self, source: SourceNo) {
        *self.sweeps.entry(self.specs[&source].worker.clone()).or_default() += 1;
    }

    fn sweeps_of(&self, worker: &WorkerId) -> u64 {
        self.sweeps.get(worker).copied().unwrap_or_default()
    }

    fn check_scan(&self, scan: &DoubleScan) -> Result<(), Refusal> {
        if scan.sweeps == self.sweeps_of(&scan.worker) {
            return Ok(());
        }
        Err(Refusal::Aborted("a sweep".into()))
    }

    fn tampered(&self, source: SourceNo, rank: DpRank, event: &KvEvent) -> KvEvent {
        let mut event = event.clone();
        match &mut event {
            KvEvent::Stored { parent, tier, blocks } => {
                if self.is(Fault::UnknownParentIsRoot) {
                    let worker = &self.specs[&source].worker;
                    let known = |wanted| {
                        self.oracle.records(worker).any(|(r, name, _)| (r, name) == (rank, wanted))
                    };
                    *parent = parent.filter(|&parent| known(parent));
                }
                if self.is(Fault::ForgetsHostTier) && *tier == Tier::Host {
                    *tier = Tier::Device;
                }
                if self.is(Fault::LongEventsLoseTheirEnd) {
                    blocks.truncate(64);
                }
            }
            KvEvent::StoredNames { names, .. } if self.is(Fault::NamesAreIgnored) => names.clear(),
            KvEvent::Removed { tier, .. } if self.is(Fault::RemovesFromDevice) => {
                *tier = Tier::Device;
            }
            KvEvent::Removed { names, .. } if self.is(Fault::RemovalKeepsLastName) => {
                if names.len() > 1 {
                    names.pop();
                }
            }
            KvEvent::StoredNames { .. }
            | KvEvent::Removed { .. }
            | KvEvent::Gone { .. }
            | KvEvent::Cleared
            | KvEvent::ClearedTier(_) => {}
        }
        event
    }
}

impl Subject for Double {
    type Source = SourceNo;
    type Scan = DoubleScan;

    fn set_roles(&mut self, roles: &Roles) {
        if self.is(Fault::PoolsDoNotChange) && self.has_roles {
            return;
        }
        self.has_roles = true;
        let mut roles = roles.clone();
        match self.fault {
            Fault::PoolsAreCandidates => roles.pools.clear(),
            Fault::PoolsAreNotRead => roles.reads.clear(),
            Fault::ChunksMayBeIncomplete => roles.chunks.clear(),
            Fault::AllReadAllPools => {
                let all: Vec<_> = roles.pools.iter().cloned().collect();
                roles.reads.values_mut().for_each(|reads| reads.clone_from(&all));
            }
            _ => {}
        }
        self.oracle.set_roles(roles);
    }

    fn add_source(&mut self, spec: &SourceSpec) -> Result<SourceNo, String> {
        if self.specs.values().any(|known| known == spec) {
            return Err("known".into());
        }
        let mode = match self.fault {
            Fault::CountsAlways => CopyMode::Counted,
            Fault::CountsNever => CopyMode::Set,
            _ => spec.copy_mode,
        };
        let source = self.oracle.add_source(&spec.worker, spec.rank, mode);
        self.specs.insert(source, spec.clone());
        Ok(source)
    }

    fn remove_source(&mut self, source: SourceNo) -> Result<(), String> {
        if self.oracle.holds_anything(source) {
            return Err("not cleared".into());
        }
        self.oracle.remove_source(source);
        self.specs.remove(&source);
        Ok(())
    }

    fn apply(
        &mut self,
        source: SourceNo,
        rank: DpRank,
        event: &KvEvent,
    ) -> Result<BlockCounts, String> {
        let event = self.tampered(source, rank, event);
        if event == KvEvent::Cleared {
            self.note_sweep(source);
        }
        let rank = if self.is(Fault::RanksAreOne) { 0 } else { rank };
        if event == KvEvent::Cleared && self.is(Fault::ClearsAllRanks) {
            let dropped = self.oracle.clear_source(source, None);
            let applied = u64::from(dropped);
            let noop = u64::from(!dropped);
            return Ok(BlockCounts { applied, noop, ..BlockCounts::default() });
        }
        Ok(self.oracle.apply(self.blamed(source), rank, &event))
    }

    fn clear(
        &mut self,
        source: SourceNo,
        rank: Option<DpRank>,
        _budget: usize,
    ) -> Result<Piece, String> {
        self.note_sweep(source);
        let removed = u64::from(self.oracle.clear_source(source, rank));
        Ok(Piece { removed, done: true })
    }

    fn mark_suspect(&mut self, source: SourceNo) {
        if !self.is(Fault::NoSuspects) {
            self.oracle.mark_suspect(source);
        }
    }

    fn drop_suspects(&mut self, source: SourceNo, _budget: usize) -> Result<Piece, String> {
        self.note_sweep(source);
        let removed = u64::from(self.oracle.drop_suspects(source));
        Ok(Piece { removed, done: true })
    }

    fn find(&mut self, question: &Question) -> Result<Vec<Found>, String> {
        let mut question = question.clone();
        if self.is(Fault::IgnoresFilter) {
            question.workers = None;
        }
        if self.is(Fault::IgnoresMinimum) {
            question.minimum_overlap = question.minimum_overlap.min(1);
        }
        let mut found = self.oracle.find(&question);
        if self.is(Fault::CountsUnaskedTiers) && !question.tiers.is_empty() {
            question.tiers = TierSet::ALL;
            let all = self.oracle.find(&question);
            for line in &mut found {
                let key = (&line.worker, line.rank, line.blocks);
                let other = all.iter().find(|all| (&all.worker, all.rank, all.blocks) == key);
                line.by_tier = other.map_or(line.by_tier, |other| other.by_tier);
                line.by_best_tier = other.map_or(line.by_best_tier, |other| other.by_best_tier);
            }
        }
        Ok(found)
    }

    fn begin_dump(
        &mut self,
        worker: &WorkerId,
        rank: Option<DpRank>,
    ) -> Result<DoubleScan, Refusal> {
        let mut begun: Vec<_> = self.oracle.dump(worker, rank).into_iter().collect();
        let depth: BTreeMap<_, _> = self
            .oracle
            .records(worker)
            .map(|(rank, name, record)| ((rank, name), record.position.as_ref().map(Vec::len)))
            .collect();
        begun.sort_by_key(|((rank, _, name), _)| depth[&(*rank, *name)]);
        Ok(DoubleScan {
            worker: worker.clone(),
            rank,
            begun,
            read: 0,
            sweeps: self.sweeps_of(worker),
        })
    }

    fn read_dump(
        &mut self,
        scan: &mut DoubleScan,
        records_max: usize,
        out: &mut Vec<DumpedRecord<SourceNo>>,
    ) -> Result<bool, Refusal> {
        self.check_scan(scan)?;
        let end = scan.begun.len().min(scan.read + records_max);
        out.extend_from_slice(&scan.begun[scan.read..end]);
        scan.read = end;
        Ok(end < scan.begun.len())
    }

    fn finish_dump(&mut self, scan: DoubleScan) -> Result<DumpedTail<SourceNo>, Refusal> {
        self.check_scan(&scan)?;
        let ends = self.oracle.feeding(&scan.worker, scan.rank);
        let ends = ends.map(|source| (source, self.specs[&source].name.clone())).collect();
        let now = self.oracle.dump(&scan.worker, scan.rank);
        let begun: BTreeMap<_, _> = scan.begun.into_iter().collect();
        let mut records = Vec::new();
        for (key, held) in &begun {
            if !now.contains_key(key) {
                records.push((*key, Held { copies: [0; Tier::COUNT], ..held.clone() }));
            }
        }
        let changed = now.into_iter().filter(|(key, held)| begun.get(key) != Some(held));
        records.extend(changed);
        if self.is(Fault::DumpIsOld) {
            records.clear();
        }
        let names = records.iter().map(|((rank, _, name), _)| (*rank, *name)).collect();
        if most_of_one_rank(&names) > self.dirty_names_max {
            return Err(Refusal::Aborted("too many names".into()));
        }
        Ok(DumpedTail { records, ends })
    }

    fn cancel_dump(&mut self, _scan: DoubleScan) {}

    fn sizes(&self) -> Sizes {
        Sizes { stats: self.oracle.stats(), leftovers: BTreeMap::new(), bytes: 0 }
    }

    fn ranks(&self) -> RankSizes {
        let workers = self.oracle.workers();
        let ranks = workers.flat_map(|worker| {
            let ranks = self.oracle.ranks(worker).into_iter();
            ranks.map(move |(rank, sizes)| ((worker.clone(), rank), sizes))
        });
        ranks.collect()
    }

    fn validate(&self) -> Result<(), String> {
        Ok(())
    }
}
