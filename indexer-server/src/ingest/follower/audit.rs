//! The audit: whether the index holds of a source what its agent does, and if not, repair of just what differs.
//!
//! Both keep [digests](kvasir_proto::digest). Heartbeats say what the agent's is after its newest batch; once the
//! index has applied just that one, it compares. If they differ, it asks for the digests of all buckets, and then
//! for the blocks of those that differ. Each answer says up to which batch it reaches, and is looked
//! at when the index has applied just that one: meanwhile later batches are held back, so that both
//! speak of one moment. Whatever comes between (a gap, a new life, another stream, a slow answer)
//! ends the audit; the next heartbeat begins another.

use super::Follower;
use crate::{
    index::{Dump, DumpError, DumpPart, IndexedSource},
    ingest::{
        IngestError,
        local::{AskError, Part, Parts, Question},
        publisher::Waiting,
    },
};
use futures::StreamExt;
use kvasir_engine::recover::Input;
use kvasir_index::{DumpRecord, Index};
use kvasir_proto::{
    convert::{DigestsPart, DumpQuery, LocalDumpPart, PublishedBatch, RankBuckets},
    digest::{RankDigest, block_digest, digest_bucket},
    limits::DUMP_CHUNK_RECORDS_DEFAULT,
    types::{BlockName, CopyMode, DpRank, HeldBlock, KvEvent, SourceState, Tier},
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    future::pending,
    mem,
    sync::Arc,
    time::Duration,
};
use tokio::time::{Instant, timeout_at};

/// Longest time for one answer: batches wait meanwhile.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Most buckets that are repaired; where more differ, a dump brings everything.
const BUCKETS_MAX: usize = 512;
/// Batches that are held back at most,
const HELD_BATCHES_MAX: usize = 16_384;
/// and block operations in them.
const HELD_OPERATIONS_MAX: usize = 1 << 20;

/// What is known of a source's agreement with its agent.
#[derive(Default)]
pub(in crate::ingest) struct Audit {
    /// Whether heartbeats bring digests at all.
    pub(super) is_wanted: bool,
    /// The newest batch that a heartbeat named, and the agent's digest after it, until compared.
    announced: Option<(Option<u64>, u64)>,
    stage: Stage,
    /// Batches that wait until it is over.
    held: VecDeque<HeldBack>,
    held_operations: usize,
}

#[derive(Default)]
enum Stage {
    /// As far as is known, they agree.
    #[default]
    Idle,
    /// An answer is on its way.
    Asking { parts: Parts<Part>, until: Instant, answer: Answer },
    /// An answer is there, which says what was held after this batch.
    Answered { watermark: Option<u64>, answer: Answer },
}

/// What the agent holds, as far as it has said.
enum Answer {
    Digests(BTreeMap<DpRank, RankDigest>),
    Blocks { buckets: RankBuckets, blocks: Blocks },
}

/// Blocks by rank and name.
type Blocks = BTreeMap<(DpRank, BlockName), HeldBlock>;

/// A batch that waits.
pub(super) struct HeldBack {
    stream: u64,
    batch: PublishedBatch,
    pub(super) waiting: Option<Waiting>,
}

/// What an audit is to do next.
enum Due {
    /// Wait.
    Nothing,
    /// Compare with this digest.
    Compare(u64),
    /// Apply a batch that was held back.
    Follow(HeldBack),
    /// Look at the answer: the index is where it was given.
    Look,
    /// Give it up.
    Abandon,
}

/// How the index compares.
enum Compared {
    Same,
    Differs,
    /// Blocks are not held for a limit.
    Lacks,
    /// It keeps no digests of what it holds yet.
    Unread,
}

impl Audit {
    /// Whether batches are to be held back.
    pub(super) const fn holds(&self) -> bool {
        !matches!(self.stage, Stage::Idle)
    }

