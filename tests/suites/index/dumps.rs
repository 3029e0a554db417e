//! Dumps that a run has under way.

use crate::runner::{CALLS_MAX, Run, same};
use crate::subject::{DumpedRecord, DumpedTail, Refusal, Subject};
use kvasir_proto::types::{BlockName, DpRank, KvEvent, WorkerId};
use kvasir_tests::oracle::{Held, HeldKey};
use std::collections::{BTreeMap, BTreeSet};

/// A dump under way.
pub struct Dump<S: Subject> {
    pub scan: S::Scan,
    received: Received,
    more: bool,
    /// Names that changed, or may have, since the dump began.
    touched: BTreeSet<(DpRank, BlockName)>,
    /// Why the subject may abort the dump.
    excuse: Option<&'static str>,
}

/// What a reader of a dump has so far.
struct Received {
    worker: WorkerId,
    rank: Option<DpRank>,
    records: BTreeMap<HeldKey, Held>,
}

impl<S: Subject> Dump<S> {
    fn new(scan: S::Scan, worker: &WorkerId, rank: Option<DpRank>) -> Self {
        Self {
            scan,
            received: Received { worker: worker.clone(), rank, records: BTreeMap::new() },
            more: true,
            touched: BTreeSet::new(),
            excuse: None,
        }
    }
}