    pub(super) fn hold(&mut self, stream: u64, batch: PublishedBatch, waiting: Option<Waiting>) {
        self.held_operations += operations(&batch);
        self.held.push_back(HeldBack { stream, batch, waiting });
    }

    fn release(&mut self) -> Option<HeldBack> {
        let held = self.held.pop_front()?;
        self.held_operations -= operations(&held.batch);
        Some(held)
    }

    /// Takes note of what a heartbeat says.
    pub(super) const fn announce(&mut self, head: Option<u64>, digest: Option<u64>) {
        if let Some(digest) = digest {
            self.announced = Some((head, digest));
            self.is_wanted = true;
        }
    }

    /// Forgets everything; returns what was held back.
    pub(super) fn give_up(&mut self) -> VecDeque<HeldBack> {
        mem::take(self).held
    }

    /// The next part of the answer on its way; waits for ever if there is none.
    pub(super) async fn next_part(&mut self) -> Result<Part, AskError> {
        let Stage::Asking { parts, until, .. } = &mut self.stage else { return pending().await };
        let late = |_late| AskError::Refused(format!("no answer within {ANSWER_TIMEOUT:?}"));
        timeout_at(*until, parts.next()).await.map_err(late)?.unwrap_or(Err(AskError::Cut))
    }

    /// What is to be done, where the index has applied the batches up to `applied`.
    fn due(&mut self, applied: Option<u64>, is_auditable: bool) -> Due {
        match &self.stage {
            Stage::Idle => {
                let Some((head, digest)) = self.announced else { return Due::Nothing };
                if head > applied || !is_auditable {
                    // It is on its way here.
                    return Due::Nothing;
                }
                self.announced = None;
                // Of what was before, nobody knows the digest any more.
                if head == applied { Due::Compare(digest) } else { Due::Nothing }
            }
            _ if !is_auditable || self.is_full() => Due::Abandon,
            Stage::Answered { watermark, .. } if *watermark > applied => {
                self.release().map_or(Due::Nothing, Due::Follow)
            }
            Stage::Answered { watermark, .. } if *watermark < applied => Due::Abandon,
            Stage::Answered { .. } => Due::Look,
            Stage::Asking { .. } => Due::Nothing,
        }
    }

    fn is_full(&self) -> bool {
        self.held.len() >= HELD_BATCHES_MAX || self.held_operations >= HELD_OPERATIONS_MAX
    }
}

fn operations(batch: &PublishedBatch) -> usize {
    batch.events.iter().map(KvEvent::operations).sum()
}

impl Answer {
    /// Takes a part; false if it is none of this answer.
    fn take(&mut self, part: Part) -> bool {
        match (self, part) {
            (Self::Digests(ranks), Part::Digests(DigestsPart::Tier { rank, tier, digest })) => {
                ranks.entry(rank).or_default().set(tier, digest);
                true
            }
            (
                Self::Blocks { buckets, blocks },
                Part::Dump(LocalDumpPart::Chunk { rank, records }),
            ) => {
                for record in records {
                    put(blocks, buckets, rank, record);
                }
                true
            }
            _ => false,
        }
    }
}

/// Takes the state of a name: later ones replace earlier ones.
fn put(blocks: &mut Blocks, buckets: &RankBuckets, rank: DpRank, block: HeldBlock) {
    let bucket = digest_bucket(block_digest(block.name, block.local));
    let wanted = buckets.get(&rank).is_some_and(|wanted| wanted.binary_search(&bucket).is_ok());
    if wanted && block.copies != [0; Tier::COUNT] {
        blocks.insert((rank, block.name), block);
    } else {
        blocks.remove(&(rank, block.name));
    }
}

// === when ===

impl Follower {
    /// Goes on with the audit as far as can be.
    pub(super) async fn audit(&mut self) -> Result<(), IngestError> {
        loop {
            let applied = self.recovery.status().applied.map(|cursor| cursor.sequence);
            match self.audit.due(applied, self.is_auditable()) {
                Due::Nothing => return Ok(()),
                Due::Compare(digest) => self.compare(digest).await?,
                Due::Follow(next) => self.follow(next.stream, next.batch, next.waiting).await?,
                Due::Look => self.look().await?,
                Due::Abandon => return self.end_audit("abandoned").await,
            }
        }
    }

    /// Whether the index has all that the source said, and whoever knows more can be asked.
    fn is_auditable(&self) -> bool {
        self.asked.is_some()
            && self.stream_life.is_some()
            && self.round.is_none()
            && !self.is_torn
            && self.recovery.status().state == SourceState::Exact
    }

    pub(super) async fn take_audited(
        &mut self,
        part: Result<Part, AskError>,
    ) -> Result<(), IngestError> {
        self.worker.heard(self.ingest.origin);
        let Stage::Asking { parts, until, mut answer } = mem::take(&mut self.audit.stage) else {
            return Ok(());
        };
        let watermark = match part {
            Ok(Part::Digests(DigestsPart::End { watermark })) => watermark,
            Ok(Part::Dump(LocalDumpPart::End(end))) if !end.incomplete => end.watermark,
            Ok(part) => {
                let goes_on = answer.take(part);
                self.audit.stage = Stage::Asking { parts, until, answer };
                return if goes_on { Ok(()) } else { self.end_audit("abandoned").await };
            }
            Err(error) => {
                tracing::info!(%error, source = self.name, "the audit breaks off");
                self.audit.stage = Stage::Asking { parts, until, answer };
                return self.end_audit("abandoned").await;
            }
        };
        self.audit.stage = Stage::Answered { watermark, answer };
        self.audit().await
    }

    /// Ends the audit, if one is under way, and takes what was held back for it.
    pub(super) async fn end_audit(&mut self, outcome: &'static str) -> Result<(), IngestError> {
        if !self.audit.holds() {
            return Ok(());
        }
        self.ingest.metrics.count_audit(outcome);
        self.audit.stage = Stage::Idle;
        while let Some(next) = self.audit.release() {
            self.follow(next.stream, next.batch, next.waiting).await?;
        }
        Ok(())
    }

    /// Asks the agent; later batches are held back from now on.
    async fn ask_audit(&mut self, question: Question, answer: Answer) -> Result<(), IngestError> {
        let asked = self.asked.as_ref().zip(self.stream_life);
        // Whoever waits for a dump needs the permits more.
        let permit = Arc::clone(&self.permits).try_acquire_owned();
        let (Some((asked, life)), Ok(permit)) = (asked, permit) else {
            return self.end_audit("abandoned").await;
        };
        let (parts, until) = (asked.ask((life, question), permit), Instant::now() + ANSWER_TIMEOUT);
        self.audit.stage = Stage::Asking { parts, until, answer };
        Ok(())
    }
}

// === what ===

impl Follower {
    /// Compares all that is held with the agent's digest of it.
    async fn compare(&mut self, digest: u64) -> Result<(), IngestError> {
        let mut compared = self.compare_once(digest).await?;
        if matches!(compared, Compared::Unread) && self.read_digests().await? {
            compared = self.compare_once(digest).await?;
        }
        match compared {
            Compared::Same => self.ingest.metrics.count_audit("same"),
            Compared::Lacks | Compared::Unread => {}
            Compared::Differs => {
                tracing::warn!(
                    source = self.name,
                    worker = %self.worker.address(),
                    "the index does not hold what the agent does: what differs is repaired"
                );
                self.ingest.metrics.count_audit("differs");
                self.ask_audit(Question::Digests, Answer::Digests(BTreeMap::new())).await?;
            }
        }
        Ok(())
    }