impl<S: Subject> Run<'_, S> {
    pub fn begin_dump(
        &mut self,
        slot: usize,
        source: usize,
        rank: Option<DpRank>,
    ) -> Result<(), String> {
        let worker = &self.script.sources[source].worker;
        let ranks = self.oracle.ranks(worker);
        let known = rank.map_or(!ranks.is_empty(), |rank| ranks.contains_key(&rank));
        if !known || self.dumps[slot].is_some() {
            return Ok(());
        }
        let scan = self
            .subject
            .begin_dump(worker, rank)
            .map_err(|refusal| format!("dump does not begin: {refusal}"))?;
        self.dumps[slot] = Some(Dump::new(scan, worker, rank));
        Ok(())
    }

    pub fn read_dump(&mut self, slot: usize, records_max: usize) -> Result<(), String> {
        let Some(mut dump) = self.dumps[slot].take() else {
            return Ok(());
        };
        match self.read_chunk(&mut dump, records_max) {
            Ok(_) => self.dumps[slot] = Some(dump),
            Err(refusal) => {
                self.subject.cancel_dump(dump.scan);
                self.excused(refusal, dump.excuse)?;
            }
        }
        Ok(())
    }

    /// The records of one chunk, in order.
    fn read_chunk(
        &mut self,
        dump: &mut Dump<S>,
        records_max: usize,
    ) -> Result<Vec<HeldKey>, Refusal> {
        if !dump.more {
            return Ok(Vec::new());
        }
        let mut chunk = Vec::new();
        dump.more = self.subject.read_dump(&mut dump.scan, records_max, &mut chunk)?;
        if chunk.len() > records_max {
            let text = format!("{} records in a chunk of {records_max}", chunk.len());
            return Err(Refusal::Other(text));
        }
        self.take_in(&mut dump.received, chunk).map_err(Refusal::Other)
    }

    /// Later records replace earlier ones; one without copies says that the name is gone.
    fn take_in(
        &self,
        received: &mut Received,
        records: Vec<DumpedRecord<S::Source>>,
    ) -> Result<Vec<HeldKey>, String> {
        let mut keys = Vec::new();
        for ((rank, source, name), held) in records {
            let known = self.sources.iter().flatten().find(|(subject, _)| *subject == source);
            let Some(&(_, number)) = known else {
                return Err(format!("record of unknown source {source:?}"));
            };
            if received.rank.is_some_and(|only| only != rank) {
                return Err(format!("record of rank {rank}, which was not asked for"));
            }
            let key = (rank, number, name);
            keys.push(key);
            if held.copies.iter().all(|&copies| copies == 0) {
                received.records.remove(&key);
            } else {
                received.records.insert(key, held);
            }
        }
        Ok(keys)
    }

    fn excused(&mut self, refusal: Refusal, excuse: Option<&'static str>) -> Result<(), String> {
        match (refusal, excuse) {
            (Refusal::Aborted(_), Some(_)) => {
                self.seen.dumps_aborted += 1;
                Ok(())
            }
            (refusal, excuse) => {
                Err(format!("dump: {refusal}, though what happened is {excuse:?}"))
            }
        }
    }

    pub fn finish_dump(&mut self, slot: usize, records_max: usize) -> Result<(), String> {
        let Some(mut dump) = self.dumps[slot].take() else {
            return Ok(());
        };
        for _ in 0..CALLS_MAX {
            if !dump.more {
                break;
            }
            if let Err(refusal) = self.read_chunk(&mut dump, records_max) {
                self.subject.cancel_dump(dump.scan);
                return self.excused(refusal, dump.excuse);
            }
        }
        if dump.more {
            return Err("a dump never ends".into());
        }
        self.close_dump(dump).map(|_| ())
    }

    /// Finishes a dump whose chunks are read and compares it. Number of records in the tail.
    fn close_dump(&mut self, dump: Dump<S>) -> Result<usize, String> {
        let Dump { scan, mut received, touched, excuse, .. } = dump;
        let DumpedTail { records, ends } = match self.subject.finish_dump(scan) {
            Ok(tail) => tail,
            Err(refusal) => return self.excused(refusal, excuse).map(|()| 0),
        };
        let names = records.iter().map(|((rank, _, name), _)| (*rank, *name)).collect();
        if most_of_one_rank(&names) > self.script.limits.dirty_names_max {
            return Err(format!("too many names in the tail of a dump: {names:?}"));
        }
        let tail_records = records.len();
        self.seen.dumps_finished += 1;
        self.seen.dump_tail_records += tail_records as u64;
        self.check_ends(&received, ends)?;
        self.take_in(&mut received, records)?;
        let expected = self.oracle.dump(&received.worker, received.rank);
        let records = received.records;
        let differs = |key: &&HeldKey| records.get(*key) != expected.get(*key);
        if let Some(key) = records.keys().chain(expected.keys()).find(differs) {
            let (rank, _, name) = key;
            let touched = touched.contains(&(*rank, *name));
            let text = format!("dumped record {key:?} (touched meanwhile: {touched})");
            same(&text, &records.get(key), &expected.get(key))?;
        }
        Ok(tail_records)
    }

    fn check_ends(
        &self,
        received: &Received,
        mut ends: Vec<(S::Source, String)>,
    ) -> Result<(), String> {
        let feeding: BTreeSet<_> = self.oracle.feeding(&received.worker, received.rank).collect();
        let known = self.sources.iter().zip(&self.script.sources);
        let mut expected: Vec<_> = known
            .filter_map(|(ids, spec)| ids.map(|ids| (ids, spec)))
            .filter(|((_, number), _)| feeding.contains(number))
            .map(|((subject, _), spec)| (subject, spec.name.clone()))
            .collect();
        ends.sort();
        expected.sort();
        same("sources at the end of a dump", &ends, &expected)
    }

    /// A dump during which nothing happens: every record once, parents first, no tail.
    pub fn quiet_dump(&mut self, worker: &WorkerId, records_max: usize) -> Result<(), String> {
        let scan = self
            .subject
            .begin_dump(worker, None)
            .map_err(|refusal| format!("dump does not begin: {refusal}"))?;
        let mut dump = Dump::new(scan, worker, None);
        let mut keys = Vec::new();
        for _ in 0..CALLS_MAX {
            if !dump.more {
                break;
            }
            let chunk = self.read_chunk(&mut dump, records_max);
            keys.extend(chunk.map_err(|refusal| format!("quiet dump: {refusal}"))?);
        }
        if dump.more {
            return Err("a dump never ends".into());
        }
        let once: BTreeSet<_> = keys.iter().collect();
        same("number of records in a quiet dump", &keys.len(), &once.len())?;
        self.parents_first(worker, &keys)?;
        let tail = self.close_dump(dump)?;
        same("records in the tail of a quiet dump", &tail, &0)
    }

    fn parents_first(&self, worker: &WorkerId, keys: &[HeldKey]) -> Result<(), String> {
        let records: BTreeMap<_, _> =
            self.oracle.records(worker).map(|(rank, name, r)| ((rank, name), r)).collect();
        let mut seen = BTreeSet::new();
        for &(rank, _, name) in keys {
            seen.insert((rank, name));
            let Some(record) = records.get(&(rank, name)) else {
                continue;
            };
            let parent = record.parent.and_then(|parent| records.get_key_value(&(rank, parent)));
            let Some((parent_key, parent)) = parent else {
                continue;
            };
            let (Some(above), Some(below)) = (&parent.position, &record.position) else {
                continue;
            };
            if below.split_last().is_some_and(|(_, path)| path == above.as_slice())
                && !seen.contains(parent_key)
            {
                return Err(format!("dump of {worker}: {name:?} before its parent"));
            }
        }
        Ok(())
    }

    /// Notes, for the dumps under way, which names an event may change.
    pub fn touch(
        &mut self,
        source: usize,
        rank: DpRank,
        event: &KvEvent,
        change: impl FnOnce(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        let worker = self.script.sources[source].worker.clone();
        let limit = self.script.limits.dirty_names_max;
        let concerned = |dump: &&mut Dump<S>| dump.received.worker == worker;
        if !self.dumps.iter_mut().flatten().any(|dump| concerned(&dump)) {
            return change(self);
        }
        let ranks = self.oracle.rank_count(&worker);
        // What else an event changes, by placing what waited, matters only where it is counted.
        let counted = limit < 1_000;
        let held =
            |run: &Self| if counted { run.oracle.dump(&worker, None) } else { BTreeMap::new() };
        let before = held(self);
        let outcome = change(self);
        let after = held(self);
        let mut touched: BTreeSet<_> =
            names_of(event).into_iter().map(|name| (rank, name)).collect();
        let keys = before.keys().chain(after.keys());
        let changed = keys.filter(|key| before.get(key) != after.get(key));
        touched.extend(changed.map(|&(rank, _, name)| (rank, name)));
        for dump in self.dumps.iter_mut().flatten().filter(concerned) {
            dump.touched.extend(&touched);
            if most_of_one_rank(&dump.touched) > limit {
                dump.excuse = Some("too many names were touched");
            }
            if matches!(event, KvEvent::Cleared | KvEvent::ClearedTier(_)) {
                dump.excuse = Some("a clear");
            }
        }
        self.excuse_new_rank(source, ranks);
        outcome
    }

    /// A dump of all ranks may end when there are more ranks than it began with.
    pub fn excuse_new_rank(&mut self, source: usize, ranks_before: usize) {
        let worker = &self.script.sources[source].worker;
        if self.oracle.rank_count(worker) > ranks_before {
            self.excuse_dumps(source, "a rank was added");
        }
    }

    pub fn excuse_dumps(&mut self, source: usize, why: &'static str) {
        let worker = &self.script.sources[source].worker;
        let dumps = self.dumps.iter_mut().flatten();
        dumps
            .filter(|dump| dump.received.worker == *worker)
            .for_each(|dump| dump.excuse = Some(why));
    }
}

/// Names of the rank that has most.
pub fn most_of_one_rank(names: &BTreeSet<(DpRank, BlockName)>) -> usize {
    let mut counts: BTreeMap<DpRank, usize> = BTreeMap::new();
    for &(rank, _) in names {
        *counts.entry(rank).or_default() += 1;
    }
    counts.into_values().max().unwrap_or_default()
}

fn names_of(event: &KvEvent) -> Vec<BlockName> {
    match event {
        KvEvent::Stored { blocks, .. } => blocks.iter().map(|block| block.name).collect(),
        KvEvent::StoredNames { names, .. }
        | KvEvent::Removed { names, .. }
        | KvEvent::Gone { names, .. } => names.clone(),
        KvEvent::Cleared | KvEvent::ClearedTier(_) => Vec::new(),
    }
}