    async fn compare_once(&mut self, digest: u64) -> Result<Compared, IngestError> {
        let Some(source) = self.shared.source() else {
            return Ok(if digest == 0 { Compared::Same } else { Compared::Differs });
        };
        let id = source.id();
        let compare = move |index: &mut Index| {
            if index.lacks_blocks(id) {
                return Compared::Lacks;
            }
            match (index.keep_digests(id), index.digest(id)) {
                (Ok(true), Some(ours)) if ours == digest => Compared::Same,
                (Ok(true), Some(_)) => Compared::Differs,
                _ => Compared::Unread,
            }
        };
        Ok(self.ingest.writer.change(source.shard(), compare).await?)
    }

    /// An answer is there, and the index is where it was given.
    async fn look(&mut self) -> Result<(), IngestError> {
        match mem::take(&mut self.audit.stage) {
            Stage::Answered { watermark, answer: Answer::Digests(theirs) } => {
                // Until the next question is asked, it is as if this one was.
                let answer = Answer::Digests(BTreeMap::new());
                self.audit.stage = Stage::Answered { watermark, answer };
                self.look_at_digests(&theirs).await
            }
            Stage::Answered { watermark, answer: Answer::Blocks { buckets, blocks } } => {
                let answer = Answer::Digests(BTreeMap::new());
                self.audit.stage = Stage::Answered { watermark, answer };
                self.repair(&buckets, blocks).await
            }
            other => {
                self.audit.stage = other;
                Ok(())
            }
        }
    }

    async fn look_at_digests(
        &mut self,
        theirs: &BTreeMap<DpRank, RankDigest>,
    ) -> Result<(), IngestError> {
        let ours = match self.shared.source() {
            Some(source) => {
                let id = source.id();
                let digests = move |index: &mut Index| index.digests(id);
                self.ingest.writer.change(source.shard(), digests).await?
            }
            None => Vec::new(),
        };
        let ours: BTreeMap<_, _> = ours.into_iter().collect();
        let ranks: BTreeSet<_> = ours.keys().chain(theirs.keys()).copied().collect();
        let nothing = RankDigest::default();
        let differing = ranks.into_iter().map(|rank| {
            let (ours, theirs) = (ours.get(&rank), theirs.get(&rank));
            (rank, ours.unwrap_or(&nothing).differing(theirs.unwrap_or(&nothing)))
        });
        let buckets: RankBuckets = differing.filter(|(_, buckets)| !buckets.is_empty()).collect();
        let count: usize = buckets.values().map(Vec::len).sum();
        if count == 0 {
            // What was on its way has put it right.
            return self.end_audit("abandoned").await;
        }
        if count > BUCKETS_MAX {
            tracing::warn!(source = self.name, buckets = count, "too much differs: all is dumped");
            self.end_audit("dumped").await?;
            return self.input(Input::Lacking).await;
        }
        let question = Question::Dump { buckets: Some(buckets.clone()) };
        self.ask_audit(question, Answer::Blocks { buckets, blocks: Blocks::new() }).await
    }

    /// Makes the index hold in these buckets what the agent does.
    async fn repair(&mut self, buckets: &RankBuckets, theirs: Blocks) -> Result<(), IngestError> {
        let source = match self.shared.source() {
            Some(source) => Some((self.read_blocks(&source, buckets).await?, source)),
            None => Some((Some(Blocks::new()), self.source(0).await?)),
        };
        let Some((Some(ours), source)) = source else {
            return self.end_audit("abandoned").await;
        };
        let gone = ours.iter().filter(|(key, _)| !theirs.contains_key(key)).map(|(key, block)| {
            (key.0, HeldBlock { copies: [0; Tier::COUNT], parent: None, local: None, ..*block })
        });
        let set_mode = self.copy_mode == CopyMode::Set;
        let is_same = |key: &(DpRank, BlockName), block: &HeldBlock| {
            let copies = |copies: [u32; Tier::COUNT]| {
                copies.map(|copies| if set_mode { copies.min(1) } else { copies })
            };
            ours.get(key).is_some_and(|at| {
                (at.local, at.parent) == (block.local, block.parent)
                    && copies(at.copies) == copies(block.copies)
            })
        };
        let changed = theirs.iter().filter(|(key, block)| !is_same(key, block));
        let mut changes: BTreeMap<DpRank, Vec<HeldBlock>> = BTreeMap::new();
        for (rank, block) in gone.chain(changed.map(|(key, block)| (key.0, *block))) {
            changes.entry(rank).or_default().push(block);
        }
        let count: usize = changes.values().map(Vec::len).sum();
        for (rank, blocks) in changes {
            self.set_names(rank, blocks).await?;
        }
        tracing::warn!(
            source = self.name,
            worker = %self.worker.address(),
            buckets = buckets.values().map(Vec::len).sum::<usize>(),
            blocks = count,
            "the index is repaired"
        );
        if count == 0 {
            // Not the blocks differ: it is the digests that are read again.
            let id = source.id();
            let forget = move |index: &mut Index| index.forget_digests(id);
            self.ingest.writer.change(source.shard(), forget).await?;
        }
        self.ingest.metrics.repaired_blocks.inc_by(count as u64);
        self.end_audit("repaired").await
    }
}

// === what the index holds ===

impl Follower {
    /// Has digests kept of what the index holds already; false if that has to be tried again.
    async fn read_digests(&mut self) -> Result<bool, IngestError> {
        let Some(source) = self.shared.source() else { return Ok(false) };
        let mut ranks: BTreeMap<DpRank, RankDigest> = BTreeMap::new();
        let read = |record: DumpRecord| {
            let digest = block_digest(record.name, record.local);
            let held = Tier::ALL.into_iter().zip(record.copies).filter(|(_, copies)| *copies > 0);
            held.for_each(|(tier, _)| ranks.entry(record.rank).or_default().add(tier, digest));
        };
        if !self.read(&source, read).await? {
            return Ok(false);
        }
        let (id, ranks) = (source.id(), ranks.into_iter().collect::<Vec<_>>());
        let set = move |index: &mut Index| index.set_digests(id, &ranks).unwrap_or(false);
        Ok(self.ingest.writer.change(source.shard(), set).await?)
    }

    /// What the index holds in some buckets; none if that has to be tried again.
    async fn read_blocks(
        &mut self,
        source: &IndexedSource,
        buckets: &RankBuckets,
    ) -> Result<Option<Blocks>, IngestError> {
        let mut blocks = Blocks::new();
        let read = |record: DumpRecord| {
            let DumpRecord { rank, name, parent, local, copies, .. } = record;
            put(&mut blocks, buckets, rank, HeldBlock { name, parent, local, copies });
        };
        Ok(self.read(source, read).await?.then_some(blocks))
    }

    /// Reads all that the index holds of a source, of which nothing changes meanwhile but by other sources of
    /// its worker; false if it cannot now.
    async fn read(
        &mut self,
        source: &IndexedSource,
        mut read: impl FnMut(DumpRecord),
    ) -> Result<bool, IngestError> {
        let registration = &self.worker.registration;
        let query = DumpQuery {
            partition: registration.partition.clone(),
            worker: registration.worker.clone(),
            rank: None,
            chunk_records: DUMP_CHUNK_RECORDS_DEFAULT,
        };
        let writer = self.ingest.writer.clone();
        let read_all = async {
            let mut dump = Dump::begin(&self.worker.partition, writer, &query).await?;
            while let Some(part) = dump.next().await? {
                let DumpPart::Records(records) = part else { continue };
                records.into_iter().filter(|at| at.source == source.id()).for_each(&mut read);
            }
            Ok(())
        };
        match read_all.await {
            Ok(()) => Ok(true),
            Err(DumpError::Stopping(error)) => Err(error.into()),
            Err(DumpError::Index(error)) => {
                tracing::info!(%error, source = self.name, "the audit cannot read the index");
                Ok(false)
            }
        }
    }
}
